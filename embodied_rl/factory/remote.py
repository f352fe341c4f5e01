"""Opens a run's worlds and policy in Ray's workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from embodied_rl.config.env import resized
from embodied_rl.config.train import TrainConfig, from_dict, to_dict
from embodied_rl.factory.run_config import begins_anew, new_policy, new_view, open_policy_of
from embodied_rl.policy import Policy
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.vec_env import VecEnv

_OPEN_ENVS = ExitStack()


@dataclass(frozen=True, slots=True)
class RemoteWorkerFactory:
    """`scheduler.ray_worker.WorkerFactory`; config: as `to_dict` writes it.

    What the config names must be there on the other machine too: assets, and the checkpoint's folder unless it is the
    shipped one or lies on the hub. Weights that training changes come from the learner.
    """

    config: dict[str, Any]

    def __call__(self) -> tuple[VecEnv, Policy]:
        from embodied_rl.factory.suites import load, open_tasks
        from embodied_rl.factory.view import training_episodes, view_of
        from embodied_rl.sim.libero.protocol import protocol
        from embodied_rl.utils.threads import set_torch_threads

        config = from_dict(self.config)
        assert isinstance(config.scheduler, RayConfig)
        cores = max(1, int(config.scheduler.cpus_per_worker))
        set_torch_threads(cores)
        env = resized(config.env, threads=cores)
        config = dataclasses.replace(config, device="cuda" if config.scheduler.gpus_per_worker else "cpu", env=env)
        tasks = load(config.suite, config.tasks, env)
        options: Any = {"protocol": protocol(config.protocol), "training": training_episodes(config)}
        known = None if begins_anew(config) else open_policy_of(config)[0]
        # Held and never closed: the worker's process ends with it.
        view = new_view(config, **options) if known is None else view_of(known, **options)
        opened = _OPEN_ENVS.enter_context(open_tasks(tasks, env, view))
        return opened, known or new_policy(config, opened)


def remote_worker_factory(config: TrainConfig) -> Callable[[], tuple[VecEnv, Policy]] | None:
    """How workers on other machines open worlds, if the config asks for such."""
    return RemoteWorkerFactory(to_dict(config)) if isinstance(config.scheduler, RayConfig) else None
