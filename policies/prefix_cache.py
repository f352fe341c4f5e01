"""What a frozen vision tower and language model computed in the rollout, kept for the epochs of the update.

An entry is found by its content: a digest of the row's images and prompt. Given the weights these alone decide it. So
a row that another process acted on, or that a resumed run has never seen, is a miss and computed again, and there is no
number that could name a wrong entry. Of pi0's state token nothing is kept: the expert reads it, and trains.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.policies.nn.decoder import GradientKV
from embodied_rl.policies.pi0.model import LanguagePart, valid_slots

GIB = 2**30


class ReadLanguage(Protocol):
    """`Pi0Model.read_language` with its options."""

    def __call__(self, images: Tensor, ids: Tensor, lengths: Sequence[int]) -> LanguagePart: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One row's language part. cache: keys and values [2, layers, kv_heads, S, head_dim]; summary: [D] or None."""

    cache: Tensor
    summary: Tensor | None

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.cache.nbytes + (0 if self.summary is None else self.summary.nbytes)


class PrefixCache:
    """At most `max_bytes` of entries in host memory, the oldest out first; for several threads.

    found, missed: rows that `read` has been asked for since `drain`.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.found = self.missed = 0
        self._used = 0
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._made_with: Hashable = None
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> PrefixCache:
        """A replica acts with the same frozen weights, so that the original finds what it left."""
        return self

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, parameters: Sequence[nn.Parameter], options: Hashable) -> None:
        """Forget everything unless it was made with these parameters, unchanged since, and these options.

        RuntimeError if a parameter trains.
        """
        if any(parameter.requires_grad for parameter in parameters):
            raise RuntimeError("prefixes are kept, but vision tower or language model train: freeze_language_model()")
        made_with = options, tuple((parameter.data_ptr(), parameter._version) for parameter in parameters)
        with self._lock:
            if made_with != self._made_with:
                self._entries.clear()
                self._used, self._made_with = 0, made_with

    def drain(self) -> dict[str, float]:
        """Rows found and missed since the last call, as metrics."""
        with self._lock:
            counts = {"prefix/found": float(self.found), "prefix/missed": float(self.missed)}
            self.found = self.missed = 0
        return counts

    def write(self, read: ReadLanguage, images: Tensor, ids: Tensor, lengths: Sequence[int]) -> LanguagePart:
        """Compute, and keep, the language part of rows on any device."""
        part = read(images.to(ids.device), ids, lengths)
        for key, entry in zip(digests(images, ids, lengths), _rows(part, to_host=True), strict=True):
            self.put(key, entry)
        return part

    def read(self, read: ReadLanguage, images: Tensor, ids: Tensor, lengths: Sequence[int]) -> LanguagePart:
        """The language part of rows: kept, or for want of that computed, and then not kept: `write` makes the order."""
        keys = digests(images, ids, lengths)
        with self._lock:
            found = [self._entries.get(key) for key in keys]
            missing = [row for row, entry in enumerate(found) if entry is None]
            self.found += len(keys) - len(missing)
            self.missed += len(missing)
        if len(missing) == len(keys):
            return read(images.to(ids.device), ids, lengths)
        if missing:
            few = torch.tensor(missing)
            part = read(images[few].to(ids.device), ids[few.to(ids.device)], [lengths[row] for row in missing])
            computed = _rows(part, to_host=False)
            for row, entry in zip(missing, computed, strict=True):
                found[row] = entry
        return _join([entry for entry in found if entry is not None], ids.device)

    def put(self, key: bytes, entry: Entry) -> None:
        """Keep an entry as the newest; the oldest make room. UserError if it alone is larger than the bound."""
        if entry.nbytes > self.max_bytes:
            raise UserError(
                f"--policy.prefix-cache-gib {self.max_bytes / GIB:g} has no room for one decision's prefix, "
                f"{entry.nbytes / GIB:.2g} GiB: raise it, or 0 to keep none"
            )
        with self._lock:
            old = self._entries.pop(key, None)
            self._used += entry.nbytes - (0 if old is None else old.nbytes)
            self._entries[key] = entry
            while self._used > self.max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._used -= oldest.nbytes


def digests(images: Tensor, ids: Tensor, lengths: Sequence[int]) -> list[bytes]:
    """128 bits for each row of images uint8 [N,V,H,W,3] and prompt ids [N,T], valid up to lengths[i]."""
    pixels, words = images.cpu().contiguous().numpy(), ids.cpu().numpy()
    return [
        hashlib.blake2b(words[row, :count].tobytes() + pixels[row].tobytes(), digest_size=16).digest()
        for row, count in enumerate(lengths)
    ]


def _rows(part: LanguagePart, *, to_host: bool) -> list[Entry]:
    """The rows of `part` without their padding; to_host: copies in host memory, else views."""
    cache = torch.stack([torch.stack(both) for both in part.cache.layers()], dim=1)  # [2, layers, N, kv_heads, S, head]
    summary = part.summary
    if to_host:
        cache, summary = cache.cpu(), None if summary is None else summary.cpu()
    entries = []
    for row, length in enumerate(part.lengths):
        own, mean = cache[:, :, row, :, :length], None if summary is None else summary[row]
        if to_host:  # the whole call's memory must not live as long as its last row
            own, mean = own.clone(memory_format=torch.contiguous_format), None if mean is None else mean.clone()
        entries.append(Entry(own, mean))
    return entries


def _join(entries: Sequence[Entry], device: torch.device) -> LanguagePart:
    """Rows side by side on `device`, padded to the longest."""
    used = [entry.cache.shape[3] for entry in entries]
    kinds, layers, heads, _, width = entries[0].cache.shape
    slots = max(used)
    like = entries[0].cache
    both = torch.zeros(kinds, layers, len(entries), heads, slots, width, dtype=like.dtype, device=device)
    for row, entry in enumerate(entries):
        both[:, :, row, :, : used[row]] = entry.cache.to(device)
    means = [entry.summary.to(device) for entry in entries if entry.summary is not None]
    return LanguagePart(
        GradientKV.holding(both[0], both[1]),
        used,
        valid_slots(used, slots, device),
        torch.stack(means) if means else None,
    )
