"""A leaderboard, from its file to leaderboard.json and index.html. Imports torch and the simulator.

The figures are a function of the finished episodes, which each evaluation's folder holds: whatever was killed in
between, and however many processes were at work, the bytes of leaderboard.json are the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from embodied_rl.evaluation.adastop import ComparisonPlan, ComparisonState, compare, compare_seeds, places, seed_looks
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.evaluation.overlap import Overlap, overlap, trained_states
from embodied_rl.evaluation.results_log import EpisodeResultsLog, Finished
from embodied_rl.factory.policies import policy_folder
from embodied_rl.jobs.eval_request import BenchmarkCommand, benchmark_of, resolved
from embodied_rl.jobs.evaluation_setup import EvaluationPlan, make_plan
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.studies.leaderboard_config import Leaderboard
from embodied_rl.studies.leaderboard_report import Extras, Measured, figures_of, table_lines, videos_of, write_page
from embodied_rl.studies.run import Evaluation, Job, job_runner, read_finished, run_until_decided, speed_of
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.types import Array
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.lock import LOCK, locked
from embodied_rl.utils.machine import cpu_count, cpu_name
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.plugins import imported
from embodied_rl.utils.signals import Interrupted
from embodied_rl.utils.words import counted

RESULT, PAGE, SPEED = "leaderboard.json", "index.html", "speed.json"
Block = tuple[str, str, int]
"""Suite, task and initial state: what two policies share."""
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class OpenLeaderboard:
    """A leaderboard that was opened: which episodes it has, in which order, and what its test counts.

    Args:
        config: its file.
        output: its folder.
        evaluations: every one, row by row.
        plans: their episodes, by suite and seed.
        blocks: in the order in which they are run.
        overlaps: of training with what is evaluated, by the evaluation's folder.
        not_ranked: by row, why it is shown and not compared.
        test: what was fixed before the first episode.
    """

    config: Leaderboard
    output: Path
    evaluations: list[Evaluation]
    plans: dict[tuple[str, int], EvaluationPlan]
    blocks: list[Block]
    overlaps: dict[Path, Overlap]
    not_ranked: dict[str, str]
    test: ComparisonPlan

    @property
    def ranked(self) -> list[str]:
        """The rows that are compared."""
        return [row for row in self.config.checkpoints if row not in self.not_ranked]

    @property
    def over_seeds(self) -> bool:
        """Whether training seeds are compared, not episodes."""
        return self.config.options.compare == "seeds"

    def plan(self, evaluation: Evaluation) -> EvaluationPlan:
        """The episodes of an evaluation."""
        return self.plans[evaluation.suite, evaluation.command.seed]

    def finished(self, evaluation: Evaluation) -> Finished:
        """Those of them that have ended."""
        return read_finished(self.output / evaluation.folder)

    def of_row(self, row: str) -> list[Evaluation]:
        """The evaluations of a row."""
        return [evaluation for evaluation in self.evaluations if evaluation.row == row]

    def missing(self, row: str, count: int, processes: int) -> list[Job]:
        """What a row must still run for its first `count` blocks, or training seeds."""
        blocks = set(self.blocks if self.over_seeds else self.blocks[:count])
        jobs = []
        for evaluation in self.of_row(row):
            if self.over_seeds and evaluation.number >= count:
                continue
            done = self.finished(evaluation)
            ids = tuple(
                spec.episode_id
                for spec in self.plan(evaluation).specs
                if (evaluation.suite, spec.task, spec.init_state) in blocks and spec.episode_id not in done
            )
            if ids:
                jobs.append(Job(evaluation, ids, processes=processes))
        return jobs

    def always_run(self) -> dict[str, int]:
        """Blocks (or training seeds) of the rows that run all they have, whatever the test says."""
        everything = not self.config.options.stop_early or len(self.ranked) < 2
        rows = self.config.checkpoints if everything else self.not_ranked
        return {row: len(self.config.checkpoints[row]) if self.over_seeds else len(self.blocks) for row in rows}

    def compare(self, drawn: Array) -> ComparisonState:
        """What the finished episodes say. drawn: the test's random draws."""
        if self.over_seeds:
            return compare_seeds({row: self._seed_scores(row) for row in self.ranked}, self.test, drawn)
        return compare({row: self._block_scores(row) for row in self.ranked}, self.test, drawn)

    def _block_scores(self, row: str) -> list[float]:
        """Mean success in each of the first blocks that every evaluation of its suite has run; NaN: not measured."""
        found: dict[Block, list[float]] = {}
        wanted: dict[str, int] = {}
        for evaluation in self.of_row(row):
            wanted[evaluation.suite] = wanted.get(evaluation.suite, 0) + 1
            done = self.finished(evaluation)
            for spec in self.plan(evaluation).specs:
                if spec.episode_id in done:
                    outcome = done.outcomes.get(spec.episode_id)
                    success = math.nan if outcome is None else float(outcome.result.success)
                    found.setdefault((evaluation.suite, spec.task, spec.init_state), []).append(success)
        values: list[float] = []
        for block in self.blocks:
            runs = found.get(block, [])
            if len(runs) < wanted[block[0]]:
                break
            values.append(fmean(runs))
        return values

    def _seed_scores(self, row: str) -> list[float]:
        """Success of the row's first training seeds, as far as they are whole."""
        scores = []
        for number in range(len(self.config.checkpoints[row])):
            evaluations = [evaluation for evaluation in self.of_row(row) if evaluation.number == number]
            found = [(len(self.plan(evaluation).specs), self.finished(evaluation)) for evaluation in evaluations]
            if any(len(done) < count for count, done in found):
                break
            scores.append(fmean(float(o.result.success) for _, done in found for o in done.outcomes.values()))
        return scores


