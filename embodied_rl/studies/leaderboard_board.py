"""A leaderboard that was opened: which episodes it has, in which order, and what its test counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console

from embodied_rl.evaluation.adastop import compare_seeds, places, seed_looks
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.evaluation.overlap import Overlap, overlap, trained_states
from embodied_rl.evaluation.paired import ComparisonPlan, ComparisonState, compare
from embodied_rl.evaluation.results_log import Finished
from embodied_rl.factory.policies import policy_folder
from embodied_rl.jobs.evaluation_setup import EvaluationPlan, make_plan
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.studies.leaderboard_config import Cell, Leaderboard
from embodied_rl.studies.leaderboard_figures import paired_outcomes
from embodied_rl.studies.run import CellWork, read_cell
from embodied_rl.types import Array

Block = tuple[str, str, int]
"""Suite, task and initial state: what two policies share."""
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class OpenBoard:
    """A leaderboard and where it goes.

    Args:
        board: its file.
        output: its folder.
        cells: every evaluation.
        plans: their episodes, by suite and seed.
        blocks: in the order in which they are run.
        overlaps: of training with what is evaluated, by the cell's folder.
        not_ranked: by row, why it is shown and not compared.
        test: what was fixed before the first episode.
    """

    board: Leaderboard
    output: Path
    cells: list[Cell]
    plans: dict[tuple[str, int], EvaluationPlan]
    blocks: list[Block]
    overlaps: dict[Path, Overlap]
    not_ranked: dict[str, str]
    test: ComparisonPlan

    @property
    def ranked(self) -> list[str]:
        """The rows that are compared."""
        return [row for row in self.board.checkpoints if row not in self.not_ranked]

    @property
    def over_seeds(self) -> bool:
        """Whether training seeds are compared, not episodes."""
        return self.board.options.compare == "seeds"

    def plan(self, cell: Cell) -> EvaluationPlan:
        """The episodes of a cell."""
        return self.plans[cell.suite, cell.command.seed]

    def missing(self, row: str, count: int, jobs: int) -> list[CellWork]:
        """What a row must still run for its first `count` blocks, or training seeds."""
        blocks = set(self.blocks if self.over_seeds else self.blocks[:count])
        works = []
        for cell in self.cells:
            if cell.row != row or (self.over_seeds and cell.number >= count):
                continue
            done = read_cell(self.output / cell.folder)
            ids = tuple(
                spec.episode_id
                for spec in self.plan(cell).specs
                if (cell.suite, spec.task, spec.init_state) in blocks and spec.episode_id not in done
            )
            if ids:
                works.append(CellWork(cell, ids, jobs=jobs))
        return works

    def whole(self, row: str) -> int:
        """How many blocks, or training seeds, a row has in all."""
        return len(self.board.checkpoints[row]) if self.over_seeds else len(self.blocks)

    def drawn(self) -> Array:
        """The test's random draws."""
        return places(self.test) if self.over_seeds else self.test.signs()

    def compare(self, drawn: Array) -> ComparisonState:
        """What the finished episodes say."""
        outcomes = {row: self._scores(row) if self.over_seeds else self._outcomes(row) for row in self.ranked}
        return compare_seeds(outcomes, self.test, drawn) if self.over_seeds else compare(outcomes, self.test, drawn)

    def _outcomes(self, row: str) -> list[float]:
        """As of `compare`: mean success over the row's checkpoints and seeds, a block that all have run each."""
        parts = [(cell.suite, self.plan(cell).specs, self._read(cell)) for cell in self.cells if cell.row == row]
        return paired_outcomes(self.blocks, parts)

    def _scores(self, row: str) -> list[float]:
        """Success of the row's first training seeds, as far as they are whole."""
        scores = []
        for number in range(self.whole(row)):
            cells = [cell for cell in self.cells if (cell.row, cell.number) == (row, number)]
            found = [self._read(cell) for cell in cells]
            if any(len(done) < len(self.plan(cell).specs) for cell, done in zip(cells, found, strict=True)):
                break
            scores.append(fmean(float(outcome.result.success) for done in found for outcome in done.outcomes.values()))
        return scores

    def _read(self, cell: Cell) -> Finished:
        return read_cell(self.output / cell.folder)


def open_board(board: Leaderboard, output: Path, console: Console) -> OpenBoard:
    """Read what is evaluated and what the checkpoints say of their training; UserError for what is not there."""
    cells = board.cells(output)
    plans: dict[tuple[str, int], EvaluationPlan] = {}
    for cell in cells:
        key = cell.suite, cell.command.seed
        if key not in plans:
            plans[key] = make_plan(cell.benchmark, cell.command, console)
    overlaps = {cell.folder: _overlap(plans[cell.suite, cell.command.seed], cell) for cell in cells}
    not_ranked = {row: reason for row in board.checkpoints if (reason := _reason(board, row, cells, overlaps))}
    first = {suite: plan for (suite, seed), plan in plans.items() if seed == board.options.seeds[0]}
    blocks, state_looks = _in_order(first, board.options.looks or _LOOKS)
    options = board.options
    looks = seed_looks(board.seeds_each, options.looks, options.level) if options.compare == "seeds" else state_looks
    test = ComparisonPlan(looks=looks, level=options.level)
    return OpenBoard(board, output, cells, plans, blocks, overlaps, not_ranked, test)


def _in_order(plans: Mapping[str, EvaluationPlan], looks: int) -> tuple[list[Block], tuple[int, ...]]:
    """All blocks: the first state of every task of every suite, then the second; and how many each look has."""
    rank: dict[tuple[str, str], int] = {}
    placed: list[tuple[int, Block]] = []
    for suite, plan in plans.items():
        for spec in interleaved(plan.specs):
            number = rank[suite, spec.task] = rank.get((suite, spec.task), -1) + 1
            placed.append((number, (suite, spec.task, spec.init_state)))
    placed.sort(key=lambda item: item[0])  # stable
    most = max(number for number, _ in placed) + 1
    ends = [-(-most * look // looks) for look in range(1, looks + 1)]
    counts = tuple(dict.fromkeys(sum(number < end for number, _ in placed) for end in ends))
    return [block for _, block in placed], counts


def _reason(board: Leaderboard, row: str, cells: Sequence[Cell], overlaps: Mapping[Path, Overlap]) -> str:
    """Why a row is shown and not ranked; '' where it is ranked."""
    parts = [overlaps[cell.folder] for cell in cells if cell.row == row]
    shared, total = sum(part.shared for part in parts), sum(part.episodes for part in parts)
    if shared:
        return f"trained on {shared} of its {total} evaluated states: not ranked"
    if board.options.compare == "seeds" and len(board.checkpoints[row]) == 1:
        return "a single training seed: not ranked"
    return ""


def _overlap(plan: EvaluationPlan, cell: Cell) -> Overlap:
    provenance = read_provenance(policy_folder(cell.command.checkpoint))
    return overlap(trained_states(provenance), plan.specs)
