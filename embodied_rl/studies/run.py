"""One cell of a leaderboard at work: its missing episodes, then films of failures. In this process or in another."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from embodied_rl.config.env import resized
from embodied_rl.evaluation.benchmark import summarise
from embodied_rl.evaluation.results_log import EpisodeResultsLog, Finished
from embodied_rl.jobs.eval_request import request_of
from embodied_rl.jobs.evaluation_setup import EvaluationPlan, make_plan, open_evaluation_env, prepare, run_episodes
from embodied_rl.jobs.failure_videos import failures, film_index, film_path, record_failure_videos
from embodied_rl.studies.leaderboard_config import Cell
from embodied_rl.types import EpisodeResult
from embodied_rl.utils.machine import cpu_count
from embodied_rl.utils.threads import set_torch_threads

SPEED = "speed.jsonl"
"""In a cell's folder: what each session took. The only file that a repeated leaderboard doesn't repeat."""


@dataclass(frozen=True, slots=True)
class CellWork:
    """What is to be done for a cell.

    Args:
        cell: the evaluation.
        episodes: ids of those that are missing.
        videos: failed episodes that are filmed afterwards; those that are filmed already are not again.
        jobs: processes that share the machine's cores.
    """

    cell: Cell
    episodes: tuple[int, ...] = ()
    videos: int = 0
    jobs: int = 1

    @property
    def folder(self) -> Path:
        """Of the evaluation."""
        return Path(self.cell.command.output)


def run_cell(work: CellWork, say: Callable[[Any], None], check: Callable[[], None]) -> None:
    """Do the work in a process of its own. say: gets the success of each episode; check: called before each decision.

    Raises:
        Interrupted: from `check`; what has ended is kept.
        UserError: the checkpoint or a state is not there, or the folder was begun elsewhere.
    """
    cores = cpu_count()
    set_torch_threads(max(1, cores // work.jobs))
    plan = make_plan(work.cell.benchmark, work.cell.command, Console(quiet=True))
    env = plan.command.env
    threads = max(1, (env.threads or cores) // work.jobs)
    command = dataclasses.replace(plan.command, env=resized(env, threads=threads))
    run_planned(dataclasses.replace(plan, command=command), work, say, check)


def run_planned(plan: EvaluationPlan, work: CellWork, say: Callable[[Any], None], check: Callable[[], None]) -> None:
    """The same where the episodes are at hand."""
    cell = work.cell
    ready = prepare(plan, cell.command)
    with open_evaluation_env(plan, ready.policy, ready.renderer) as env:
        if work.episodes:
            wanted = set(work.episodes)
            specs = [spec for spec in plan.specs if spec.episode_id in wanted]
            clock = _Clock(work, env.num_envs)

            def ended(result: EpisodeResult) -> None:
                clock.decisions += result.num_decisions
                say(result.success)

            with (
                EpisodeResultsLog.open(work.folder, request_of(cell.benchmark, cell.command), ready.marks) as log,
                clock,
            ):
                run_episodes(plan, env, ready.policy, specs, log, on_episode=ended, on_round=check)
        report = summarise(read_cell(work.folder)) if work.videos else None
        for count in range(1, work.videos + 1):  # one by one, to stop between two
            check()
            assert report is not None
            record_failure_videos(env, ready.policy, report, cell.command.mode, work.folder, count)


class _Clock:
    """A `with` block that ends with a line in the cell's folder: decisions of the episodes that ended, and seconds."""

    def __init__(self, work: CellWork, num_envs: int) -> None:
        self.decisions = 0
        self._work, self._num_envs = work, num_envs

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._began
        if self.decisions:
            row = {
                "decisions": self.decisions,
                "seconds": round(seconds, 3),
                "num_envs": self._num_envs,
                "jobs": self._work.jobs,
            }
            with (self._work.folder / SPEED).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def read_cell(folder: Path) -> Finished:
    """The finished episodes of a cell."""
    return EpisodeResultsLog.read(folder) if folder.exists() else Finished()


def speed_of(folders: list[Path]) -> dict[str, float] | None:
    """Decisions a second over all sessions of some cells; None where none was timed to its end."""
    rows: list[Mapping[str, Any]] = []
    for folder in folders:
        if (folder / SPEED).is_file():
            text = (folder / SPEED).read_text(encoding="utf-8")
            rows += [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    if not rows:
        return None
    decisions, seconds = (sum(row[name] for row in rows) for name in ("decisions", "seconds"))
    return {
        "decisions_per_s": round(decisions / seconds, 1),
        "decisions": decisions,
        "seconds": round(seconds, 3),
        "jobs": max(row["jobs"] for row in rows),
    }


def unfilmed(work: CellWork) -> bool:
    """Whether films are missing that `work` asks for."""
    done = read_cell(work.folder)
    wanted = failures(summarise(done))[: work.videos] if done.outcomes else []
    index = film_index(work.folder)
    paths = [film_path(work.folder, spec) for spec in wanted]
    return any(path.name not in index or not path.is_file() for path in paths)
