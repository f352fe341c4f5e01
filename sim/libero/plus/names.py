"""What the names of LIBERO-plus' tasks say: which task of LIBERO is changed, and how.

parse_name("open_the_drawer_view_15_0_100_0_0_initstate_0").dimension  # 'camera'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Dimension = Literal["camera", "robot", "language", "light", "background", "noise", "layout"]
DIMENSIONS: tuple[Dimension, ...] = ("camera", "robot", "language", "light", "background", "noise", "layout")
"""In the order of the published table."""


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """Where `agentview` looks from.

    Args:
        horizontal: degrees about the world's vertical.
        vertical: degrees about the world's y axis.
        distance: percent of the distance to the pivot.
        end_horizontal, end_vertical: degrees by which the camera turns where it is, about the same two axes.
    """

    horizontal: int = 0
    vertical: int = 0
    distance: int = 100
    end_horizontal: int = 0
    end_vertical: int = 0


HOME = Viewpoint()
"""Of every task whose dimension is another."""


@dataclass(frozen=True, slots=True)
class PlusName:
    """A task of LIBERO-plus.

    Args:
        name: as in the official task map, without its suite.
        base: the task of LIBERO that it changes, without its suite.
        dimension: what is changed.
        view: the camera's viewpoint.
        start: number of the robot's start pose; 0: LIBERO's own.
        language: number of the rewritten instruction; 0: LIBERO's own.
        noise: number of the sensor noise, 1 to 50; 0: none.
        needs: files that neither LIBERO nor the package holds; '' where there are none.

    Example:
        >>> parse_name("put_the_bowl_on_the_plate_language_3_view_0_0_100_0_0_initstate_0").language
        3
    """

    name: str
    base: str
    dimension: Dimension
    view: Viewpoint = HOME
    start: int = 0
    language: int = 0
    noise: int = 0
    needs: str = ""


_NUMBER = r"(-?\d+)"
_CHANGED = re.compile(
    r"(?P<base>.+?)(?:_language_(?P<language>\d+))?"
    rf"_view_(?P<view>{'_'.join([_NUMBER] * 5)})_initstate_(?P<start>\d+)(?:_noise_(?P<noise>\d+))?"
)
_MOVED = re.compile(r"(?P<base>.+?)(?:_moved)?_level\d+_sample\d+")  # the goal suite's say 'moved' as well
_OTHER = re.compile(r"(?P<base>.+?)(?:_moved)?_(?P<kind>add|light|table|tb)_\d+")
_NEEDS: dict[str, tuple[Dimension, str]] = {
    "add": ("layout", "confounding objects"),
    "light": ("light", "scenes with other lights"),
    "table": ("background", "table and wall textures"),
    "tb": ("background", "table and wall textures"),
}


def parse_name(name: str) -> PlusName:
    """What a name of the official task map says; ValueError for one that says no perturbation, or more than one."""
    if found := _OTHER.fullmatch(name):
        dimension, needs = _NEEDS[found["kind"]]
        return PlusName(name, found["base"], dimension, needs=needs)
    if found := _MOVED.fullmatch(name):
        return PlusName(name, found["base"], "layout")
    found = _CHANGED.fullmatch(name)
    if found is None:
        raise ValueError(f"'{name}' is no name of LIBERO-plus")
    view = Viewpoint(*map(int, found["view"].split("_")))
    start, language, noise = (int(found[part] or 0) for part in ("start", "language", "noise"))
    changes: dict[Dimension, bool] = {
        "camera": view != HOME,
        "robot": start > 0,
        "language": language > 0,
        "noise": noise > 0,
    }
    changed: list[Dimension] = [dimension for dimension, is_changed in changes.items() if is_changed]
    if len(changed) != 1:
        raise ValueError(f"'{name}' changes {', '.join(changed) or 'nothing'}, and a task of LIBERO-plus one thing")
    return PlusName(name, found["base"], changed[0], view, start, language, noise)
