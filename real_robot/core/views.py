"""Whether a camera's pictures are alive: they change while the arm moves, and are not even."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np

from embodied_rl.real_robot.core.kinematics import Chain

_ROWS, _COLUMNS = 64, 128
"""Pixels of a picture that are compared, at most: picked, not averaged, so that a sensor's noise stays."""
_SAME = 2
"""Levels of 255 by which a compressed pixel may differ and count as the same."""
_CLOCK_ROWS = 1 / 4
"""Share of rows that a clock or a counter in a picture fills at most; pictures of less than `_LEAST_ROWS` have none."""
_LEAST_ROWS, _THAWED_ROWS = 32, 1 / 16
_FAR_M, _FAR_CLOCK_M, _NEXT_M = 0.08, 0.16, 0.01
"""Ways of the tool: after which a picture must have changed; elsewhere than in one place; between two such changes."""
_NEW = 0.5
"""Pixels that change elsewhere, of those that changed before, by which the arm is told from a clock's other digits."""
_LATE = 3
"""Pictures that may be late: a camera lags. 14 episodes of the shipped policy on the twin, without a sensor's noise,
raise no alarm at these figures. Frozen after a second, 12 of them do, and 9 to 11 under a running clock: in the others
the tool goes less than 0.08 and 0.18 m from there."""
_REMEMBERED = 64
"""Pictures of which is known where the tool was: a driver may hand out the same few buffers in turn."""
_EVEN = 4.0
"""Levels of 255 by which the means of cells differ in any picture of a scene."""


def even(image: np.ndarray) -> str:
    """Why a picture shows nothing: it is black, white or of one colour but for a quarter of its rows; '' else.

    Args:
        image: uint8 [H, W, 3].
    """
    picked = _picked(image)
    rows, columns = (np.linspace(0, size, min(16, size) + 1, dtype=int)[:-1] for size in picked.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(picked, rows, axis=0, dtype=np.float64), columns, axis=1)
    counts = np.outer(np.diff([*rows, len(picked)]), np.diff([*columns, picked.shape[1]]))
    cells = sums / counts[..., None]
    middle = np.median(cells, axis=(0, 1))
    if (np.abs(cells - middle).max(axis=(1, 2)) > _EVEN).mean() > _CLOCK_ROWS:
        return ""
    return f"the picture is even, of the colour {', '.join(f'{level:.0f}' for level in middle)}: is the lens covered?"


class LiveView:
    """Compares a camera's pictures with how far the tool moved between them.

    A sensor's noise changes every row of each picture. Where fewer rows change, what changes must move on as the tool
    does: a clock that is written into the picture changes in its own place. Pictures that all came before, to the bit,
    while the tool was elsewhere are old ones in turn.

    Example:
        >>> view = LiveView()
        >>> view.look(image, np.array([[0.4, 0.0, 0.3]]))
        ''
    """

    def __init__(self) -> None:
        self._reference = np.zeros((0, 0, 3), np.int16)
        self._changed = np.zeros((0, 0), bool)
        self._since, self._late = np.zeros((0, 3)), 0
        self._before, self._last, self._again = OrderedDict[bytes, np.ndarray](), b"", 0

    def look(self, image: np.ndarray, points: np.ndarray) -> str:
        """Note a picture.

        Args:
            image: uint8 [H, W, 3].
            points: Of the tool when it was taken [n, 3], m.

        Returns:
            Why it is not to be believed; '' where it is.
        """
        picked = _picked(image)
        if again := self._repeats(picked, points):
            return again
        if self._reference.shape != picked.shape:
            return self._begin(picked, points)
        changed = np.abs(picked - self._reference).max(axis=2) > _SAME
        new = changed & ~_near(self._changed, -(-len(changed) // _LEAST_ROWS))
        first = not self._changed.any()
        way = float(np.linalg.norm(points - self._since, axis=1).max())
        if self._alive(changed, new, first, way):
            return self._begin(picked, points)
        if first and changed.any() and not self.stuck:
            self._since, way = points, 0.0
        if way <= _NEXT_M:
            self._changed |= changed
        if way > (_FAR_CLOCK_M if self._changed.any() else _FAR_M):
            self._late += 1
        return f"the same picture while the tool moved {way:.2f} m: is the camera's driver stuck?" * self.stuck

    @property
    def stuck(self) -> bool:
        """Whether the last pictures were the same while the tool moved; until another one comes."""
        return self._late >= _LATE

    def _repeats(self, picked: np.ndarray, points: np.ndarray) -> str:
        digest = hashlib.blake2b(picked.tobytes(), digest_size=16).digest()
        new, self._last = digest != self._last, digest
        way = float(np.linalg.norm(points - self._before.setdefault(digest, points), axis=1).max())
        if len(self._before) > _REMEMBERED:
            self._before.popitem(last=False)
        if new:
            self._again = self._again + 1 if way > _FAR_M else 0
        return f"pictures of before, when the tool was {way:.2f} m away: is the driver stuck?" * (self._again >= _LATE)

    def _alive(self, changed: np.ndarray, new: np.ndarray, first: bool, way: float) -> bool:
        if changed.any(axis=1).mean() > _CLOCK_ROWS or (len(changed) < _LEAST_ROWS and changed.any()):
            return True
        if self.stuck:
            return new.any(axis=1).sum() > _THAWED_ROWS * len(new)
        return not first and way > _NEXT_M and new.sum() >= max(2, _NEW * self._changed.sum())

    def _begin(self, picked: np.ndarray, points: np.ndarray) -> str:
        self._reference, self._since, self._late = picked, points, 0
        self._changed = np.zeros(picked.shape[:2], bool)
        return ""


def tool_points(chain: Chain, angles: np.ndarray) -> np.ndarray:
    """The tool's point and one 0.1 m beside it, which shows its turns: joint angles [n], rad -> [2, 3], m."""
    position, rotation = chain.pose(angles)
    return np.stack([position, position + 0.1 * rotation[:, 0]])


def _near(mask: np.ndarray, reach: int) -> np.ndarray:
    """The mask, and what lies within so many pixels of it."""
    for axis in (0, 1):
        wide = np.pad(mask, [(reach, reach) if axis == one else (0, 0) for one in (0, 1)])
        windows = np.lib.stride_tricks.sliding_window_view(wide, 2 * reach + 1, axis=axis)
        mask = np.asarray(windows.any(axis=-1))
    return mask


def _picked(image: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    return np.ascontiguousarray(image[:: -(-height // _ROWS), :: -(-width // _COLUMNS)]).astype(np.int16)
