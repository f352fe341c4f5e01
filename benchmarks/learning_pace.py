"""How soon a run learned: training episodes until its training success reached a level, and success on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from embodied_rl.benchmarks.page import table
from embodied_rl.telemetry.curve import curve_of

WINDOW = 5
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)


def episodes_to(rows: Sequence[Mapping[str, Any]], level: float) -> int | None:
    """Training episodes when the mean success of the last WINDOW iterations first reached `level`; None: it never did.

    rows: a run's metrics, line by line.
    """
    episodes, recent = 0.0, []
    for row in rows:
        if row.get("rollout/success") is None:
            continue
        episodes += row["rollout/episodes"]
        recent = [*recent, row["rollout/success"]][-WINDOW:]
        if len(recent) == WINDOW and fmean(recent) >= level:
            return int(episodes)
    return None


def pace_table(groups: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[str]:
    """The episodes of each group's runs, seed by seed, and their mean where all got there; [] if nobody ever does."""
    levels = [level for level in LEVELS if any(number is not None for number in _numbers(groups, level))]
    if not levels:
        return []
    body = []
    for name, runs in groups.items():
        body.append([name])
        for level in levels:
            found = [episodes_to(rows, level) for rows in runs]
            known = [number for number in found if number is not None]
            mean = f" (mean {fmean(known):.0f})" if len(known) == len(found) > 1 else ""
            body[-1].append(", ".join("never" if number is None else str(number) for number in found) + mean)
    return [
        "## Training episodes until a success",
        "",
        f"Until the mean success of the training episodes of {WINDOW} iterations first reached a level, seed by seed.",
        "These are sampled decisions from training states, not the held-out success of the tables below.",
        "",
        *table(["", *(f"{level:.0%}" for level in levels)], body),
        "",
    ]


def way_table(groups: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[str]:
    """Mean held-out success of each group's runs after as many training episodes, and of how many runs it is the mean.

    groups: the metrics of a table's runs, as for `pace_table`.
    """
    found: dict[str, dict[int, list[float]]] = {}
    for name, runs in groups.items():
        points = found.setdefault(name, {})
        for curve in map(curve_of, runs):
            for episodes, (rate, _, _) in zip(curve.held_out_episodes, curve.held_out, strict=True):
                points.setdefault(round(episodes), []).append(rate)
    columns = sorted({episodes for points in found.values() for episodes in points})
    body = [
        [name, *(f"{100 * fmean(points[at]):.1f} % ({len(points[at])})" if at in points else "" for at in columns)]
        for name, points in found.items()
    ]
    return [
        "## Held-out success on the way",
        "",
        "Mean of the runs that were evaluated after so many training episodes; in brackets: how many they are.",
        "",
        *table(["", *map(str, columns)], body),
        "",
    ]


def _numbers(groups: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], level: float) -> Iterator[int | None]:
    for runs in groups.values():
        yield from (episodes_to(rows, level) for rows in runs)
