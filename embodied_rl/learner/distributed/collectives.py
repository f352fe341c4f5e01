"""Collective operations of ranks: processes that take the same optimiser steps, each on the rows of its own episodes.

Every rank runs the same `Learner` code on the same batch; only what is here differs. Values are combined in the order
of ranks, so the same number of ranks gives the same bits every time.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from embodied_rl.learner.types import moving_tensors
from embodied_rl.types import RolloutBatch

ValueT = TypeVar("ValueT")

BUCKET_BYTES = 64 << 20
"""Gradients travel in pieces of about this size: small ones are joined, and no second gradient is ever held whole."""
_POLL_SECONDS = 0.0005


class RankError(RuntimeError):
    """A rank was lost: no step was taken without it."""


class Collectives:
    """This process is `rank` of `size`; for several, torch's default process group must exist."""

    example_rows = 0
    """How many rows of a group every rank gets with their frames."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def own(self, batch: RolloutBatch, index: Tensor) -> Tensor:
        """Those of the rows `index` (int64 [r]) whose episodes this rank ran."""
        return index if self.size == 1 else index[self.owners(batch, index) == self.rank]

    def owners(self, batch: RolloutBatch, index: Tensor) -> Tensor:
        """The rank that has each of the rows `index`: groups are dealt by number; int64 [r]."""
        groups = torch.tensor([episode.spec.group for episode in batch.episodes])
        return groups[batch.episode[index]] % self.size

    def pad(self, batch: RolloutBatch, index: Tensor, rows: int, pieces: Sequence[Tensor]) -> list[tuple[Tensor, bool]]:
        """This rank's `pieces` of the rows `index`, of at most `rows` each, and whether each counts.

        FSDP adds some that do not count.
        """
        return [(piece, True) for piece in pieces if len(piece)]

    def prepare(self, policy: Any) -> Any:
        """The model that learns, with rank 0's weights; here `policy` itself."""
        self.refresh(policy, policy)
        return policy

    def refresh(self, policy: Any, model: Any) -> None:
        """Give `policy`, and `model`, which learns, the weights and running statistics of rank 0's `policy`."""
        self.copy_from_main([*moving_tensors(policy).values()])

    def publish(self, policy: Any, model: Any) -> None:
        """Copy what `model` learned to `policy`; here they are the same."""

    def backward(self, loss: Tensor, moving: Sequence[nn.Parameter]) -> None:
        """Add the gradient of `loss` to those of the parameters `moving`."""
        loss.backward(inputs=moving)

    def clip(self, moving: Sequence[nn.Parameter], most: float) -> float:
        """Clip the gradient of `moving` to the norm `most` and return its norm before."""
        return float(nn.utils.clip_grad_norm_(moving, most))

    def gather_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The whole state of an optimiser, as a single process would have it."""
        return optimizer.state_dict()

    def scatter_state(self, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """This rank's part of the state that `gather_state` returned."""
        return state

    def gather(self, value: ValueT) -> list[ValueT]:
        """The values of all ranks, by rank: anything that can be pickled. Raises RankError."""
        if self.size == 1:
            return [value]
        # Torch warns of memory it can't write to.
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._run(distributed.all_gather, sizes, torch.tensor([len(data)]))
        # all_gather wants parts of one length: all are padded to the longest.
        lengths = [int(size) for size in sizes]
        parts = [torch.zeros(max(lengths), dtype=torch.uint8) for _ in lengths]
        self._run(distributed.all_gather, parts, torch.nn.functional.pad(data, (0, max(lengths) - len(data))))
        return [
            pickle.load(io.BytesIO(part[:length].numpy().tobytes()))
            for part, length in zip(parts, lengths, strict=True)
        ]

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Put the sum over ranks of each parameter's gradient in its place; where no rank has one it stays None.

        Raises RankError.
        """
        if self.size == 1:
            return
        # A rank without rows has no gradient, but all must add up the same tensors.
        there = self.gather([parameter.grad is not None for parameter in parameters])
        wanted = [parameter for parameter, *has in zip(parameters, *there, strict=True) if any(has)]
        for parameter in wanted:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([parameter.grad for parameter in wanted if parameter.grad is not None]):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            self._run(distributed.all_reduce, flat)
            _unpack(flat, bucket)

    def copy_from_main(self, tensors: Sequence[Tensor]) -> None:
        """Give every rank rank 0's values of `tensors`, in place. Raises RankError."""
        if self.size == 1:
            return
        with torch.no_grad():
            for bucket in _buckets(list(tensors)):
                flat = torch.cat([tensor.flatten() for tensor in bucket])
                self._run(distributed.broadcast, flat, 0)
                _unpack(flat, bucket)

    def _run(self, operation: Any, *arguments: Any) -> None:
        """Run a collective; while it waits for other ranks, signals are heard."""
        try:
            # Python hears signals between its own steps only, not within torch's `wait`.
            work = operation(*arguments, async_op=True)
            while not work.is_completed():
                time.sleep(_POLL_SECONDS)
            work.wait()  # at once; raises what went wrong
        except RuntimeError as error:  # torch's own, when a connection breaks
            raise RankError(lost(error)) from error


SINGLE_PROCESS = Collectives()
"""The only process."""


def lost(error: BaseException) -> str:
    """What to say when other ranks cannot be reached any more."""
    why = " ".join(str(error).split())[:160]
    return f"another rank stopped; no step was taken without it ({why}). The last checkpoint is intact: resume from it."


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, about BUCKET_BYTES together."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (
            (tensor.dtype, tensor.device) != (bucket[0].dtype, bucket[0].device)
            or sum(member.nbytes for member in bucket) + tensor.nbytes > BUCKET_BYTES
        ):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _unpack(flat: Tensor, bucket: Sequence[Tensor]) -> None:
    for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
        tensor.copy_(part.view_as(tensor))
