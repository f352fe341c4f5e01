"""Opens a run's worlds and policy on another machine, for `--scheduler ray`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from embodied_rl.config import TrainConfig, from_dict, to_dict
from embodied_rl.policy import Policy
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.vec_env import VecEnv


@dataclass(frozen=True, slots=True)
class FarWorker:
    """`scheduler.ray_worker.WorkerFactory`; config: as `to_dict` writes it.

    What the config names must be there on the other machine too: assets, and the checkpoint's folder unless it is the
    shipped one or lies on the hub. Weights that training changes come from the learner.
    """

    config: dict[str, Any]

    def __call__(self) -> tuple[VecEnv, Policy]:
        import torch

        from embodied_rl.cli.suites import load_tasks
        from embodied_rl.cli.train_run import open_policy_of
        from embodied_rl.cli.worlds import open_worlds

        config = from_dict(self.config)
        assert isinstance(config.scheduler, RayConfig)
        cores = max(1, int(config.scheduler.cpus_per_worker))
        torch.set_num_threads(cores)
        config = dataclasses.replace(
            config, device="cuda" if config.scheduler.gpus_per_worker else "cpu",
            env=dataclasses.replace(config.env, sim_threads=cores),
        )  # fmt: skip
        policy, _ = open_policy_of(config, resume=False)
        tasks = load_tasks(config.suite, config.tasks)
        # Never closed: the worker's process ends with it.
        return open_worlds(tasks, config.env, config.protocol, policy).__enter__(), policy


def far_worker(config: TrainConfig) -> Callable[[], tuple[VecEnv, Policy]] | None:
    """How workers on other machines open worlds, if the config asks for such."""
    return FarWorker(to_dict(config)) if isinstance(config.scheduler, RayConfig) else None
