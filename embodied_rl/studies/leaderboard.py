"""A leaderboard, from its file to leaderboard.json and index.html. Imports torch and the simulator.

The figures are a function of the finished episodes, which each cell's folder holds: whatever was killed in between, and
however many processes were at work, the bytes of leaderboard.json are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.evaluation.paired import ComparisonState
from embodied_rl.evaluation.results_log import EpisodeResultsLog
from embodied_rl.factory.envs import announce_compilation
from embodied_rl.studies.leaderboard_board import OpenBoard, open_board
from embodied_rl.studies.leaderboard_config import Leaderboard
from embodied_rl.studies.leaderboard_figures import Measured, figures_of
from embodied_rl.studies.leaderboard_films import films_of
from embodied_rl.studies.leaderboard_page import Extras, write_leaderboard_page
from embodied_rl.studies.run import CellWork, read_cell, run_cell, run_planned, speed_of, unfilmed
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.tables import lost_words
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.lock import LOCK, locked
from embodied_rl.utils.machine import cpu_count, cpu_name
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.signals import Interrupted, StopRequest
from embodied_rl.utils.words import counted
from embodied_rl.utils.work_pool import WorkPool

RESULT, PAGE, SPEED = "leaderboard.json", "index.html", "speed.json"


@dataclass(frozen=True, slots=True)
class _Executor:
    """Who does the work: `jobs` processes, or this one where there is no pool."""

    it: OpenBoard
    pool: WorkPool[CellWork] | None
    jobs: int
    progress: RunProgress
    stop: StopRequest

    def carry_out(self, works: Sequence[CellWork], what: str) -> None:
        """Do all of it; returns when it is done."""
        if self.pool is not None and works:
            episodes = sum(len(work.episodes) for work in works)
            self.progress.stage(f"{counted(len(works), 'evaluation')}, {what}", episodes)
            self.pool.run(works, self.progress.episode, self.stop)
            return
        for work in works:
            self.progress.stage(f"{work.cell.row}, {work.cell.suite}, {what}", len(work.episodes))
            run_planned(self.it.plan(work.cell), work, self.progress.episode, self.stop.check_interrupt)


def run(board: Leaderboard, output: Path, words: str, jobs: int) -> None:
    """Run what is missing in `output`, then write its figures and its page and print the table.

    Args:
        board: the leaderboard's file.
        output: folder; what it holds of an earlier start is kept.
        words: the command, which continues it.
        jobs: evaluations that run side by side, each in a process of its own if there are several.

    Raises:
        UserError: a checkpoint, a suite or a state is not there, the folder was begun elsewhere, or a process died.
        Interrupted: stopped by a signal; what has ended is kept.
    """
    console = LastingConsole()
    output.mkdir(parents=True, exist_ok=True)
    with locked(output / LOCK, f"making the leaderboard in {output}"):
        it = open_board(board, output, console)
        try:
            with RunProgress(0, console=console) as progress, _executor(it, jobs, progress) as executor:
                state = _run(it, executor)
                figures = _figures(it, state)
                replace_text(output / RESULT, json.dumps(figures, indent=1) + "\n")
                films = [CellWork(cell, videos=board.options.videos, jobs=jobs) for cell in it.cells]
                executor.carry_out([work for work in films if unfilmed(work)], "films")
        except Interrupted:
            raise Interrupted(f"the finished episodes are saved; continue with: {words}") from None
        speed = {row: speed_of([output / c.folder for c in it.cells if c.row == row]) for row in board.checkpoints}
        extras = Extras(
            speed={row: found for row, found in speed.items() if found is not None},
            machine=f"{cpu_name()}, {counted(cpu_count(), 'core')}",
            films=films_of(it),
        )
        replace_text(output / SPEED, json.dumps({"machine": extras.machine, "rows": extras.speed}, indent=1) + "\n")
        write_leaderboard_page(output / PAGE, figures, extras)
    console.facts(_table(figures, extras.speed))
    console.say(f"page: {output / PAGE}")


@contextmanager
def _executor(it: OpenBoard, jobs: int, progress: RunProgress) -> Iterator[_Executor]:
    """A `with` block in which the first Ctrl-C lets the episodes' decisions come to their end."""
    stop = StopRequest(lambda: progress.message("stopping after this decision (again: leave at once)"))
    with stop:
        if jobs == 1:
            yield _Executor(it, None, jobs, progress, stop)
        else:
            announce_compilation()  # else each of them would
            with WorkPool(jobs, run_cell) as pool:
                yield _Executor(it, pool, jobs, progress, stop)


def _run(it: OpenBoard, executor: _Executor) -> ComparisonState:
    """Run episodes until nothing is open; rows that are not ranked run everything and are not compared."""
    drawn = it.drawn()
    all_run = not it.board.options.stop_early or len(it.ranked) < 2
    everything = list(it.board.checkpoints) if all_run else list(it.not_ranked)
    first = [work for row in everything for work in it.missing(row, it.whole(row), executor.jobs)]
    while True:
        state = it.compare(drawn)
        needed = {} if all_run else state.needed
        works = first + [work for row, count in needed.items() for work in it.missing(row, count, executor.jobs)]
        if not works:
            return state
        executor.carry_out(works, "episodes")
        first = []


def _figures(it: OpenBoard, state: ComparisonState) -> dict[str, Any]:
    """What leaderboard.json holds."""
    measured = [
        Measured(
            cell,
            read_cell(it.output / cell.folder),
            EpisodeResultsLog.fingerprint(it.output / cell.folder),
            it.overlaps[cell.folder],
        )
        for cell in it.cells
        if (it.output / cell.folder).exists()
    ]
    figures = figures_of(it.board, measured, it.test, state, it.not_ranked)
    return figures | {"protocol": it.plan(it.cells[0]).protocol.describe()}


def _table(figures: Mapping[str, Any], speed: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The rows for a terminal."""
    width = max(3, *(len(row["name"]) for row in figures["rows"])) + 2
    lines = [f"{'rank':<6}{'row':<{width}}{'success':<9}{'95 % interval':<17}{'episodes':<10}{'steps':<7}decisions/s"]
    for row in figures["rows"]:
        score = row["success"]
        interval = f"{score['low']:.1%} to {score['high']:.1%}"
        rank = "-" if row["rank"] is None else str(row["rank"])
        counts = f"{score['episodes']:<10}{score['mean_steps']:<7.0f}"
        rate = f"{speed[row['name']]['decisions_per_s']:.0f}" if row["name"] in speed else ""
        lines.append(f"{rank:<6}{row['name']:<{width}}{score['rate']:<9.1%}{interval:<17}{counts}{rate}")
        if lost := lost_words(score):
            lines.append(f"        {lost.removeprefix(', ')}")
        if row["not_ranked"]:
            lines.append(f"        {row['not_ranked']}")
    unit = figures["test"]["unit"]
    lines += [
        f"  {item['first']} against {item['second']}: {item['verdict']} ({item['difference']:+.1%}, "
        f"{item['low']:+.1%} to {item['high']:+.1%}, {item['pairs']} {unit})"
        for item in figures["comparisons"]
    ]
    lines += [f"  {suite}: {ran['assets']}" for suite, ran in figures["machine"].items() if "assets" in ran]
    return lines
