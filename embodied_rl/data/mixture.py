"""Several data sets as one: batches drawn by weight, each part from the frames of one data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.data.chunks import ChunkDataset, SftBatch, drop_history_rows, random_shift, walk
from embodied_rl.rng import DataStream, philox
from embodied_rl.types import Array


@dataclass(frozen=True, slots=True)
class Augmentation:
    """pixels: most of a random shift. drop_history: share of the samples that do not see their earlier actions."""

    pixels: int
    drop_history: float


@dataclass(frozen=True, slots=True)
class Part:
    """The samples of one data set. key: of its statistics. weight: above 0, its share of the batches."""

    samples: ChunkDataset
    key: str = "default"
    weight: float = 1.0


@dataclass(slots=True)
class Mixture:
    """Data sets of different sizes, cameras and robots, which never share a batch's tensors.

    Each sample of a batch is of a data set drawn by weight; within a data set samples walk through one permutation
    after another. Both depend on the seed and the step alone, so a resumed run goes on exactly.
    """

    parts: Sequence[Part]
    _before: list[Array] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(part.samples) for part in self.parts)

    @property
    def several(self) -> bool:
        """Whether data sets have statistics of their own."""
        return len({part.key for part in self.parts}) > 1

    def batch(self, step: int, batch_size: int, seed: int, change: Augmentation) -> list[SftBatch]:
        """The batch of a step: one `SftBatch` a data set that has samples in it."""
        first, counts = self._drawn(step, batch_size, seed), self._counts(step, batch_size, seed)
        samples = [
            walk(len(part.samples), int(begin), int(count), seed, number) if count else np.zeros(0, np.int64)
            for number, (part, begin, count) in enumerate(zip(self.parts, first, counts, strict=True))
        ]
        return self._read(samples, step, seed, change)

    def draw(self, number: int, batch_size: int, seed: int, change: Augmentation) -> list[SftBatch]:
        """A batch of samples drawn with replacement, as `batch` gives it.

        It knows nothing of other batches: `number` may be any, below 2**63.
        """
        samples = [
            philox(seed, DataStream.DRAW, number, place).integers(len(part.samples), size=int(count))
            for place, (part, count) in enumerate(zip(self.parts, self._counts(number, batch_size, seed), strict=True))
        ]
        return self._read(samples, number, seed, change)

    def _read(self, samples: Sequence[Array], step: int, seed: int, change: Augmentation) -> list[SftBatch]:
        """The given sample numbers of each data set, augmented; data sets without any are left out."""
        found = []
        for number, (part, wanted) in enumerate(zip(self.parts, samples, strict=True)):
            if not len(wanted):
                continue
            batch = part.samples.batch(wanted)
            batch.key = part.key
            batch.images = random_shift(batch.images, change.pixels, seed, step, number)
            batch.drop_history = drop_history_rows(len(wanted), change.drop_history, seed, step, number)
            found.append(batch)
        return found

    def _counts(self, step: int, batch_size: int, seed: int) -> Array:
        """int64 [parts]: samples of each data set in the batch of a step."""
        if len(self.parts) == 1:
            return np.array([batch_size])
        weights = np.array([part.weight for part in self.parts])
        edges = np.cumsum(weights / weights.sum())[:-1]
        drawn = np.searchsorted(edges, philox(seed, DataStream.MIXTURE, step).random(batch_size), side="right")
        return np.bincount(drawn, minlength=len(self.parts))

    def _drawn(self, step: int, batch_size: int, seed: int) -> Array:
        """int64 [parts]: samples of each data set in all batches before that of a step."""
        if len(self.parts) == 1:
            return np.array([step * batch_size])
        while len(self._before) <= step:
            last = len(self._before) - 1
            more = self._before[-1] + self._counts(last, batch_size, seed) if self._before else np.int64(0)
            self._before.append(np.zeros(len(self.parts), np.int64) + more)
        return self._before[step]
