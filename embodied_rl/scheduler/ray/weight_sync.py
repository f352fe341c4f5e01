"""What a policy's replica elsewhere needs to hear: parameters that learn, and buffers; of those only what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embodied_rl.learner.types import moving_tensors

BUCKET_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TensorDelta:
    """New values of a tensor: of all of it, or of flat positions int32 [n] (int64 from 2^31 elements on)."""

    values: Tensor
    positions: Tensor | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes to send."""
        return self.values.nbytes + (0 if self.positions is None else self.positions.nbytes)


Bucket = Mapping[str, TensorDelta]


class WeightDeltaEncoder:
    """Remembers what replicas have, and says what they lack. Comparison is by bits, so nothing is lost."""

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy
        self._sent = {name: tensor.detach().cpu().clone() for name, tensor in moving_tensors(policy).items()}

    def full_state(self) -> list[Bucket]:
        """For a replica that has only the starting weights: all that training changes, as last sent."""
        return _buckets({name: TensorDelta(tensor.clone()) for name, tensor in self._sent.items()})

    def changes(self) -> list[Bucket]:
        """What changed since the last call (at first: since the start)."""
        found: dict[str, TensorDelta] = {}
        for name, tensor in moving_tensors(self._policy).items():
            now, before = tensor.detach().cpu(), self._sent[name]
            changed = (_bits(now) != _bits(before)).flatten()
            count = int(changed.count_nonzero())
            if count == 0:
                continue
            place = torch.int64 if changed.numel() >= 2**31 else torch.int32
            if count * (now.itemsize + place.itemsize) < now.nbytes:  # whichever is shorter
                where = changed.nonzero()[:, 0]
                found[name] = TensorDelta(now.flatten()[where], where.to(place))
            else:
                found[name] = TensorDelta(now.clone())
            before.copy_(now)
        return _buckets(found)


def apply_deltas(policy: nn.Module, buckets: Sequence[Bucket]) -> None:
    """Bring changes into a replica; KeyError for a tensor that it has not."""
    own = moving_tensors(policy)
    with torch.no_grad():
        for bucket in buckets:
            for name, change in bucket.items():
                tensor = own[name]
                if change.positions is None:
                    tensor.copy_(change.values)
                    continue
                flat = tensor.flatten()  # a copy where it is not contiguous
                flat[change.positions.long().to(tensor.device)] = change.values.to(tensor)
                if not tensor.is_contiguous():
                    tensor.copy_(flat.view(tensor.shape))


def _bits(tensor: Tensor) -> Tensor:
    """As integers: -0.0 is not 0.0, and NaN equals itself."""
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])


def _buckets(changes: Mapping[str, TensorDelta]) -> list[Bucket]:
    """Pieces of about BUCKET_BYTES, so that neither many small nor one huge message is sent."""
    out: list[dict[str, TensorDelta]] = []
    size = BUCKET_BYTES
    for name, change in changes.items():
        if size + change.size_bytes > BUCKET_BYTES:
            out.append({})
            size = 0
        out[-1][name] = change
        size += change.size_bytes
    return list(out)