def run(config: Leaderboard, output: Path, words: str, processes: int) -> None:
    """Run what is missing in `output`, then write its figures and its page and print the table.

    Args:
        config: the leaderboard's file.
        output: folder; what it holds of an earlier start is kept.
        words: the command, which continues it.
        processes: evaluations that run side by side, each in a process of its own if there are several.

    Raises:
        UserError: a checkpoint, a suite or a state is not there, the folder was begun elsewhere, or a process died.
        Interrupted: stopped by a signal; what has ended is kept.
    """
    console = LastingConsole()
    output.mkdir(parents=True, exist_ok=True)
    with locked(output / LOCK, f"making the leaderboard in {output}"):
        opened = open_leaderboard(config, output, console)
        try:
            with RunProgress(0, console=console) as progress, job_runner(opened.plan, processes, progress) as runner:

                def run_missing(needed: Mapping[str, int]) -> bool:
                    jobs = [job for row, count in needed.items() for job in opened.missing(row, count, processes)]
                    runner.run(jobs, "episodes")
                    return bool(jobs)

                drawn = places(opened.test) if opened.over_seeds else opened.test.signs()
                state = run_until_decided(partial(opened.compare, drawn), run_missing, opened.always_run())
                figures = _figures(opened, state)
                replace_text(output / RESULT, json.dumps(figures, indent=1) + "\n")
                videos = config.options.videos
                jobs = [Job(item, videos=videos, processes=processes) for item in opened.evaluations]
                runner.run([job for job in jobs if job.lacks_videos()], "videos")
        except Interrupted:
            raise Interrupted(f"the finished episodes are saved; continue with: {words}") from None
        folders = {row: [output / item.folder for item in opened.of_row(row)] for row in config.checkpoints}
        extras = Extras(
            speed={row: found for row, parts in folders.items() if (found := speed_of(parts)) is not None},
            machine=f"{cpu_name()}, {counted(cpu_count(), 'core')}",
            videos=videos_of(opened.evaluations, output, config.options.videos),
        )
        replace_text(output / SPEED, json.dumps({"machine": extras.machine, "rows": extras.speed}, indent=1) + "\n")
        write_page(output / PAGE, figures, extras)
    console.facts(table_lines(figures, extras.speed))
    console.say(f"page: {output / PAGE}")


