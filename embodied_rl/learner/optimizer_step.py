"""One optimiser step at a time: its gradient over microbatches and processes, clipping, and the move itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from embodied_rl.algorithms.base import LossOutput, OnPolicyAlgorithm, Rows
from embodied_rl.algorithms.losses import effective_sample_size
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.gradients import RATIO_STATS, Gradients
from embodied_rl.learner.imitation import BATCH, Imitation
from embodied_rl.learner.types import NonFiniteError, RatioError, split_parameters
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.threads import WorkerPool, torch_threads

_ADVICE = (
    "Begin a new run with a lower --learner.lr, from this one's last checkpoint if it has one: --policy.checkpoint RUN."
)


class OptimizerStep:
    """AdamW with one learning rate for the policy and one for the critic.

    A step is `begin`, then `Gradients.begin` for its microbatches, then `collect`, then `apply`.

    Attributes:
        ess: effective sample size ratio of the last step's rows, by how far the earlier steps of its update had moved
            the policy; 1 if it was the update's first step.
        imitation: a further term of every step's loss, or None.
    """

    def __init__(
        self,
        model: Any,
        algorithm: OnPolicyAlgorithm,
        config: LearnerConfig,
        collectives: Collectives,
        threads: WorkerPool | None,
        dump_dir: Path,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.config = config
        self.collectives = collectives
        self.ess = 1.0
        self.imitation: Imitation | None = None
        self._threads = threads
        self._dump_dir = dump_dir
        self._actor, self._critic = split_parameters(model, model.traits.critic)
        groups: list[dict[str, Any]] = [{"params": self._actor, "lr": config.lr}]
        if algorithm.needs_value:
            if not self._critic:
                raise UserError("PPO needs a critic, and this policy has no value head; use --algorithm grpo.")
            groups.append({"params": self._critic, "lr": config.value_lr})
        self.optimizer = torch.optim.AdamW(groups, betas=config.betas, weight_decay=config.weight_decay)

    def round_up_to_threads(self, parts: int) -> int:
        """Round up to a multiple of the threads."""
        count = 1 if self._threads is None else self._threads.count
        return -(-parts // count) * count

    def begin(self, iteration: int, *, check_ratio: bool) -> Gradients[Rows]:
        """Begin a step with a gradient of zero. `collect` must follow before the weights move."""
        self.optimizer.zero_grad(set_to_none=True)

        def loss(rows: Rows) -> LossOutput:
            return self.algorithm.loss(self.model, rows, iteration)

        tolerance = self.config.ratio_tolerance if check_ratio else None
        return Gradients(loss, self._moving(iteration), self.collectives, self._threads, tolerance)

    def collect(self, gradients: Gradients[Rows], iteration: int) -> dict[str, float]:
        """Wait for the gradient and return the sums of all processes' metrics.

        Raises NonFiniteError and RatioError, on every process the same.
        """
        totals, fault = gradients.collect()
        self.ess = effective_sample_size(*(totals.pop(name) for name in RATIO_STATS))
        if fault is not None and fault.what == "loss":
            here = fault.rank == self.collectives.rank  # another rank's microbatch has its frames there
            rows = gradients.micros[fault.microbatch] if here else None
            self._dump_and_raise(rows, iteration, f"the loss is {fault.value}")
        if fault is not None:
            self._raise_ratio_error(fault.value, iteration)
        return totals

    def apply(
        self, batch: RolloutBatch, index: Tensor, at: tuple[int, int], ess: float, scale: float = 1.0
    ) -> dict[str, float]:
        """Clip `scale` times the gradient plus that of imitation, summed over processes, and step.

        Args:
            batch, index: rows that are dumped if the norm is not finite (NonFiniteError).
            at: update and number of the step within it, each 0-based.
            ess: effective sample size ratio of the step's rows; the learning rates are multiplied by its root.

        Returns:
            The gradient's norm before clipping, and imitation's loss and weight where there is that.
        """
        iteration = at[0]
        # The step shrinks with the sample that is left: VCPO's rule for Adam (Huang et al. 2026, arXiv 2602.17616).
        factor = self.config.lr_factor(iteration) * math.sqrt(ess)
        # Not strict: without a critic there is one group.
        for group, rate in zip(self.optimizer.param_groups, (self.config.lr, self.config.value_lr), strict=False):
            group["lr"] = rate * factor
        # Always one thread: sums must not depend on whether others have the other cores.
        with nullcontext() if self._threads is None else torch_threads(1):
            return self._move(batch, index, at, scale)

    def _move(self, batch: RolloutBatch, index: Tensor, at: tuple[int, int], scale: float) -> dict[str, float]:
        iteration = at[0]
        moving = self._moving(iteration)
        for parameter in moving:
            if scale != 1.0 and parameter.grad is not None:
                parameter.grad *= scale
        imitated = self._imitate(at, moving)
        self.collectives.add_gradients(moving)  # before clipping: every rank clips the same sum
        still = {id(parameter) for parameter in moving}
        for parameter in [*self._actor, *self._critic]:
            if id(parameter) not in still:
                parameter.grad = None  # parts of a policy get their gradients whether they may move or not
        norm = self.collectives.clip(moving, self.config.max_grad_norm)
        if not math.isfinite(norm):
            # All ranks have the same norm: one writes the file.
            rows = Rows(batch, index, torch.empty(0), torch.empty(0)) if self.collectives.rank == 0 else None
            self._dump_and_raise(rows, iteration, f"the gradient's norm is {norm}")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # their memory is the rollout's now: `plan` counts on it
        return imitated | {"grad_norm": norm}

    def _imitate(self, at: tuple[int, int], moving: Sequence[nn.Parameter]) -> dict[str, float]:
        """Add the gradient of this rank's share of the imitation term; return the term's loss and weight."""
        imitation, ranks = self.imitation, self.collectives
        weight = 0.0 if imitation is None else imitation.weight(at[0])
        if imitation is None or weight == 0.0:
            return {}
        gradients = Gradients(partial(imitation.loss, self.model, weight), moving, ranks, self._threads, None)
        most = min(self.config.microbatch_size, math.ceil(BATCH / ranks.size / self.round_up_to_threads(1)))
        own = imitation.rows(*at, rank=ranks.rank, ranks=ranks.size, most=most)
        gradients.begin([(rows, True) for rows in own])
        totals, fault = gradients.collect()
        if fault is not None:
            raise NonFiniteError(
                f"the loss on demonstrations is {fault.value} in update {at[0] + 1}; no step was taken with it. "
                + _ADVICE
            )
        return {"demo_loss": totals["demo_loss"], "demo_coef": weight}

    def _moving(self, iteration: int) -> list[nn.Parameter]:
        """Parameters that this update may change: in the critic's warm-up the critic's alone."""
        critic = list(self._critic) if self.algorithm.needs_value else []
        return critic + (self._actor if self.algorithm.trains_policy(iteration) else [])

    def _rounds_coarsely(self) -> bool:
        """Whether the policy computes in 16 bits, by its weights or by autocast."""
        halves = (value.is_floating_point() and value.itemsize == 2 for value in self.model.parameters())
        return bool(getattr(self.model, "mixed_precision", False)) or any(halves)

    def _raise_ratio_error(self, error: float, iteration: int) -> NoReturn:
        advice = (
            "They were computed again where the policy acts, and another kind of device (--scheduler.act-device) "
            "may round differently: leave that out, or raise --learner.ratio-tolerance."
            if self.config.recompute_old_log_probs
            else "With bfloat16 rounding alone can do it: add --learner.recompute-old-log-probs."
            if self._rounds_coarsely()
            else "Between rollout and update no weight or buffer of the policy may change."
        )
        raise RatioError(
            f"before the first step of update {iteration + 1} a probability ratio differs from 1 by {error:.3g} "
            f"(learner.ratio_tolerance {self.config.ratio_tolerance}): the policy's act() and evaluate() disagree; "
            f"check that temperature, dropout and number format are the same in both. {advice}"
        )

    def _dump_and_raise(self, rows: Rows | None, iteration: int, what: str) -> NoReturn:
        """rows: None where another rank writes them."""
        path = self._dump_dir / f"nonfinite-{iteration:06d}.pt"
        if rows is not None:
            batch, index = rows.batch, rows.index
            self._dump_dir.mkdir(parents=True, exist_ok=True)
            tensors = ("images", "proprio", "log_prob", "value", "reward", "mask", "episode", "advantage", "returns")
            dump: dict[str, Any] = {name: getattr(batch, name) for name in (*tensors, "frame_row")}
            torch.save(dump | {"replay": batch.replay, "instruction": batch.instruction, "index": index}, path)
        raise NonFiniteError(
            f"{what} in update {iteration + 1}; no step was taken with it. The batch is in {path}. " + _ADVICE
        )
