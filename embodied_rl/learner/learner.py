"""The learner: a batch in, optimiser steps on its valid rows, metrics out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.algorithms.base import LossOutput, OnPolicyAlgorithm, Rows
from embodied_rl.algorithms.losses import effective_sample_size
from embodied_rl.errors import UserError
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.learner.gradients import RATIO_STATS, Gradients
from embodied_rl.learner.group_update import GroupUpdate
from embodied_rl.learner.off_policy import DRIFT, ess_ratio, importance_correction, stale_metrics
from embodied_rl.policy import Policy
from embodied_rl.rewards.base import SIMULATOR_REWARD, RewardModel
from embodied_rl.rng import philox
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.threads import WorkerPool, torch_threads

# Philox stream of minibatch permutations; streams 1 to 4 are the sampler's.
_SHUFFLE = 5


class NonFiniteError(RuntimeError):
    """A loss or gradient was NaN or infinite: no step was taken with it, and the batch lies in a file."""


class RatioError(RuntimeError):
    """Before the first step of an update a probability ratio was not 1: `act` and `evaluate` disagree."""


class TrainablePolicy(Policy, Protocol):
    """A policy whose weights are a torch module's."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As `torch.nn.Module.named_parameters`."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """As `torch.nn.Module.state_dict`."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> Any:
        """As `torch.nn.Module.load_state_dict`."""
        ...


