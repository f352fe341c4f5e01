"""The learner: a batch in, optimiser steps on its valid rows, metrics out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.algorithms.rows import Algorithm, Rows
from embodied_rl.errors import UserError
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.group_update import GroupUpdate
from embodied_rl.learner.stale import correct
from embodied_rl.policy import Policy
from embodied_rl.rng import philox
from embodied_rl.types import RolloutBatch

# Philox stream of minibatch permutations; streams 1 to 4 are the sampler's.
_SHUFFLE = 5
VALUE_HEAD = "value_head"


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

    ess: effective sample size of the last batch as a share of its size, below 1 if older policies acted; the learning
    rates are multiplied by its root.

    Parameters under a module named `value_head` form the critic's group, with its own learning rate; an algorithm
    without a critic leaves them alone. dump_dir: where a batch with a non-finite loss goes.
    """

    def __init__(
        self, policy: TrainablePolicy, algorithm: Algorithm, config: LearnerConfig, *, seed: int, dump_dir: Path
    ) -> None:
        self.policy = policy
        self.algorithm = algorithm
        self.config = config
        self.version = 0
        self.ess = 1.0
        self._begun: GroupUpdate | None = None
        self._seed = seed
        self._dump_dir = dump_dir
        self._actor, self._critic = split_parameters(policy)
        groups: list[dict[str, Any]] = [{"params": self._actor, "lr": config.lr}]
        if algorithm.needs_value:
            if not self._critic:
                raise UserError("PPO needs a critic, and this policy has no value head; use --algorithm grpo.")
            groups.append({"params": self._critic, "lr": config.value_lr})
        self.optimizer = torch.optim.AdamW(groups, betas=config.betas, weight_decay=config.weight_decay)

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """Improve the policy with `batch` and return metrics, means over the batch and its epochs.

        An empty batch changes nothing. Raises RatioError and NonFiniteError as documented above.
        """
        iteration, self.version = self.version, self.version + 1
        if len(batch) == 0:
            return {"train/rows": 0.0, "train/steps": 0.0}
        stale = correct(batch, self.policy, self.algorithm, self.config.microbatch_rows)
        self.ess = stale.get("train/ess", 1.0)
        # The step shrinks with the sample that is left: VCPO's rule for Adam (Huang et al. 2026, arXiv 2602.17616).
        self._set_rates(self.config.rate(iteration) * math.sqrt(self.ess))
        if self.config.minibatch_groups is not None:
            return self._update_by_groups(batch, self.config.minibatch_groups, iteration) | stale
        return self._update_by_rows(batch, iteration) | stale

    def _update_by_rows(self, batch: RolloutBatch, iteration: int) -> dict[str, float]:
        assert self.config.minibatch_rows is not None, "LearnerConfig sees to it"
        weight, metrics = self.algorithm.prepare(batch, self.policy.terms_per_step)
        parts = max(1, round(len(batch) / self.config.minibatch_rows))
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
        return metrics | {"train/rows": float(len(batch)), "train/steps": float(steps)}

    def accumulate(self, group: RolloutBatch) -> None:
        """Begin the next update with a group of its batch, given in the batch's order; `update` then does the rest.

        Only with learner.minibatch_groups.
        """
        assert self.config.minibatch_groups is not None, "the config sees to it"
        if self._begun is None:
            self._set_rates(self.config.rate(self.version))
            self._begun = GroupUpdate(self, self.config.minibatch_groups, self.version)
        self._begun.add(group)

    def _update_by_groups(self, batch: RolloutBatch, groups: int, iteration: int) -> dict[str, float]:
        update, self._begun = self._begun, None
        if update is None:
            update = GroupUpdate(self, groups, iteration)
            for group in split_groups(batch):
                update.add(group)
        if update.rows != len(batch):
            raise RuntimeError(f"{update.rows} rows were accumulated for a batch of {len(batch)}")
        return update.finish()

    def _set_rates(self, share: float) -> None:
        rates = [self.config.lr, self.config.value_lr]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
            group["lr"] = rate * share

    def state_dict(self) -> dict[str, Any]:
        """Optimiser state and version; the policy's weights are saved apart."""
        return {"optimizer": self.optimizer.state_dict(), "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = int(state["version"])

    def _step(
        self, batch: RolloutBatch, index: Tensor, weight: Tensor, parts: int, iteration: int, *, check_ratio: bool
    ) -> dict[str, float]:
        """One optimiser step on rows `index`, their gradient summed over microbatches."""
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, float] = {}
        for micro in index.split(self.config.microbatch_rows):
            row_weight = torch.full((len(micro),), parts / len(batch))
            rows = Rows(batch, micro, weight[micro], row_weight)
            for name, value in self.backward(rows, iteration, check_ratio=check_ratio).items():
                totals[name] = totals.get(name, 0.0) + value
        totals["grad_norm"] = self.step(batch, index, iteration)
        return totals

    def backward(self, rows: Rows, iteration: int, *, check_ratio: bool) -> dict[str, float]:
        """Add the gradient of some rows' loss; return its metrics. Raises NonFiniteError and RatioError."""
        out = self.algorithm.loss(self.policy, rows, iteration)
        if not math.isfinite(out.loss.item()):
            self._stop(rows.batch, rows.index, iteration, f"the loss is {out.loss.item()}")
        if check_ratio:
            self._check_ratio(out.ratio_error.item())
        out.loss.backward()
        return {name: value.item() for name, value in (out.metrics | {"loss": out.loss.detach()}).items()}

    def step(self, batch: RolloutBatch, index: Tensor, iteration: int) -> float:
        """Clip the gradient of what may move now and step; return its norm before.

        Raises NonFiniteError, which keeps rows `index` of `batch`.
        """
        norm = self._clip(batch, index, iteration)
        self.optimizer.step()
        return norm

    def _clip(self, batch: RolloutBatch, index: Tensor, iteration: int) -> float:
        """Clip the gradient of what may move now; return its norm before."""
        moving = list(self._critic) if self.algorithm.needs_value else []
        if self.algorithm.trains_policy(iteration):
            moving += self._actor
        else:
            for parameter in self._actor:
                parameter.grad = None  # the optimiser skips it: in warm-up the policy must not move at all
        norm = float(nn.utils.clip_grad_norm_(moving, self.config.max_grad_norm))
        if not math.isfinite(norm):
            self._stop(batch, index, iteration, f"the gradient's norm is {norm}")
        return norm

    def _check_ratio(self, error: float) -> None:
        if not error <= self.config.ratio_tolerance:
            raise RatioError(
                f"before the first step of update {self.version} a probability ratio differs from 1 by {error:.3g} "
                f"(learner.ratio_tolerance {self.config.ratio_tolerance}): the policy's act() and evaluate() disagree; "
                "check that temperature, dropout and number format are the same in both."
            )

    def _stop(self, batch: RolloutBatch, index: Tensor, iteration: int, what: str) -> None:
        self._dump_dir.mkdir(parents=True, exist_ok=True)
        path = self._dump_dir / f"nonfinite-{iteration:06d}.pt"
        tensors = ("images", "proprio", "log_prob", "value", "reward", "mask", "episode", "advantage", "returns")
        dump: dict[str, Any] = {name: getattr(batch, name) for name in tensors}
        torch.save(dump | {"replay": batch.replay, "instruction": batch.instruction, "index": index}, path)
        raise NonFiniteError(
            f"{what} in update {iteration + 1}; no step was taken with it. The batch is in {path}; the last checkpoint "
            "is untouched: lower learner.lr and resume from it."
        )


def split_parameters(policy: TrainablePolicy) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters as (policy, critic)."""
    actor: list[nn.Parameter] = []
    critic: list[nn.Parameter] = []
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            (critic if VALUE_HEAD in name.split(".") else actor).append(parameter)
    return actor, critic