def open_leaderboard(config: Leaderboard, output: Path, console: Console) -> OpenLeaderboard:
    """Read what is evaluated and what the checkpoints say of their training; UserError for what is not there."""
    evaluations = evaluations_of(config, output)
    plans: dict[tuple[str, int], EvaluationPlan] = {}
    overlaps: dict[Path, Overlap] = {}
    for item in evaluations:
        key = item.suite, item.command.seed
        if key not in plans:
            plans[key] = make_plan(item.benchmark, item.command, console)
        provenance = read_provenance(policy_folder(item.command.checkpoint))
        overlaps[item.folder] = overlap(trained_states(provenance), plans[key].specs)
    reasons = {
        row: _not_ranked(config, row, [overlaps[item.folder] for item in evaluations if item.row == row])
        for row in config.checkpoints
    }
    options = config.options
    first = {suite: plan for (suite, seed), plan in plans.items() if seed == options.seeds[0]}
    blocks, looks = _in_order(first, options.looks or _LOOKS)
    if options.compare == "seeds":
        looks = seed_looks(config.seeds_each, options.looks, options.level)
    test = ComparisonPlan(looks=looks, level=options.level)
    not_ranked = {row: reason for row, reason in reasons.items() if reason}
    return OpenLeaderboard(config, output, evaluations, plans, blocks, overlaps, not_ranked, test)


def evaluations_of(config: Leaderboard, output: Path) -> list[Evaluation]:
    """Every evaluation of a leaderboard in the folder `output`, row by row."""
    return [
        _evaluation(config, output, (row, number, checkpoint), suite, seed)
        for row, checkpoints in config.checkpoints.items()
        for number, checkpoint in enumerate(checkpoints)
        for suite in config.options.suites
        for seed in config.options.seeds
    ]


def _evaluation(config: Leaderboard, output: Path, which: tuple[str, int, str], suite: str, seed: int) -> Evaluation:
    """which: row, number of the checkpoint in it, and the checkpoint."""
    row, number, checkpoint = which
    options, benchmark = config.options, benchmark_of(suite)
    command = BenchmarkCommand(
        checkpoint=checkpoint,
        suite=suite,
        protocol=options.protocol,
        states_per_task=options.states_per_task,
        at_end=False,
        mode=options.mode,
        seed=seed,
        device=options.device,
        env=options.env,
        videos=0,
        imports=imported(),
    )
    command = resolved(benchmark, command, suite)
    part = row.replace(" ", "_") + (f"-{number}" if len(config.checkpoints[row]) > 1 else "")
    folder = Path("cells") / part / f"{suite}-{command.protocol}-seed{seed}"  # its name in folders of earlier versions
    return Evaluation(row, number, benchmark, suite, folder, replace(command, output=str(output / folder)))


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


def _not_ranked(config: Leaderboard, row: str, overlaps: Sequence[Overlap]) -> str:
    """Why a row is shown and not ranked; '' where it is ranked."""
    shared, total = sum(part.shared for part in overlaps), sum(part.episodes for part in overlaps)
    if shared:
        return f"trained on {shared} of its {total} evaluated states: not ranked"
    if config.options.compare == "seeds" and len(config.checkpoints[row]) == 1:
        return "a single training seed: not ranked"
    return ""


def _figures(opened: OpenLeaderboard, state: ComparisonState) -> dict[str, Any]:
    """What leaderboard.json holds."""
    measured = [
        Measured(item, opened.finished(item), EpisodeResultsLog.fingerprint(folder), opened.overlaps[item.folder])
        for item in opened.evaluations
        if (folder := opened.output / item.folder).exists()
    ]
    figures = figures_of(opened.config, measured, opened.test, state, opened.not_ranked)
    return figures | {"protocol": opened.plan(opened.evaluations[0]).protocol.describe()}
