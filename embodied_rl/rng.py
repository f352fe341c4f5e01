"""Random numbers that depend on the episode and the decision only, never on env, batch size or schedule.

Every draw comes from Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") keyed by
a seed and three counters, the first of which names the stream. Streams of one kind of seed are disjoint by
construction: the tables below number them, and the decisions of an episode lie under all other streams of its seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, unique

import numpy as np

from embodied_rl.types import Array

_KEY = 0x5EED
_MULTIPLIERS = np.array([[[0xD2E7470EE14C6C93]], [[0xCA5A826395121157]]], np.uint64)
_KEY_STEPS = np.array([[[0x9E3779B97F4A7C15]], [[0xBB67AE8584CAA73B]]], np.uint64)
_ROUNDS = 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MIN_ROWS, _MAX_COUNT = 32, 128
"""From so many rows and up to so many numbers a row, vectorised arithmetic beats one NumPy generator a row."""


DECISIONS = 2**40
"""Numbers of decisions, the first counter of `DecisionRng`, lie below."""
_CANDIDATE = 2**32
"""What lies between the first counters of a decision's candidate chunks; episodes have fewer decisions."""
MAX_CANDIDATES = DECISIONS // _CANDIDATE
"""Candidate chunks that a decision has numbers for."""


@unique
class EpisodeStream(IntEnum):
    """First counters under an episode's seed, besides the decisions of its policy."""

    CAMERA = DECISIONS
    LIGHT = DECISIONS + 1
    TEXTURE = DECISIONS + 2
    OBJECT = DECISIONS + 3
    INSTRUCTION = DECISIONS + 4
    GYMNASIUM_STEPS = DECISIONS + 16
    WARP_LOOKS = DECISIONS + 17
    WARP_PHYSICS = DECISIONS + 18
    PUSHES = DECISIONS + 19
    GRASPS = DECISIONS + 20
    GYMNASIUM_PROBE = DECISIONS + 21
    TAKEOVER = DECISIONS + 22
    SENSOR_NOISE = DECISIONS + 23


@unique
class RunStream(IntEnum):
    """First counters under the seed of a training run or an evaluation."""

    TASK_ORDER = 1
    STATE_ORDER = 2
    EPISODE = 3
    EVALUATION = 4
    SHUFFLE = 5
    ROW_SELECTION = 6
    ADAPTIVE_START = 7
    ADAPTIVE_STATE = 8
    PERTURB = 9
    REDRAW = 10
    SIGNS = 11
    PERMUTATIONS = 12
    DEMONSTRATIONS = 13
    IMITATION = 14
    CANDIDATES = 15
    CRITIC = 16


@unique
class DataStream(IntEnum):
    """First counters under the seed of a training on a data set."""

    SPLIT = 1
    ORDER = 2
    SHIFT = 3
    DROP_HISTORY = 4
    MIXTURE = 5
    DRAW = 6
    LOSS_NOISE = 7


@unique
class TwinStream(IntEnum):
    """First counters under the seed of a simulated robot."""

    PLANT = 1
    NODE = 2


@unique
class FixedSeed(IntEnum):
    """Seeds of what is the same in every run."""

    MANISKILL_STATES = 0x35
    ENVPOOL_STATES = 0xE9
    METAWORLD_STATES = 0x3E7A
    PI0_LOSS = 0xF10
    PI0_VALIDATION = 0xF11


GYMNASIUM_RESET = 0x6E1
"""The only first counter under the number of an initial state."""


def philox(seed: int, *counter: int) -> np.random.Generator:
    """Return a generator for `seed` and up to three counters, each in [0, 2**63); the first names the stream."""
    words = [*counter, *([0] * (3 - len(counter)))]
    return np.random.Generator(np.random.Philox(key=[seed, _KEY], counter=[0, *words]))


@dataclass(frozen=True, slots=True)
class DecisionRng:
    """The random numbers of N decisions: row i depends on (seed[i], decision[i]) alone.

    Args:
        seed: int64 [N], the episodes' seeds.
        decision: int64 [N], the number of the decision within its episode, below `DECISIONS` in any that ends.

    Example:
        rng = DecisionRng(seed=np.array([7, 8]), decision=np.array([0, 3]))
        noise = rng.normal(4)  # [2, 4]; row 1 is the same in any other batch
    """

    seed: Array
    decision: Array

    def candidates(self, count: int) -> DecisionRng:
        """N * `count` rows: the numbers of `count` chunks to choose from, at most MAX_CANDIDATES, decision by decision.

        The first of each decision are its own, as without others.
        """
        numbers = self.decision[:, None] + _CANDIDATE * np.arange(count, dtype=np.int64)
        return DecisionRng(np.repeat(self.seed, count), numbers.reshape(-1))

    def uniform(self, count: int) -> Array:
        """float32 [N, count] in [0, 1)."""
        if len(self.seed) < _MIN_ROWS or count > _MAX_COUNT:
            return _draw_by_row(self.seed, self.decision, count, normal=False)
        words = _words(self.seed, self.decision, 0, count)
        return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)

    def normal(self, count: int) -> Array:
        """float32 [N, count], standard normal."""
        if len(self.seed) < _MIN_ROWS or count > _MAX_COUNT:
            return _draw_by_row(self.seed, self.decision, count, normal=True)
        return _normal(self.seed, self.decision, count)


