"""Collective operations of processes that take the same optimiser steps, each on its share of the rows.

Every rank runs the same `Learner` code on the same batch; only what is here differs. Values are combined in the order
of ranks, so the same number of ranks gives the same bits every time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

ValueT = TypeVar("ValueT")

BUCKET_BYTES = 64 << 20
"""Gradients travel in pieces of about this size: small ones are joined, and no second gradient is ever held whole."""
_POLL_SECONDS = 0.0005


class RankError(RuntimeError):
    """A rank of the learner was lost: no step was taken without it."""


class Collectives:
    """This process is `rank` of `size`; for several, torch's default process group must exist.

    lost: says what became of the other ranks, None while they live; called while waiting for one.
    """

    def __init__(self, rank: int = 0, size: int = 1, lost: Callable[[], str | None] = lambda: None) -> None:
        self.rank = rank
        self.size = size
        self._lost = lost

    def cut(self, index: Tensor, rows: int) -> list[Tensor]:
        """Cut row numbers int64 [B] into pieces of at most `rows`, equally many for each rank if there are enough."""
        if self.size == 1:
            return list(index.split(rows))
        pieces = -(-len(index) // rows)
        pieces += -pieces % self.size
        return list(index.tensor_split(min(pieces, len(index))))

    def shard(self, items: Sequence[ValueT]) -> list[tuple[ValueT, bool]]:
        """This rank's items, each with whether it counts (FSDP pads with items that do not)."""
        return [(item, True) for item in items[self.rank :: self.size]]

    def prepare(self, policy: Any) -> Any:
        """The model that learns, with rank 0's weights; here `policy` itself."""
        self.refresh(policy, policy)
        return policy

    def refresh(self, policy: Any, model: Any) -> None:
        """Give `model`, which learns, the weights that rank 0's `policy` has now."""
        self.copy_from_main([parameter for parameter in policy.parameters() if parameter.requires_grad])

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
        """The values of all ranks, by rank. Values are plain or tensors of the CPU. Raises RankError."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        with Watched(self._lost):
            distributed.all_gather_object(found, value)
        return found

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Put the sum over ranks of each parameter's gradient in its place; where no rank has one it stays None.

        Raises RankError.
        """
        if self.size == 1:
            return
        there = self.gather([parameter.grad is not None for parameter in parameters])
        wanted = [parameter for parameter, *has in zip(parameters, *there, strict=True) if any(has)]
        for parameter in wanted:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([parameter.grad for parameter in wanted if parameter.grad is not None]):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            self._wait(distributed.all_reduce(flat, async_op=True))
            _unpack(flat, bucket)

    def copy_from_main(self, tensors: Sequence[Tensor]) -> None:
        """Give every rank rank 0's values of `tensors`, in place. Raises RankError."""
        if self.size == 1:
            return
        with torch.no_grad():
            for bucket in _buckets(list(tensors)):
                flat = torch.cat([tensor.flatten() for tensor in bucket])
                self._wait(distributed.broadcast(flat, 0, async_op=True))
                _unpack(flat, bucket)

    def message(self, content: bytes | bytearray, length: int) -> bytes:
        """Rank 0's `content`, of `length` bytes, on every rank; that of others is ignored. Raises RankError."""
        data = torch.frombuffer(bytearray(content or length), dtype=torch.uint8)
        self._wait(distributed.broadcast(data, 0, async_op=True))
        return data.numpy().tobytes()

    def _wait(self, work: Any) -> None:
        """Wait for a collective, but not for a rank that has died: on a GPU that would be for ever."""
        with Watched(self._lost):
            while not work.is_completed():
                if (what := self._lost()) is not None:
                    raise RankError(what)
                time.sleep(_POLL_SECONDS)
            work.wait()


SINGLE_PROCESS = Collectives()
"""A learner of one process."""


class Watched:
    """A context that turns torch's errors about a lost peer into a RankError that names it."""

    def __init__(self, lost: Callable[[], str | None]) -> None:
        self._lost = lost

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, RankError):
            until = time.monotonic() + 5.0  # the connection breaks before the process is gone
            while (what := self._lost()) is None and time.monotonic() < until:
                time.sleep(0.01)
            raise RankError(what or f"the ranks of the learner lost each other: {error}") from error


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
