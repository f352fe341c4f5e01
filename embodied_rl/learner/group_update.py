"""One update whose minibatches are whole groups in the order of the stream: groups may come one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embodied_rl.algorithms.rows import Rows
from embodied_rl.learner.batches import join_batches
from embodied_rl.learner.gradients import Gradients
from embodied_rl.learner.off_policy import ess_ratio
from embodied_rl.types import RolloutBatch

if TYPE_CHECKING:
    from embodied_rl.learner.learner import Learner

# Rows whose gradient is taken in one go, their unit weights [B, U], and the weight of the whole in its minibatch.
_Piece = tuple[RolloutBatch, Tensor, float]
# Pieces, and the factor that a minibatch with fewer groups counts with.
_Minibatch = tuple[list[_Piece], float]


class GroupUpdate:
    """Takes groups with `add`, in order, and works while more are to come; `finish` after the last.

    What it computes does not depend on when groups come. The gradient of a group is begun as soon as its rows fill a
    microbatch, if the algorithm can prepare a part of a batch (`Algorithm.part_weight`), else as soon as its minibatch
    is whole; the learner's threads go on with it when `add` returns. A minibatch's step is taken when the first
    gradient of the next one is to begin, so the last step falls into `finish`: an update of one minibatch leaves the
    weights alone until then. A last minibatch with fewer groups counts in proportion.
    """

    def __init__(self, learner: Learner, groups: int, iteration: int) -> None:
        self.rows = 0
        self._learner = learner
        self._size = groups
        self._iteration = iteration
        self._groups = 0  # of the present minibatch
        self._pending: list[RolloutBatch] = []
        self._pieces: list[_Piece] = []
        self._gradients: Gradients | None = None
        self._due: _Minibatch | None = None  # whose gradient is begun, and whose step is to come
        self._whole: list[_Minibatch] = []  # for later epochs
        self._steps = 0
        self._sums: dict[str, float] = {}
        self._prepared: list[tuple[int, dict[str, float]]] = []

    def add(self, group: RolloutBatch) -> None:
        """Take the next group."""
        if self._groups == self._size:
            self._end_minibatch()
        self._groups += 1
        self.rows += len(group)
        self._pending.append(group)
        if self._groups == self._size:
            self._take_pending(whole=True)
        elif sum(map(len, self._pending)) >= self._learner.config.microbatch_size:
            self._take_pending(whole=False)

    def finish(self) -> dict[str, float]:
        """Step on what is left, go through the further epochs, and return metrics: means over the steps."""
        self._end_minibatch()
        self._step()
        for _ in range(1, self._learner.algorithm.epochs):
            for minibatch in self._whole:
                for piece in minibatch[0]:
                    self._backward(piece)
                self._due = minibatch
                self._step()
        episodes = sum(count for count, _ in self._prepared)
        names = self._prepared[0][1]
        metrics = {name: sum(count * values[name] for count, values in self._prepared) / episodes for name in names}
        metrics |= {f"train/{name}": value / self._steps for name, value in self._sums.items()}
        return metrics | {"train/num_samples": float(self.rows), "train/steps": float(self._steps)}

    def _take_pending(self, *, whole: bool) -> None:
        """Take the gradient of the groups that wait; whole: they are all that is left of the minibatch."""
        algorithm, policy = self._learner.algorithm, self._learner.policy
        if algorithm.part_weight is None and not whole:
            return
        batch = join_batches(self._pending)
        self._pending = []
        weight, metrics = algorithm.prepare(batch, policy.terms_per_step)
        self._prepared.append((len(batch.episodes), metrics))
        share = float(len(batch.episodes) if algorithm.part_weight == "episodes" else weight.count_nonzero())
        piece = (batch, weight * share, share)
        self._step()  # the last minibatch's, only now: the threads had work while this one came together
        self._backward(piece)
        self._pieces.append(piece)

    def _backward(self, piece: _Piece) -> None:
        """Have a piece's gradient added, in microbatches of about equal size."""
        batch, weight, share = piece
        parts = len(self._learner.collectives.cut(torch.arange(len(batch)), self._learner.config.microbatch_size))
        parts = min(len(batch), self._learner.round_up_to_workers(parts))
        row_weight = torch.full((len(batch),), share / len(batch))
        micros = [
            Rows(batch, index, weight[index], row_weight[index])
            for index in torch.arange(len(batch)).tensor_split(parts)
        ]
        if self._gradients is None:
            self._gradients = self._learner.gradients(self._iteration, check_ratio=self._steps == 0)
        self._gradients.begin(micros)

    def _end_minibatch(self) -> None:
        if self._pending:
            self._take_pending(whole=True)
        self._due = self._pieces, 1.0 if self._steps == 0 else self._groups / self._size
        if self._learner.algorithm.epochs > 1:
            self._whole.append(self._due)
        self._pieces, self._groups = [], 0

    def _step(self) -> None:
        """An optimiser step, if one is due, with the gradient that the pieces of a minibatch added up to."""
        if self._due is None:
            return
        (pieces, factor), self._due = self._due, None
        gradients, self._gradients = self._gradients, None
        assert gradients is not None, "a minibatch has pieces"
        totals = self._learner.collect(gradients, self._iteration)
        scale = factor / sum(share for _, _, share in pieces)
        last = pieces[-1][0]
        sample = ess_ratio([batch for batch, _, _ in pieces])
        norm = self._learner.step(last, torch.arange(len(last)), self._iteration, sample, scale)
        means = {name: value * scale for name, value in totals.items()} | {"grad_norm": norm}
        for name, value in means.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._steps += 1
