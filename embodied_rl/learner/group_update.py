"""One update over minibatches of whole groups, which may arrive one by one while others still run."""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_rl.algorithms.base import Rows
from embodied_rl.learner.batches import join_batches
from embodied_rl.learner.gradients import Gradients
from embodied_rl.learner.off_policy import ess_ratio
from embodied_rl.learner.optimizer_step import OptimizerStep
from embodied_rl.learner.row_selection import RowSelection
from embodied_rl.types import RolloutBatch

# Rows prepared together, their unit weights [B, U], and the weight of the whole in its minibatch.
_Piece = tuple[RolloutBatch, Tensor, float]
# Pieces, and the factor by which a minibatch with fewer groups counts.
_Minibatch = tuple[list[_Piece], float]


class GroupUpdate:
    """Streams groups into minibatches: `add` for each group in order, then `finish`.

    Backward passes start as soon as the groups fill a microbatch if the algorithm can prepare a part of a batch (GRPO),
    else as soon as the minibatch is complete (PPO). The learner's threads go on with them when `add` returns.
    The optimiser step of a minibatch is deferred until the next minibatch starts, so that waiting for it overlaps; the
    last step is taken by `finish`. An update of one minibatch thus leaves the weights alone until then.
    A last minibatch with fewer groups counts in proportion. The result does not depend on when groups arrive.
    selection: which rows of each minibatch are learned from.
    """

    def __init__(self, step: OptimizerStep, selection: RowSelection, groups: int, iteration: int) -> None:
        self.rows = 0
        self._learned = 0
        self._selection = selection
        self._optimizer_step = step
        # So that each rank has about a microbatch.
        self._part_rows = step.config.microbatch_size * step.collectives.size
        self._size = groups
        self._iteration = iteration
        self._groups = 0  # of the present minibatch
        self._pending: list[RolloutBatch] = []
        self._pieces: list[_Piece] = []
        self._gradients: Gradients[Rows] | None = None
        self._due: _Minibatch | None = None  # its backward passes are begun, its step is to come
        self._whole: list[_Minibatch] = []  # for later epochs
        self._steps = 0
        self._sums: dict[str, float] = {}
        self._prepared: list[tuple[int, dict[str, float]]] = []

    def add(self, group: RolloutBatch) -> None:
        """Take the next group."""
        if self._groups == self._size:
            self._end_minibatch()  # not when it was full: its backward passes ran while this group was awaited
        self._groups += 1
        self.rows += len(group)
        self._pending.append(group)
        if self._groups == self._size:
            self._take_pending(whole=True)
        elif sum(map(len, self._pending)) >= self._part_rows:
            self._take_pending(whole=False)

    def finish(self) -> dict[str, float]:
        """Step on what is left, go through the further epochs, and return metrics: means over the steps."""
        self._end_minibatch()
        self._step()
        epochs = self._optimizer_step.algorithm.epochs
        for epoch in range(1, epochs):
            for minibatch in self._whole:
                for piece in minibatch[0]:
                    self._backward(piece, epoch)
                self._due = minibatch
                self._step()
        episodes = sum(count for count, _ in self._prepared)
        names = self._prepared[0][1]
        metrics = {name: sum(count * values[name] for count, values in self._prepared) / episodes for name in names}
        metrics |= {f"train/{name}": value / self._steps for name, value in self._sums.items()}
        return metrics | {"train/num_samples": self._learned / epochs, "train/steps": float(self._steps)}

    def _take_pending(self, *, whole: bool) -> None:
        """Begin the backward passes of the pending groups. whole: the minibatch is complete with them."""
        algorithm = self._optimizer_step.algorithm
        if algorithm.part_weight is None and not whole:  # PPO normalises advantages over a minibatch
            return
        batch = join_batches(self._pending)
        self._pending = []
        weight, metrics = algorithm.prepare(batch, self._optimizer_step.model.terms_per_step)
        self._prepared.append((len(batch.episodes), metrics))
        share = float(len(batch.episodes) if algorithm.part_weight == "episodes" else weight.count_nonzero())
        # Weights add up to 1 over each piece. Times its share they weigh alike in all of them; `_step` divides by the
        # sum of the shares.
        piece = (batch, weight * share, share)
        self._step()  # of the previous minibatch: the threads had work while this one was collected
        self._backward(piece, 0)
        self._pieces.append(piece)

    def _backward(self, piece: _Piece, epoch: int) -> None:
        """Begin the backward passes of a piece, in microbatches of about equal size."""
        batch, weight, share = piece
        step, size = self._optimizer_step, self._optimizer_step.config.microbatch_size
        # Pieces of a minibatch depend on the number of ranks, which must not matter.
        by_group = step.algorithm.part_weight is not None
        rows, factor = self._selection.take(batch, self._iteration, epoch, by_group=by_group)
        self._learned += len(rows)
        own = step.collectives.own(batch, rows)
        # None is empty, and no thread idles at the end.
        parts = min(len(own), step.round_up_to_threads(-(-len(own) // size)))
        pieces = step.collectives.pad(batch, rows, size, own.tensor_split(parts) if parts else [])
        weight, row_weight = weight * factor[:, None], factor * (share / len(batch))
        if self._gradients is None:
            self._gradients = step.begin(self._iteration, check_ratio=self._steps == 0)  # later the policy has moved
        self._gradients.begin(
            [(Rows(batch, index, weight[index], row_weight[index]), counts) for index, counts in pieces]
        )

    def _end_minibatch(self) -> None:
        if self._pending:
            self._take_pending(whole=True)
        # A short minibatch counts in proportion, unless it is the only one of its batch.
        self._due = self._pieces, 1.0 if self._steps == 0 else self._groups / self._size
        if self._optimizer_step.algorithm.epochs > 1:
            self._whole.append(self._due)
        self._pieces, self._groups = [], 0

    def _step(self) -> None:
        """Take the optimiser step that is due, if any."""
        if self._due is None:
            return
        (pieces, factor), self._due = self._due, None
        gradients, self._gradients = self._gradients, None
        assert gradients is not None, "a minibatch has pieces"
        totals = self._optimizer_step.collect(gradients, self._iteration)
        scale = factor / sum(share for _, _, share in pieces)
        last = pieces[-1][0]  # any rows will do: they are dumped where the norm is not finite
        sample = ess_ratio([batch for batch, _, _ in pieces])
        at = self._iteration, self._steps
        moved = self._optimizer_step.apply(last, torch.arange(len(last)), at, sample, scale)
        means = {name: value * scale for name, value in totals.items()} | moved
        for name, value in means.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._steps += 1
