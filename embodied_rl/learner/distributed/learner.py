"""A learner over several processes: rank 0 sends each call to the workers and makes it itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from embodied_rl.algorithms.base import OnPolicyAlgorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.batches import without_frames
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.processes import PolicyFactory, WorkerProcesses, WorkerSpec
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.threads import torch_threads


class DistributedLearner(Learner):
    """A `Learner` that is rank 0 of `config.num_processes`. After a RankError it cannot be used any more."""

    def __init__(
        self,
        policy: TrainablePolicy,
        algorithm: OnPolicyAlgorithm,
        config: LearnerConfig,
        *,
        seed: int,
        dump_dir: Path,
        threads: int,
        worker_policy: PolicyFactory,
    ) -> None:
        # A policy in parts takes one pass at a time, with all threads inside an operator.
        threads = max(1, threads // config.num_processes) if not config.fsdp else 1
        self._workers = WorkerProcesses(
            config.num_processes, worker_policy, WorkerSpec(algorithm, config, seed, dump_dir, threads)
        )
        try:
            super().__init__(
                policy,
                algorithm,
                config,
                seed=seed,
                dump_dir=dump_dir,
                threads=threads,
                collectives=self._workers.collectives,
            )
        except BaseException:
            self._workers.close()
            raise

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """As `Learner.update`, on all ranks."""
        sent = batch
        if self._group_update is not None:  # every rank has its rows already, group by group
            sent = without_frames(batch)
        self._workers.broadcast_call("update", sent)
        with self._alike():
            return super().update(batch)

    def accumulate(self, group: RolloutBatch) -> None:
        """As `Learner.accumulate`, on all ranks."""
        self._workers.broadcast_call("accumulate", group)
        with self._alike():
            super().accumulate(group)

    def _alike(self) -> AbstractContextManager[None]:
        """One thread inside an operator, as in the workers."""
        return torch_threads(1) if not self.config.fsdp else nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """As `Learner.state_dict`."""
        if self.config.fsdp:
            self._workers.broadcast_call("state_dict")
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `Learner.load_state_dict`, on all ranks."""
        self._workers.broadcast_call("load_state_dict", state)
        super().load_state_dict(state)

    def close(self) -> None:
        """End the other ranks and the threads."""
        self._workers.close()
        super().close()


def make_learner(
    policy: TrainablePolicy,
    algorithm: OnPolicyAlgorithm,
    config: LearnerConfig,
    *,
    seed: int,
    dump_dir: Path,
    threads: int,
    worker_policy: PolicyFactory | None,
) -> Learner:
    """The learner that `config` asks for.

    Args:
        threads: CPU threads of all its processes together.
        worker_policy: opens the policy of a further process, for `config.num_processes` > 1.

    Raises:
        UserError: there are fewer GPUs than processes, and as `Learner` and `WorkerProcesses`.
    """
    if config.num_processes == 1:
        return Learner(policy, algorithm, config, seed=seed, dump_dir=dump_dir, threads=threads)
    assert worker_policy is not None, "the caller knows how to open the policy again"
    on_gpu = next(parameter for _, parameter in policy.named_parameters()).is_cuda
    if on_gpu and config.num_processes > torch.cuda.device_count():
        raise UserError(
            f"--learner.num-processes is {config.num_processes}, and there are {torch.cuda.device_count()} GPUs: "
            "a process needs one of its own."
        )
    return DistributedLearner(
        policy, algorithm, config, seed=seed, dump_dir=dump_dir, threads=threads, worker_policy=worker_policy
    )
