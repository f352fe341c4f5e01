"""The learner: a batch in, optimiser steps on its rows, metrics out.

Reading map of one update, from the batch to the weights:
  off_policy.py      recompute log-probs and values of stale rows, their importance ratios and effective sample size
  algorithms/        PPO.prepare, GRPO.prepare: advantages and row weights; PPO.loss, GRPO.loss (terms in losses.py)
  row_update.py      strategy 1: shuffled minibatches of rows (learner.minibatch_size)
  group_update.py    strategy 2: minibatches of whole groups that may come one by one (learner.minibatch_groups)
  row_selection.py   which rows either of them learns from (learner.row_share)
  optimizer_step.py  one step: begin, collect, clip, apply
  gradients.py       the gradient of one step, summed over microbatches, threads and processes
  imitation.py       the term of a step's loss that demonstrations give
  distributed/       the same over several processes
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from embodied_rl.algorithms.base import OnPolicyAlgorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.batches import join_batches, split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.learner.group_update import GroupUpdate
from embodied_rl.learner.imitation import Imitation
from embodied_rl.learner.off_policy import DRIFT, importance_correction, stale_metrics
from embodied_rl.learner.optimizer_step import OptimizerStep
from embodied_rl.learner.row_selection import RowSelection
from embodied_rl.learner.row_update import update_by_rows
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.reward_model import SIMULATOR_REWARD, RewardModel
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.threads import CoreBudget, WorkerPool


class Learner:
    """Updates a policy with batches.

    The parameters that `PolicyTraits.critic` names have the critic's learning rate; an algorithm without one leaves
    them alone.

    Args:
        dump_dir: where a batch with a non-finite loss goes.
        threads: CPU threads that take microbatches side by side. Gradients are added in a fixed order, so results
            depend on this number but not on timing.
        collectives: the processes that take the same steps; each must make the same calls.
        reward_model: gives rows the rewards that the algorithm sees.

    Attributes:
        version: number of finished updates.
        ess: effective sample size ratio of one-update-old rows, in (0, 1]: the minimum over the stale rows of the last
            batch and its last minibatch. Each step's learning rates are multiplied by the root of its rows' ratio.
        cores: budget of the CPU cores, to be shared with a rollout on the same ones.

    Example:
        >>> learner = Learner(policy, PPO(PPOConfig()), LearnerConfig(), seed=0, dump_dir=Path("dumps"))
        >>> metrics = learner.update(batch)
    """

    def __init__(
        self,
        policy: TrainablePolicy,
        algorithm: OnPolicyAlgorithm,
        config: LearnerConfig,
        *,
        seed: int,
        dump_dir: Path,
        threads: int = 1,
        collectives: Collectives = SINGLE_PROCESS,
        reward_model: RewardModel = SIMULATOR_REWARD,
    ) -> None:
        if (
            policy.traits.update_normalizer is not None
            and not policy.state_dict().keys() - dict(policy.named_parameters()).keys()
        ):
            raise UserError(
                f"{type(policy).__name__} has PolicyTraits.update_normalizer and no buffer: its statistics would be in "
                "no checkpoint and reach no other rank; keep them with register_buffer."
            )
        self.policy = policy
        self.algorithm = algorithm
        self.config = config
        self.collectives = collectives
        self.version = 0
        self.ess = 1.0
        self.cores = CoreBudget()
        self._seed = seed
        self._selection = RowSelection(config.row_share, seed)
        self._reward_model = reward_model
        self._group_update: GroupUpdate | None = None
        self._accumulated: list[RolloutBatch] = []
        self._threads = WorkerPool(threads, "learn", cores=self.cores) if threads > 1 else None
        # Under FSDP a sharded copy: that one learns, and the whole policy acts.
        self.model = collectives.prepare(policy)
        self.optimizer_step = OptimizerStep(self.model, algorithm, config, collectives, self._threads, dump_dir)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.close()

    def imitate(self, imitation: Imitation | None) -> None:
        """Give the loss of every step the imitation term from now on; before `load_state_dict`."""
        self.optimizer_step.imitation = imitation

    @property
    def update_in_progress(self) -> bool:
        """Whether `accumulate` has begun an update: the weights may have moved, and no checkpoint should hold them."""
        return self._group_update is not None

    def accumulate(self, group: RolloutBatch) -> None:
        """Begin the next update with one group of its batch, in the batch's order; `update` then does the rest.

        Only with learner.minibatch_groups. Stale rows must be corrected already (`importance_correction`), by the
        weights that the update began with.
        """
        assert self.config.minibatch_groups is not None, "the config sees to it"
        with self.cores.at_work("learner"):
            if self._group_update is None:
                self._group_update = self._begin_groups(self.config.minibatch_groups, self.version)
            group = self._reward_model.relabel(group)
            self._group_update.add(group)
            if (
                self.policy.traits.update_normalizer is not None
            ):  # `update` gets the batch without frames and replay data
                self._accumulated.append(group)

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """Improve the policy with `batch` and return metrics, means over the batch and its epochs.

        Corrects stale rows first, unless `accumulate` got them. With an empty batch only demonstrations are learned
        from, one step an epoch; without these it changes nothing.

        Raises:
            RatioError: `act` and `evaluate` disagree.
            NonFiniteError: a loss or gradient is not finite.
        """
        with self.cores.at_work("learner"):
            iteration, self.version = self.version, self.version + 1
            self.ess = 1.0  # an empty batch says nothing of stale rows
            if len(batch) == 0:
                return {"train/num_samples": 0.0, "train/steps": 0.0} | self._imitate_alone(batch, iteration)
            drift: dict[str, float] = {}
            if not self.update_in_progress:  # groups came relabelled and corrected
                batch = self._reward_model.relabel(batch)
                drift = self._correct(batch)
            if self.config.minibatch_groups is not None:
                metrics = self._update_by_groups(batch, self.config.minibatch_groups, iteration)
            else:
                metrics = update_by_rows(self.optimizer_step, batch, self._selection, self._seed, iteration)
            metrics = self.algorithm.finish(metrics)
            # Before `_update_normalizer`, which may rescale the policy's weights and brings them back to the model.
            self.collectives.publish(self.policy, self.model)
            # After the steps: statistics that move between acting and evaluating would be taken for a change of the
            # policy.
            self._update_normalizer(batch)
            stale = stale_metrics(batch, self.algorithm.ratio_level, self.policy.terms_per_step)
            last = self.optimizer_step.ess
            self.ess = min(stale.get("train/ess_stale", 1.0), last)
            rewards = self._reward_model.drain()
            return metrics | {"train/ess_last_minibatch": last} | drift | stale | rewards

    def _imitate_alone(self, batch: RolloutBatch, iteration: int) -> dict[str, float]:
        """Steps of an update whose groups were all left out: no task may ever be rewarded otherwise."""
        imitation = self.optimizer_step.imitation
        if imitation is None or imitation.weight(iteration) == 0.0:
            return {}
        epochs = self.algorithm.epochs
        sums: dict[str, float] = {}
        for step in range(epochs):
            self.optimizer_step.begin(iteration, check_ratio=False)
            for name, value in self.optimizer_step.apply(batch, torch.arange(0), (iteration, step), ess=1.0).items():
                sums[name] = sums.get(name, 0.0) + value
        self.collectives.publish(self.policy, self.model)
        return {f"train/{name}": value / epochs for name, value in sums.items()} | {"train/steps": float(epochs)}

    def _correct(self, batch: RolloutBatch) -> dict[str, float]:
        again, size = self.config.recompute_old_log_probs, self.config.microbatch_size
        drift = importance_correction(batch, self.model, size, self.collectives, self._threads, all_rows=again)
        return {DRIFT: drift} if again else {}

    @property
    def needs_all_frames(self) -> bool:
        """Whether the policy or the reward model looks at the frames of every row, also of those that others learn."""
        return self.policy.traits.update_normalizer is not None or self._reward_model is not SIMULATOR_REWARD

    @property
    def needs_final_images(self) -> bool:
        """Whether the reward model looks at what an episode shows after its last step."""
        return self._reward_model.needs_final_images

    def _update_normalizer(self, batch: RolloutBatch) -> None:
        """Let the policy's running statistics take the batch in, with returns where the algorithm has them."""
        update_normalizer = self.policy.traits.update_normalizer
        if update_normalizer is None:
            return
        if self._accumulated:  # the batch itself has come without what the policy saw
            batch, self._accumulated = join_batches(self._accumulated), []
        if batch.returns is None and self.algorithm.needs_value:  # by groups, only parts of it were prepared
            self.algorithm.prepare(batch, self.policy.terms_per_step)
        update_normalizer(batch)
        self.collectives.refresh(self.policy, self.model)  # a shard has statistics and rescaled weights of its own

    def _begin_groups(self, size: int, iteration: int) -> GroupUpdate:
        return GroupUpdate(self.optimizer_step, self._selection, size, iteration)

    def _update_by_groups(self, batch: RolloutBatch, size: int, iteration: int) -> dict[str, float]:
        update, self._group_update = self._group_update, None
        if update is None:
            update = self._begin_groups(size, iteration)
            for group in split_groups(batch):
                update.add(group)
        if update.rows != len(batch):
            raise RuntimeError(f"{update.rows} rows were accumulated for a batch of {len(batch)}")
        return update.finish()

    def state_dict(self) -> dict[str, Any]:
        """Optimiser state, version and what is imitated; the policy's weights are saved apart."""
        optimizer = self.collectives.gather_state(self.optimizer_step.optimizer)
        state, imitation = {"optimizer": optimizer, "version": self.version}, self.optimizer_step.imitation
        return state if imitation is None else state | {"demos": imitation.digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, with the weights that the policy has now.

        Raises:
            UserError: its demonstrations were others.
        """
        imitation = self.optimizer_step.imitation
        if imitation is not None and state.get("demos") != imitation.digest:
            raise UserError("--demos are no longer those of the run: bring these data sets back, or begin a new run.")
        optimizer = self.optimizer_step.optimizer
        optimizer.load_state_dict(self.collectives.scatter_state(state["optimizer"], optimizer))
        self.version = int(state["version"])
        self.collectives.refresh(self.policy, self.model)
