"""Words of messages."""

from __future__ import annotations

import math


def same_rate(one: float, other: float) -> bool:
    """Whether two rates in Hz are one for a person: within 1 %."""
    return math.isclose(one, other, rel_tol=0.01)


def counted(count: int, noun: str) -> str:
    """'1 task', '2 tasks'; '2 processes'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
