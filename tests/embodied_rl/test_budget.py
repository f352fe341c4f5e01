"""How large the trainer may be: lines of code of each room of embodied_rl/, and keys of a run's configuration.

A room that is over its budget fails here, so that growth is decided and does not just happen. First look for what the
new code makes unused, and delete it. If the room must grow, raise its number in a commit of its own that says what it
is for. When a room has shrunk, lower its number: `python -m tests.embodied_rl.test_budget` prints the table of today,
with about 1 % of space, so that a comment costs nobody a commit. The aim is 24,500 lines in all, and 125 keys.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections import Counter
from pathlib import Path

from embodied_rl.config.train import TrainConfig

ROOT = Path(__file__).parents[2] / "embodied_rl"
LINES = {
    "": 1460,
    "algorithms": 720,
    "autotune": 610,
    "cli": 3905,
    "config": 1785,
    "data": 2790,
    "evaluation": 2030,
    "factory": 3100,
    "jobs": 8565,
    "learner": 2380,
    "rewards": 1310,
    "rollout": 2060,
    "scheduler": 2480,
    "studies": 1800,
    "telemetry": 1580,
    "training": 1820,
    "utils": 1490,
}
KEYS = 142
"""Distinct keys of a config.yaml, over every kind of simulator, policy, algorithm and scheduler."""


def lines() -> dict[str, int]:
    """Lines of each folder of embodied_rl/, without those that are links; '' is the folder itself."""
    found: Counter[str] = Counter()
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0] if path.parent != ROOT else ""
        if not (ROOT / room).is_symlink():
            found[room] += len(path.read_text(encoding="utf-8").splitlines())
    return dict(sorted(found.items()))


def keys(config: type = TrainConfig, prefix: str = "") -> set[str]:
    """Dotted names of the options of a config class; a part that is one of several classes has those of each."""
    found: set[str] = set()
    for name, kind in typing.get_type_hints(config).items():
        if typing.get_origin(kind) is typing.ClassVar:  # says something of the class
            continue
        parts = [part for part in typing.get_args(kind) or (kind,) if dataclasses.is_dataclass(part)]
        found |= set().union(*(keys(typing.cast(type, part), f"{prefix}{name}.") for part in parts))
        if not parts:
            found.add(prefix + name)
    return found


def test_no_room_is_over_its_budget() -> None:
    found = lines()
    assert found.keys() == LINES.keys(), "give a new room a budget, and take an old one's away"
    assert {room: count for room, count in found.items() if count > LINES[room]} == {}


def test_no_room_has_a_budget_that_it_does_not_need() -> None:
    """Else what one deletes another may fill up again, unseen."""
    found = lines()
    assert {room: most for room, most in LINES.items() if most > 1.25 * found.get(room, 0) + 100} == {}


def test_the_configuration_has_no_more_keys() -> None:
    assert len(keys()) <= KEYS


def test_keys_of_every_kind_are_counted() -> None:
    assert {"seed", "learner.lr", "algorithm.group_size", "scheduler.max_lookahead", "scheduler.workers"} <= keys()


if __name__ == "__main__":
    for part, count in lines().items():
        print(f'    "{part}": {math.ceil(count * 1.01 / 10) * 10},')
    print(f"KEYS = {len(keys())}")
