"""Opens a run's worlds and policy in Ray's workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from embodied_rl.config.train import TrainConfig, from_dict, to_dict
from embodied_rl.factory.run_config import open_policy_of
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
        from embodied_rl.factory.protocol_envs import open_envs, training_episodes
        from embodied_rl.factory.tasks import load_tasks
        from embodied_rl.utils.threads import set_torch_threads

        config = from_dict(self.config)
        assert isinstance(config.scheduler, RayConfig)
        cores = max(1, int(config.scheduler.cpus_per_worker))
        set_torch_threads(cores)
        config = dataclasses.replace(
            config,
            device="cuda" if config.scheduler.gpus_per_worker else "cpu",
            env=dataclasses.replace(config.env, num_threads=cores),
        )
        tasks = load_tasks(config.suite, config.tasks, config.env.scene_era)
        policy, _ = open_policy_of(config)
        # Held and never closed: the worker's process ends with it.
        opened = open_envs(tasks, config.env, config.protocol, policy, training_episodes(config))
        return _OPEN_ENVS.enter_context(opened), policy


def remote_worker_factory(config: TrainConfig) -> Callable[[], tuple[VecEnv, Policy]] | None:
    """How workers on other machines open worlds, if the config asks for such."""
    return RemoteWorkerFactory(to_dict(config)) if isinstance(config.scheduler, RayConfig) else None
