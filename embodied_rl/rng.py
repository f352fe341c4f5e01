"""Randomness that depends on the episode and the decision only, never on env, batch size or schedule.

Every draw comes from Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") keyed by
(run seed, stream, episode, decision).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embodied_rl.types import Array


def philox(seed: int, *counter: int) -> np.random.Generator:
    """Return a generator for `seed` and up to three counters, each in [0, 2**63)."""
    words = [*counter, *([0] * (3 - len(counter)))]
    return np.random.Generator(np.random.Philox(key=[seed, 0x5EED], counter=[0, *words]))


@dataclass(frozen=True, slots=True)
class DecisionRng:
    """The random numbers of N decisions: row i depends on (seed[i], decision[i]) alone.

    seed, decision: int64 [N].
    """

    seed: Array
    decision: Array

    def uniform(self, count: int) -> Array:
        """float32 [N, count] in [0, 1)."""
        return self._draw(count, normal=False)

    def normal(self, count: int) -> Array:
        """float32 [N, count], standard normal."""
        return self._draw(count, normal=True)

    def _draw(self, count: int, *, normal: bool) -> Array:
        out = np.empty((len(self.seed), count), dtype=np.float32)
        for row, (seed, decision) in enumerate(zip(self.seed, self.decision, strict=True)):
            generator = philox(int(seed), int(decision), 1 if normal else 0)
            out[row] = (
                generator.standard_normal(count, dtype=np.float32)
                if normal
                else generator.random(count, dtype=np.float32)
            )
        return out
