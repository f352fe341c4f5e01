"""Success rates in words, and as tables that fit 80 columns of any terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from embodied_rl.evaluation.change import Change
from embodied_rl.evaluation.evaluate import Score
from embodied_rl.utils.words import counted

NOT_REPEATABLE = (
    "no: the task does not repeat an episode from its seed, so no two evaluations are of the same initial states, and "
    "a resumed run goes on with other episodes"
)
_FEWEST = 2
"""Words that tasks must share at an end of their names before they are left out there."""


def cells(score: Score | None) -> tuple[str, str]:
    """Rate with counts, and 95 % interval: '62.0% (31/50)', '48.2% to 74.1%'; or those of the mean return.

    Below the interval it says how many episodes were not measured, if any: 'not measured: 2 of 52'.
    """
    if score is None:
        return "not measured", ""
    if not score.episodes:
        return lost_of(score), ""
    lost = f"\n{lost_of(score)}" if score.not_measured else ""
    if not score.has_success:
        low, high = score.return_interval
        return f"{figure(score)} ({counted(score.episodes, 'episode')})", f"{low:.1f} to {high:.1f}{lost}"
    return f"{score.rate:.1%} ({score.successes}/{score.episodes})", f"{score.low:.1%} to {score.high:.1%}{lost}"


def interval_words(score: Score) -> str:
    """The interval of `cells`, and what was not measured, in one line."""
    return cells(score)[1].replace("\n", ", ")


def lost_of(score: Score) -> str:
    """'not measured: 2 of 52'."""
    return f"not measured: {score.not_measured} of {score.not_measured + score.episodes}"


def lost_words(score: Mapping[str, Any]) -> str:
    """', not measured: 2 of 52' of a score in leaderboard.json; '' where all was measured."""
    lost = score.get("not_measured", 0)
    return f", not measured: {lost} of {lost + score['episodes']}" if lost else ""


def stand_in_words(count: int) -> str:
    """How many official asset files are stand-ins; count: above 0."""
    said = "1 official file is a stand-in" if count == 1 else f"{count} official files are stand-ins"
    return f"APPROXIMATE: {said}"


def figure(score: Score) -> str:
    """What counts: '62.0%', or the mean return '-153.2' where the tasks have no success flag."""
    return f"{score.rate:.1%}" if score.has_success else f"{score.mean_return:.1f}"


def what_counts(score: Score) -> str:
    """Heading of what `figure` gives."""
    return "success once" if score.has_success else "mean return"


def change_cells(change: Change) -> tuple[str, str]:
    """'+22.8 points' and '+16.1 to +29.0'; of mean returns '+1050.2' and '+990.1 to +1110.3'."""
    scale = 100.0 if change.has_success else 1.0
    difference, low, high = (f"{scale * value:+.1f}" for value in (change.difference, change.low, change.high))
    return difference + (" points" if change.has_success else ""), f"{low} to {high}"


def change_words(change: Change) -> str:
    """'+22.8 points (95 % interval +16.1 to +29.0) on the same 250 initial states'."""
    difference, interval = change_cells(change)
    return f"{difference} (95 % interval {interval}) on the same {counted(change.states, 'initial state')}"


def short_labels(tasks: Sequence[str]) -> list[str]:
    """Names of tasks of one suite for people, without the words that all of them begin or end with.

    >>> short_labels(["suite/pick_up_the_cup_in_front", "suite/pick_up_the_bowl_in_front"])
    ['... cup', '... bowl']
    """
    names = [task.partition("/")[2] or task for task in tasks]
    words = [[name] if ":" in name else name.split("_") for name in names]  # gymnasium's MODULE:ID is no sentence
    spare = min(map(len, words), default=1) - 1  # each keeps a word
    shared = len(words) > 1
    first = min(_shared(words), spare) if shared else 0
    first = first if first >= _FEWEST else 0
    last = min(_shared([row[::-1] for row in words]), spare - first) if shared else 0
    last = last if last >= _FEWEST else 0
    return [" ".join([*["..."] * (first > 0), *row[first : len(row) - last]]) for row in words]


def _shared(rows: Sequence[Sequence[str]]) -> int:
    """With how many equal words all rows begin."""
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))


def success_table(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[tuple[str, str]]]]) -> Table:
    """A row for each (label, cells): intervals stand below their rates; long labels are wrapped, never cut."""
    table = Table(*heads, show_lines=False)
    table.columns[0].overflow = "fold"
    for label, values in rows:
        table.add_row(label, *("\n".join(part for part in pair if part) for pair in values))
    return table