class Learner:
    """AdamW over minibatches; `version` counts finished updates.

    ess: what rows that are an update old are worth, as a share of their number: the least of the effective sample size
    of the last batch's stale rows, if it had any, and of its last minibatch, by how far the steps before it had moved
    the policy (1 if an update is one step). The root of that of a step's rows, stale or not, is a factor of its
    learning rates.

    The parameters that `PolicyTraits.critic` names form the critic's group, with its own learning rate; an algorithm
    without a critic leaves them alone. dump_dir: where a batch with a non-finite loss goes. threads: CPU threads that
    take microbatches side by side, each running its operators alone; that wastes less than several threads inside each
    small operator, which wait for one another; see `share_cores_with`. The sum of the gradients has a fixed order for
    a given number.
    ranks: the processes that take the same steps; each must make the same calls. reward_model: gives rows the rewards
    that the algorithm sees.
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
        ranks: Collectives = SINGLE_PROCESS,
        reward_model: RewardModel = SIMULATOR_REWARD,
    ) -> None:
        self.policy = policy
        self.algorithm = algorithm
        self.config = config
        self.version = 0
        self.ess = 1.0
        self.collectives = ranks
        self._reward_model = reward_model
        self._group_update: GroupUpdate | None = None
        self._seed = seed
        self._dump_dir = dump_dir
        half = "upper" if ranks.size == 1 else None  # other ranks would share it
        self._threads = WorkerPool(threads, "learn", half=half) if threads > 1 else None
        self._gradients: Gradients | None = None
        self._ess_after_steps = 1.0
        self.model = ranks.prepare(policy) if ranks.size > 1 else policy
        self._actor, self._critic = split_parameters(self.model, policy.traits.critic)
        groups: list[dict[str, Any]] = [{"params": self._actor, "lr": config.lr}]
        if algorithm.needs_value:
            if not self._critic:
                raise UserError("PPO needs a critic, and this policy has no value head; use --algorithm grpo.")
            groups.append({"params": self._critic, "lr": config.value_lr})
        self.optimizer = torch.optim.AdamW(groups, betas=config.betas, weight_decay=config.weight_decay)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.close()

    def share_cores_with(self, busy: Callable[[], bool]) -> None:
        """Leave half of the threads and cores to others while `busy()`; results are the same."""
        if self._threads is not None:
            self._threads.busy = busy

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """Improve the policy with `batch` and return metrics, means over the batch and its epochs.

        Rows are corrected first (`stale.correct`), unless `accumulate` got them. An empty batch changes nothing. Raises
        RatioError and NonFiniteError as documented above.
        """
        iteration, self.version = self.version, self.version + 1
        self.ess = 1.0
        if len(batch) == 0:
            return {"train/num_samples": 0.0, "train/steps": 0.0}
        again: dict[str, float] = {}
        if not self.update_in_progress:
            batch = self._reward_model.relabel(batch)
            drift = importance_correction(
                batch,
                self.model,
                self.config.microbatch_size,
                self.collectives,
                self._threads,
                all_rows=self.config.recompute_old_log_probs,
            )
            again = {DRIFT: drift} if self.config.recompute_old_log_probs else {}
        if self.config.minibatch_groups is not None:
            metrics = self._update_by_groups(batch, self.config.minibatch_groups, iteration)
        else:
            metrics = self._update_by_rows(batch, iteration)
        stale = stale_metrics(batch, self.algorithm.ratio_level, self.policy.terms_per_step)
        self.ess = min(stale.get("train/ess_stale", 1.0), self._ess_after_steps)
        self.collectives.publish(self.policy, self.model)
        return metrics | {"train/ess_last_minibatch": self._ess_after_steps} | again | stale

    def _update_by_rows(self, batch: RolloutBatch, iteration: int) -> dict[str, float]:
        assert self.config.minibatch_size is not None, "LearnerConfig sees to it"
        weight, metrics = self.algorithm.prepare(batch, self.policy.terms_per_step)
        parts = max(1, round(len(batch) / self.config.minibatch_size))
        sums: dict[str, float] = {}
        for epoch in range(self.algorithm.epochs):
            order = philox(self._seed, _SHUFFLE, iteration, epoch).permutation(len(batch))
            for part, index in enumerate(np.array_split(order, parts)):
                first = epoch == 0 and part == 0
                step = self._step(batch, torch.from_numpy(index), weight * parts, parts, iteration, check_ratio=first)
                for name, value in step.items():
                    sums[name] = sums.get(name, 0.0) + value
        steps = parts * self.algorithm.epochs
        metrics |= {f"train/{name}": value / steps for name, value in sums.items()}
        return metrics | {"train/num_samples": float(len(batch)), "train/steps": float(steps)}

    def accumulate(self, group: RolloutBatch) -> None:
        """Begin the next update with a group of its batch, given in the batch's order; `update` then does the rest.

        Rows must be corrected as `update` would (`stale.correct`), by the weights that the update began with. Only with
        learner.minibatch_groups.
        """
        assert self.config.minibatch_groups is not None, "the config sees to it"
        if self._group_update is None:
            self._group_update = GroupUpdate(self, self.config.minibatch_groups, self.version)
        self._group_update.add(self._reward_model.relabel(group))

    def round_up_to_workers(self, parts: int) -> int:
        """The next number of microbatches of which all threads of all ranks get as many."""
        count = self.collectives.size * (1 if self._threads is None else self._threads.count)
        return -(-parts // count) * count

    @property
    def update_in_progress(self) -> bool:
        """Whether an update is under way (`accumulate`): weights may have moved that no checkpoint should hold."""
        return self._group_update is not None

    def _update_by_groups(self, batch: RolloutBatch, size: int, iteration: int) -> dict[str, float]:
        update, self._group_update = self._group_update, None
        if update is None:
            update = GroupUpdate(self, size, iteration)
            for group in split_groups(batch):
                update.add(group)
        if update.rows != len(batch):
            raise RuntimeError(f"{update.rows} rows were accumulated for a batch of {len(batch)}")
        return update.finish()

    def _set_lrs(self, iteration: int, worth: float) -> None:
        # The step shrinks with the sample that is left: VCPO's rule for Adam (Huang et al. 2026, arXiv 2602.17616).
        share = self.config.lr_factor(iteration) * math.sqrt(worth)
        for group, rate in zip(self.optimizer.param_groups, (self.config.lr, self.config.value_lr), strict=False):
            group["lr"] = rate * share

    def state_dict(self) -> dict[str, Any]:
        """Optimiser state and version; the policy's weights are saved apart."""
        return {"optimizer": self.collectives.gather_state(self.optimizer), "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, with the weights that the policy has now."""
        self.optimizer.load_state_dict(self.collectives.scatter_state(state["optimizer"], self.optimizer))
        self.version = int(state["version"])
        if self.collectives.size > 1:
            self.collectives.refresh(self.policy, self.model)

    def _step(
        self, batch: RolloutBatch, index: Tensor, weight: Tensor, parts: int, iteration: int, *, check_ratio: bool
    ) -> dict[str, float]:
        """One optimiser step on rows `index`, their gradient summed over microbatches."""
        gradients = self.gradients(iteration, check_ratio=check_ratio)
        gradients.begin(
            [
                Rows(batch, micro, weight[micro], torch.full((len(micro),), parts / len(batch)))
                for micro in self.collectives.cut(index, self.config.microbatch_size)
            ]
        )
        totals = self.collect(gradients, iteration)
        totals["grad_norm"] = self.step(batch, index, iteration, ess_ratio([batch], index))
        return totals

    def gradients(self, iteration: int, *, check_ratio: bool) -> Gradients:
        """Begin the next step: its gradient, which is zero still. `collect` must follow before the weights move."""
        self.optimizer.zero_grad(set_to_none=True)

        def loss(rows: Rows) -> LossOutput:
            return self.algorithm.loss(self.model, rows, iteration)

        self._gradients = Gradients(
            loss,
            self._moving(iteration),
            self.collectives,
            self._threads,
            self.config.ratio_tolerance if check_ratio else None,
        )
        return self._gradients

    def collect(self, gradients: Gradients, iteration: int) -> dict[str, float]:
        """Wait for the gradient; return the sums of all ranks' metrics.

        Raises NonFiniteError and RatioError, on every rank the same.
        """
        totals, trouble = gradients.collect()
        self._gradients = None
        self._ess_after_steps = effective_sample_size(*(totals.pop(name) for name in RATIO_STATS))
        if trouble is not None and trouble.what == "loss":
            rows = gradients.micros[trouble.microbatch]
            self._dump_and_raise(rows.batch, rows.index, iteration, f"the loss is {trouble.value}")
        if trouble is not None:
            self._raise_ratio_error(trouble.value, iteration)
        return totals

    @property
    def working(self) -> bool:
        """Whether a thread takes a gradient; any thread may ask."""
        return (gradients := self._gradients) is not None and gradients.working

    @property
    def worked_until(self) -> float:
        """When threads last took a gradient of the step under way (s, of time.perf_counter); 0 if none did."""
        return 0.0 if self._gradients is None else self._gradients.worked_until

    def step(self, batch: RolloutBatch, index: Tensor, iteration: int, sample: float, scale: float = 1.0) -> float:
        """Clip `scale` times the gradient, summed over ranks, of what may move now and step; return its norm before.

        sample: effective share of the rows that it was taken from. Raises NonFiniteError, which keeps rows `index` of
        `batch`.
        """
        self._set_lrs(iteration, sample)
        # others may have the other cores; always one thread, as sums must not depend on when they have
        with nullcontext() if self._threads is None else torch_threads(1):
            return self._move(batch, index, iteration, scale)

    def _move(self, batch: RolloutBatch, index: Tensor, iteration: int, scale: float) -> float:
        moving = self._moving(iteration)
        for parameter in moving:
            if scale != 1.0 and parameter.grad is not None:
                parameter.grad *= scale
        self.collectives.add_gradients(moving)
        still = {id(parameter) for parameter in moving}
        for parameter in [*self._actor, *self._critic]:
            if id(parameter) not in still:
                parameter.grad = None  # parts of a policy get their gradients whether they may move or not
        norm = self._clip(moving, batch, index, iteration)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # their memory is the rollout's now: `plan` counts on it
        return norm

    def _moving(self, iteration: int) -> list[nn.Parameter]:
        """What may move now; in the critic's warm-up the policy must not move at all."""
        critic = list(self._critic) if self.algorithm.needs_value else []
        return critic + (self._actor if self.algorithm.trains_policy(iteration) else [])

    def _clip(self, moving: Sequence[nn.Parameter], batch: RolloutBatch, index: Tensor, iteration: int) -> float:
        """Clip the gradient and return its norm before."""
        norm = self.collectives.clip(moving, self.config.max_grad_norm)
        if not math.isfinite(norm):
            self._dump_and_raise(batch, index, iteration, f"the gradient's norm is {norm}")
        return norm

    def _raise_ratio_error(self, error: float, iteration: int) -> None:
        advice = (
            (
                " They were computed again where the policy acts, and another kind of device (--scheduler.act-device) "
                "may round differently: leave that out, or raise --learner.ratio-tolerance."
            )
            if self.config.recompute_old_log_probs
            else (" With bfloat16 rounding alone can do it: add --learner.recompute-old-log-probs.")
        )
        raise RatioError(
            f"before the first step of update {iteration + 1} a probability ratio differs from 1 by {error:.3g} "
            f"(learner.ratio_tolerance {self.config.ratio_tolerance}): the policy's act() and evaluate() disagree; "
            f"check that temperature, dropout and number format are the same in both.{advice}"
        )

    def _dump_and_raise(self, batch: RolloutBatch, index: Tensor, iteration: int, what: str) -> None:
        path = self._dump_dir / f"nonfinite-{iteration:06d}.pt"
        if self.collectives.rank == 0:
            self._dump_dir.mkdir(parents=True, exist_ok=True)
            tensors = ("images", "proprio", "log_prob", "value", "reward", "mask", "episode", "advantage", "returns")
            dump: dict[str, Any] = {name: getattr(batch, name) for name in tensors}
            torch.save(dump | {"replay": batch.replay, "instruction": batch.instruction, "index": index}, path)
        raise NonFiniteError(
            f"{what} in update {iteration + 1}; no step was taken with it. The batch is in {path}. Begin a new "
            "run with a lower --learner.lr, from this one's last checkpoint if it has one: --policy.checkpoint RUN."
        )


def split_parameters(
    policy: TrainablePolicy, critic_prefix: str | None
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters as (policy, critic), of which the critic's names begin with `critic_prefix`."""
    actor: list[nn.Parameter] = []
    critic: list[nn.Parameter] = []
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            (critic if critic_prefix and name.startswith(critic_prefix) else actor).append(parameter)
    return actor, critic
