"""The evaluations of a study: episodes that are missing are run, here or side by side, and are read back from disk."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from embodied_rl.config.env import resized
from embodied_rl.evaluation.adastop import ComparisonState
from embodied_rl.evaluation.benchmark import summarise
from embodied_rl.evaluation.results_log import EpisodeResultsLog, Finished
from embodied_rl.factory.scenes import announce_compilation
from embodied_rl.jobs.eval_request import BenchmarkCommand, request_of
from embodied_rl.jobs.evaluation_setup import EvaluationPlan, evaluation_env, make_plan, prepare, run_episodes
from embodied_rl.jobs.videos import missing_videos, record_failure
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.types import EpisodeResult
from embodied_rl.utils.machine import cpu_count
from embodied_rl.utils.signals import StopRequest
from embodied_rl.utils.threads import set_torch_threads
from embodied_rl.utils.words import counted
from embodied_rl.utils.work_pool import WorkPool

SPEED = "speed.jsonl"
"""In an evaluation's folder: what each session took. The only file that a repeated study does not repeat."""


def run_until_decided(
    compare: Callable[[], ComparisonState], run: Callable[[Mapping[str, int]], bool], always: Mapping[str, int]
) -> ComparisonState:
    """Look at the data and run what the next look needs, until every comparison is decided or all has run.

    Args:
        compare: what the data so far say.
        run: runs what is missing of so many samples, by name; whether anything was missing.
        always: samples that are run whatever the comparisons say, by name.
    """
    while True:
        state = compare()
        if not run({**state.needed, **always}):
            return state


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of a study: of one checkpoint, on one suite, with one seed.

    Args:
        row: the checkpoint's name in the study; several training seeds of one recipe share it.
        number: of the checkpoint among those of its row.
        benchmark: of the suite.
        suite: its whole name.
        folder: relative to the study's.
        command: as `eval` would get it.
    """

    row: str
    number: int
    benchmark: str
    suite: str
    folder: Path
    command: BenchmarkCommand


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done for an evaluation.

    Args:
        evaluation: of one checkpoint.
        episodes: ids of those that are missing.
        videos: failed episodes of which videos are recorded afterwards, where there are none yet.
        processes: how many share the machine's cores.
    """

    evaluation: Evaluation
    episodes: tuple[int, ...] = ()
    videos: int = 0
    processes: int = 1

    @property
    def folder(self) -> Path:
        """Of the evaluation."""
        return Path(self.evaluation.command.output)

    def lacks_videos(self) -> bool:
        """Whether videos are missing that the job asks for."""
        done = read_finished(self.folder)
        return bool(done.outcomes and missing_videos(summarise(done), self.folder, self.videos))


@dataclass(frozen=True, slots=True)
class JobRunner:
    """Who does the jobs: the processes of a pool, or this one where there is none. See `job_runner`."""

    plan_of: Callable[[Evaluation], EvaluationPlan]
    processes: int
    progress: RunProgress
    stop: StopRequest
    pool: WorkPool[Job] | None = None

    def run(self, jobs: Sequence[Job], what: str) -> None:
        """Do all of them; returns when they are done. what: they are of, for the progress bar."""
        if self.pool is not None and jobs:
            episodes = sum(len(job.episodes) for job in jobs)
            self.progress.stage(f"{counted(len(jobs), 'evaluation')}, {what}", episodes)
            self.pool.run(jobs, self.progress.episode, self.stop)
            return
        for job in jobs:
            self.progress.stage(f"{job.evaluation.row}, {job.evaluation.suite}, {what}", len(job.episodes))
            _run_planned(self.plan_of(job.evaluation), job, self.progress.episode, self.stop.check_interrupt)


@contextmanager
def job_runner(
    plan_of: Callable[[Evaluation], EvaluationPlan], processes: int, progress: RunProgress
) -> Iterator[JobRunner]:
    """A `with` block in which the first Ctrl-C lets the episodes' decisions come to their end.

    Args:
        plan_of: the episodes of an evaluation, where it runs in this process.
        processes: how many work side by side; 1 is this process.
        progress: gets what ends.
    """
    stop = StopRequest(lambda: progress.message("stopping after this decision (again: leave at once)"))
    with stop:
        if processes == 1:
            yield JobRunner(plan_of, processes, progress, stop)
        else:
            announce_compilation()  # else each of them would
            with WorkPool(processes, run_job) as pool:
                yield JobRunner(plan_of, processes, progress, stop, pool)


def run_job(job: Job, say: Callable[[Any], None], check: Callable[[], None]) -> None:
    """Do a job in a process of its own.

    Args:
        job: what is to be done.
        say: gets the success of each episode.
        check: called before each decision.

    Raises:
        Interrupted: from `check`; what has ended is kept.
        UserError: the checkpoint or a state is not there, or the folder was begun elsewhere.
    """
    cores = cpu_count()
    set_torch_threads(max(1, cores // job.processes))
    plan = make_plan(job.evaluation.benchmark, job.evaluation.command, Console(quiet=True))
    env = plan.command.env
    threads = max(1, (env.threads or cores) // job.processes)
    command = dataclasses.replace(plan.command, env=resized(env, threads=threads))
    _run_planned(dataclasses.replace(plan, command=command), job, say, check)


def _run_planned(plan: EvaluationPlan, job: Job, say: Callable[[Any], None], check: Callable[[], None]) -> None:
    """The same where the episodes are at hand."""
    asked = job.evaluation.command
    ready = prepare(plan, asked)
    with evaluation_env(plan, ready.policy, ready.renderer) as env:
        if job.episodes:
            wanted = set(job.episodes)
            specs = [spec for spec in plan.specs if spec.episode_id in wanted]
            clock = _Clock(job, env.num_envs)

            def ended(result: EpisodeResult) -> None:
                clock.decisions += result.num_decisions
                say(result.success)

            request = request_of(job.evaluation.benchmark, asked)
            with EpisodeResultsLog.open(job.folder, request, ready.marks) as log, clock:
                run_episodes(plan, env, ready.policy, specs, log, on_episode=ended, on_round=check)
        if job.videos:
            for spec in missing_videos(summarise(read_finished(job.folder)), job.folder, job.videos):
                check()
                record_failure(env, ready.policy, spec, asked.mode, job.folder)


class _Clock:
    """A `with` block that ends with a line in the job's folder: decisions of the episodes that ended, and seconds."""

    def __init__(self, job: Job, num_envs: int) -> None:
        self.decisions = 0
        self._job, self._num_envs = job, num_envs

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds = round(time.perf_counter() - self._began, 3)
        if self.decisions:
            row = {"decisions": self.decisions, "seconds": seconds, "num_envs": self._num_envs}
            with (self._job.folder / SPEED).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row | {"jobs": self._job.processes}) + "\n")


def read_finished(folder: Path) -> Finished:
    """The finished episodes of an evaluation; none before it has begun."""
    return EpisodeResultsLog.read(folder) if folder.exists() else Finished()


def speed_of(folders: Sequence[Path]) -> dict[str, float] | None:
    """Decisions a second over all sessions of some evaluations; None where none was timed to its end."""
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