def _draw_by_row(seeds: Array, decisions: Array, count: int, *, normal: bool) -> Array:
    """The definition of the draws: one NumPy generator a row."""
    out = np.empty((len(seeds), count), dtype=np.float32)
    for row, (seed, decision) in enumerate(zip(seeds, decisions, strict=True)):
        generator = philox(int(seed), int(decision), int(normal))
        out[row] = (generator.standard_normal if normal else generator.random)(count, dtype=np.float32)
    return out


def _words(seeds: Array, decisions: Array, stream: int, count: int) -> Array:
    """The first `count` 32-bit words of every row's generator, uint32 [N, count]."""
    blocks = -(-count // 8)
    x = np.zeros((2, len(seeds), blocks), np.uint64)  # counter words 0 and 2
    y = np.zeros_like(x)  # counter words 1 and 3
    x[0], x[1], y[0] = np.arange(1, blocks + 1), stream, decisions[:, None]
    key = np.stack([seeds.astype(np.uint64), np.full(len(seeds), _KEY, np.uint64)])[:, :, None]
    low_factor, high_factor = _MULTIPLIERS & _LOW, _MULTIPLIERS >> _HALF
    for _ in range(_ROUNDS):
        # the upper 64 bits of x * _MULTIPLIERS, from products of 32-bit halves; none of the sums overflows
        low, high = x & _LOW, x >> _HALF
        cross = high * low_factor
        carry = (low * low_factor >> _HALF) + (cross & _LOW) + low * high_factor
        upper = high * high_factor + (cross >> _HALF) + (carry >> _HALF)
        x, y = upper[::-1] ^ y ^ key, (x * _MULTIPLIERS)[::-1]
        key = key + _KEY_STEPS
    block = np.stack([x[0], y[0], x[1], y[1]], axis=-1).astype("<u8", copy=False)
    return block.view("<u4").reshape(len(seeds), blocks * 8)[:, :count]


def _ziggurat() -> tuple[Array, Array, Array]:
    """Tables of the ziggurat with 256 strips (Marsaglia & Tsang 2000) in NumPy's order, strip 0 at the bottom.

    Returns:
        (scale, inside, density): a strip's half width / 2**23, float32; the 23-bit numbers below which a point lies
        under the curve whatever its height; exp(-x**2 / 2) at its outer edge.
    """
    edge, area = 3.6541528853610088, 0.00492867323399
    x = np.zeros(256)
    x[255] = edge
    for i in range(255, 1, -1):
        x[i - 1] = math.sqrt(-2 * math.log(area / x[i] + math.exp(-0.5 * x[i] ** 2)))
    width = x.copy()
    width[0] = area / math.exp(-0.5 * edge**2)
    inside = np.append(edge / width[0], x[:-1] / x[1:]) * 2.0**23
    return (width / 2.0**23).astype(np.float32), inside, np.exp(-0.5 * x**2)


_SCALE, _INSIDE, _DENSITY = _ziggurat()
_MARGIN = 64.0
"""Points this close (in 2**-23) to a strip's inner part are left to NumPy, whose tables are rounded in another way."""


def _normal(seeds: Array, decisions: Array, count: int) -> Array:
    """NumPy's float32 ziggurat on all rows at once.

    A word's 8 lowest bits choose a strip, then come a sign and a 23-bit position. 98.8 % of the words are accepted by
    position. For another one the next word decides (`_reject`). Rows that need a rarer step are drawn by NumPy.
    """
    words = _words(seeds, decisions, 1, count + count // 16 + 8)
    strip, position = (words & np.uint32(0xFF)).astype(np.intp), words >> np.uint32(9)
    value = position.astype(np.float32) * _SCALE[strip]
    np.negative(value, out=value, where=(words & np.uint32(0x100)) != 0)
    used = position < (_INSIDE - _MARGIN)[strip]
    rows = np.flatnonzero(~used[:, :count].all(axis=1))
    used_by_row, unclear = _reject(used[rows], value[rows], strip[rows], words[rows])
    used[rows] = used_by_row
    number = used.cumsum(axis=1, dtype=np.int32)
    unclear |= number[rows, -1] < count
    used &= number <= count
    used[rows[unclear]] = np.arange(words.shape[1]) < count  # any: they are drawn again
    out = value[used].reshape(len(seeds), count)
    again = rows[unclear]
    out[again] = _draw_by_row(seeds[again], decisions[again], count, normal=True)
    return out


def _reject(used: Array, value: Array, strip: Array, words: Array) -> tuple[Array, Array]:
    """Decide the words that are not accepted by position, the first of every row, then the second and so on.

    Returns:
        (used, unclear): which words give a value, bool [n, W]; the rows that need the tail of the distribution or are
        too close to call, bool [n].
    """
    pending, unclear = ~used, np.zeros(len(used), np.bool_)
    pending[:, -1] = False  # its uniform number would lie beyond the words
    while (rows := np.flatnonzero(pending.any(axis=1))).size:
        at = pending[rows].argmax(axis=1)
        level = strip[rows, at]
        uniform = (words[rows, at + 1] >> np.uint32(8)) * 2.0**-24
        height = _DENSITY[level - 1] * uniform + _DENSITY[level] * (1 - uniform)
        gap = np.exp(-0.5 * value[rows, at].astype(np.float64) ** 2) - height
        inner = words[rows, at] >> np.uint32(9) < _INSIDE[level] + _MARGIN
        unclear[rows] |= (level == 0) | (inner & (level != 1)) | (np.abs(gap) < 1e-5)
        used[rows, at], used[rows, at + 1] = gap > 0, False
        pending[rows, at] = pending[rows, at + 1] = False
        pending[unclear] = False
    return used, unclear
