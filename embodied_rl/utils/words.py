"""Words of messages."""

from __future__ import annotations

import math
import re


def same_rate(one: float, other: float) -> bool:
    """Whether two rates in Hz are one for a person: within 1 %."""
    return math.isclose(one, other, rel_tol=0.01)


def file_size(count: int) -> str:
    """Of files: '512 bytes', '4.0 MB', '0.4 GB'."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= 0.1 * unit:
            return f"{count / unit:.1f} {name}" if count < 100 * unit else f"{count / unit:.0f} {name}"
    return counted(count, "byte")


def time_spent(seconds: float) -> str:
    """'40 seconds', '2.5 minutes'."""
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else counted(round(seconds), "second")


def moved(before: float, after: float) -> str:
    """'improved by 12.0', 'got worse by 14.0', 'did not change', of what should be large."""
    difference = f"{abs(after - before):.1f}"
    if float(difference) == 0:
        return "did not change"
    return f"{'improved' if after > before else 'got worse'} by {difference}"


def instruction_of(task: str) -> str:
    """A built-in task's name is its instruction, behind the suite's and LIBERO's scene's.

    >>> instruction_of("libero_90/KITCHEN_SCENE10_close_the_top_drawer")
    'close the top drawer'
    """
    return _SCENE.sub("", task.rpartition("/")[2]).replace("_", " ")


def sentence(task: str) -> str:
    """A task's name for people; LIBERO's scene stands behind it, as several tasks may have one instruction.

    >>> sentence("libero_90/KITCHEN_SCENE10_close_the_top_drawer")
    'close the top drawer (kitchen scene 10)'
    """
    scene = _SCENE.match(task.rpartition("/")[2])
    where = f" ({scene[1].replace('_', ' ').lower()} scene {scene[2]})" if scene else ""
    return instruction_of(task) + where


_SCENE = re.compile(r"([A-Z]+(?:_[A-Z]+)*)_SCENE(\d+)_")


def counted(count: int, noun: str) -> str:
    """'1 task', '2 tasks'; '2 processes'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
