"""A leaderboard, from its file to leaderboard.json and index.html. Imports torch and the simulator.

The figures are a function of the finished episodes, which each cell's folder holds: whatever was killed in between, the
bytes of leaderboard.json are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.evaluation.overlap import Overlap, overlap, trained_states
from embodied_rl.evaluation.results_log import EpisodeResultsLog, Outcome
from embodied_rl.evaluation.sequential_test import ComparisonPlan, ComparisonState, compare
from embodied_rl.factory.envs import policy_folder
from embodied_rl.jobs.eval_request import request_of
from embodied_rl.jobs.evaluation_setup import EvaluationPlan, make_plan, open_evaluation_env, prepare, run_episodes
from embodied_rl.jobs.leaderboard_config import Cell, Leaderboard
from embodied_rl.jobs.leaderboard_figures import Measured, figures_of, paired_outcomes
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.telemetry.leaderboard_page import write_leaderboard_page
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.report import replace_text
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.lock import LOCK, locked
from embodied_rl.utils.signals import Interrupted, StopRequest

RESULT, PAGE = "leaderboard.json", "index.html"
_BLOCK = tuple[str, str, int]
"""Suite, task and initial state: what two policies share."""


@dataclass(frozen=True, slots=True)
class _Board:
    """A leaderboard and where it goes. plans: by suite and seed; looks: the blocks of each look, all earlier ones among
    them; blocks: in the order in which they are run."""

    board: Leaderboard
    output: Path
    cells: list[Cell]
    plans: dict[tuple[str, int], EvaluationPlan]
    blocks: list[_BLOCK]
    looks: tuple[int, ...]

    def plan(self, cell: Cell) -> EvaluationPlan:
        """The episodes of a cell."""
        return self.plans[cell.suite, cell.command.seed]


def run(board: Leaderboard, output: Path, words: str) -> None:
    """Run what is missing in `output`, then write its figures and its page and print the table.

    Args:
        board: the leaderboard's file.
        output: folder; what it holds of an earlier start is kept.
        words: the command, which continues it.

    Raises:
        UserError: a checkpoint, a suite or a state is not there, or the folder was begun elsewhere.
        Interrupted: stopped by a signal; what has ended is kept.
    """
    console = LastingConsole()
    output.mkdir(parents=True, exist_ok=True)
    with locked(output / LOCK, f"making the leaderboard in {output}"):
        it = _open(board, output, console)
        overlaps = {cell.folder: _overlap(it, cell) for cell in it.cells}
        shared = {cell.row for cell in it.cells if overlaps[cell.folder].shared}
        plan = ComparisonPlan(looks=it.looks, level=board.options.level)
        with RunProgress(0, console=console) as progress:
            stop = StopRequest(lambda: progress.message("stopping after this decision (again: leave at once)"))
            try:
                with stop:
                    state = _run(it, plan, shared, progress, stop)
            except Interrupted:
                raise Interrupted(f"the finished episodes are saved; continue with: {words}") from None
        measured = [Measured(cell, _read(it, cell), _marks(it, cell), overlaps[cell.folder]) for cell in it.cells]
        ranked = [row for row in board.checkpoints if row not in shared]
        figures = figures_of(board, measured, plan, state, ranked) | {
            "protocol": it.plan(it.cells[0]).protocol.describe()
        }
        replace_text(output / RESULT, json.dumps(figures, indent=1) + "\n")
        write_leaderboard_page(output / PAGE, figures)
    for line in _table(figures):
        console.say(line)
    console.say(f"page: {output / PAGE}")


def _open(board: Leaderboard, output: Path, console: LastingConsole) -> _Board:
    cells = board.cells(output)
    plans: dict[tuple[str, int], EvaluationPlan] = {}
    for cell in cells:
        key = cell.suite, cell.command.seed
        if key not in plans:
            plans[key] = make_plan(cell.benchmark, cell.command, console)
    first = {suite: plan for (suite, seed), plan in plans.items() if seed == board.options.seeds[0]}
    ordered = [(suite, spec) for suite, plan in first.items() for spec in interleaved(plan.specs)]
    rank: dict[tuple[str, str], int] = {}
    placed = []
    for suite, spec in ordered:
        number = rank[suite, spec.task] = rank.get((suite, spec.task), -1) + 1
        placed.append((number, (suite, spec.task, spec.init_state)))
    placed.sort(key=lambda item: item[0])  # stable: the first state of every task of every suite, then the second
    most = max(number for number, _ in placed) + 1
    ends = [-(-most * look // board.options.looks) for look in range(1, board.options.looks + 1)]
    looks = tuple(dict.fromkeys(sum(number < end for number, _ in placed) for end in ends))
    return _Board(board, output, cells, plans, [block for _, block in placed], looks)


def _run(
    it: _Board, plan: ComparisonPlan, shared: set[str], progress: RunProgress, stop: StopRequest
) -> ComparisonState:
    """Run episodes until nothing is open; rows of `shared` run everything and are not compared."""
    signs = plan.signs()
    ranked = [row for row in it.board.checkpoints if row not in shared]
    everything = list(it.board.checkpoints) if not it.board.options.stop_early or len(ranked) < 2 else sorted(shared)
    for row in everything:
        _run_row(it, row, plan.looks[-1], progress, stop)
    while True:
        outcomes = {row: _outcomes(it, row) for row in ranked}
        state = compare(outcomes, plan, signs)
        if not state.needed:
            return state
        for row, count in state.needed.items():
            _run_row(it, row, count, progress, stop)


def _run_row(it: _Board, row: str, count: int, progress: RunProgress, stop: StopRequest) -> None:
    """The first `count` blocks of every cell of a row."""
    wanted = set(it.blocks[:count])
    for cell in it.cells:
        if cell.row == row:
            specs = [spec for spec in it.plan(cell).specs if (cell.suite, spec.task, spec.init_state) in wanted]
            _run_cell(it, cell, specs, progress, stop)


def _run_cell(it: _Board, cell: Cell, specs: Sequence[EpisodeSpec], progress: RunProgress, stop: StopRequest) -> None:
    done = _read(it, cell)
    missing = [spec for spec in specs if spec.episode_id not in done]
    if not missing:
        return
    plan = it.plan(cell)
    progress.stage(f"{cell.row}, {cell.suite}", len(missing))
    ready = prepare(plan, cell.command)
    folder = it.output / cell.folder
    with (
        EpisodeResultsLog.open(folder, request_of(cell.benchmark, cell.command), ready.marks) as ledger,
        open_evaluation_env(plan, ready.policy, ready.renderer) as env,
    ):
        run_episodes(
            plan,
            env,
            ready.policy,
            missing,
            ledger,
            on_episode=lambda result: progress.episode(result.success),
            on_round=stop.check_interrupt,
        )


def _read(it: _Board, cell: Cell) -> dict[int, Outcome]:
    """The finished episodes of a cell, by id."""
    folder = it.output / cell.folder
    return EpisodeResultsLog.read(folder) if folder.exists() else {}


def _marks(it: _Board, cell: Cell) -> Mapping[str, Any]:
    return EpisodeResultsLog.fingerprint(it.output / cell.folder)


def _outcomes(it: _Board, row: str) -> list[float]:
    """Mean success over the row's checkpoints and seeds in each block that all of them have run."""
    parts = [(cell, it.plan(cell), _read(it, cell)) for cell in it.cells if cell.row == row]
    return paired_outcomes(it.blocks, [(cell.suite, plan.specs, done) for cell, plan, done in parts])


def _overlap(it: _Board, cell: Cell) -> Overlap:
    provenance = read_provenance(policy_folder(cell.command.checkpoint))
    return overlap(trained_states(provenance), it.plan(cell).specs)


def _table(figures: Mapping[str, Any]) -> list[str]:
    """The rows for a terminal."""
    lines = [f"  {'rank':<6}{'row':<24}{'success':<10}{'95 % interval':<20}{'episodes':<10}{'steps':<8}jerk"]
    for row in figures["rows"]:
        score = row["success"]
        interval = f"{score['low']:.1%} to {score['high']:.1%}"
        rank = "-" if row["rank"] is None else str(row["rank"])
        motion = f"{score['episodes']:<10}{score['mean_steps']:<8.0f}{row['motion']['jerk']:.3f}"
        lines.append(f"  {rank:<6}{row['name']:<24}{score['rate']:<10.1%}{interval:<20}{motion}")
        if row["not_ranked"]:
            lines.append(f"        {row['not_ranked']}")
    lines += [
        f"  {item['first']} against {item['second']}: {item['verdict']} ({item['difference']:+.1%}, "
        f"{item['low']:+.1%} to {item['high']:+.1%}, {item['pairs']} states)"
        for item in figures["comparisons"]
    ]
    return lines
