"""How long a policy that is free waits for further env groups: while that costs less than one more call of it."""

from __future__ import annotations

from collections.abc import Iterable

_WARM_UP = 3
"""Calls that do not count."""
_OUTLIER = 20.0
"""A call that takes so many times as long as the shortest does not count either."""
_TRY = 8
"""Every so many calls another size is tried while all have had one."""
_KEEP = 0.998
"""A call counts half after some 350 more."""
_SPREAD = 0.05
"""Standard deviation of a call's rows, as a share of their mean, from which on its fixed cost can be told."""


class Patience:
    """Learns what a call of the policy costs however few rows it has, and how soon env groups come back.

    With k rows ready and m on their way, a call now costs fixed / k for each row, a later one (wait + fixed) / (k + m),
    besides what rows cost anyway. So waiting pays while it takes less than fixed * m / k.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._least = float("inf")
        self._sums = [0.0] * 5  # 1, rows, seconds, rows^2, rows * seconds: of all calls, the older the less
        self._turn: float | None = None

    def decided(self, rows: int, seconds: float) -> None:
        """A call took so long. The first ones do not count: a device warms up."""
        self._calls += 1
        if self._calls <= _WARM_UP or seconds > _OUTLIER * self._least:  # a compiler at work, say
            return
        self._least = min(self._least, seconds)
        new = (1.0, rows, seconds, rows * rows, rows * seconds)
        self._sums = [_KEEP * old + more for old, more in zip(self._sums, new, strict=True)]

    def returned(self, seconds: float) -> None:
        """A env group was away for so long."""
        self._turn = seconds if self._turn is None else 0.9 * self._turn + 0.1 * seconds

    @property
    def fixed(self) -> float:
        """Seconds of a call without rows: a straight line through all calls.

        As long as all had as many rows there is none: 0 then, but for every eighth call all that one takes, so that
        calls of other sizes come about.
        """
        weight, rows, seconds, squares, products = self._sums
        if not weight:
            return 0.0
        spread = squares / weight - (rows / weight) ** 2
        if spread < (_SPREAD * rows / weight) ** 2:
            return 0.0 if self._calls % _TRY else self._least
        slope = (products / weight - rows * seconds / weight**2) / spread
        return min(max(0.0, (seconds - slope * rows) / weight), self._least)

    def until(self, now: float, ready: int, away: Iterable[tuple[int, float]]) -> float:
        """When to call the policy at the latest. away: rows of the env groups on their way, and since when.

        Nobody waits for a env group that is long overdue.
        """
        turn = self._turn
        if turn is None or not ready:
            return now
        env_groups = [(rows, since) for rows, since in away if rows and now < since + 2 * turn]
        if not env_groups:
            return now
        pays = now + self.fixed * sum(rows for rows, _ in env_groups) / ready
        back = max(since for _, since in env_groups) + turn
        return min(pays, max(now, back) + turn) if back <= pays else now
