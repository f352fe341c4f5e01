"""The training loop: collect a batch, update on it, evaluate, save. `_Run.run` is the loop."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.evaluation.evaluate import EvalReport, unmeasured
from embodied_rl.learner.average import WeightAverage, resume_average
from embodied_rl.learner.checkpoint import Checkpoints, Loaded, load, restore_rng, rng_state
from embodied_rl.learner.guard import Guard
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.rollout.broken_states import name_states
from embodied_rl.rollout.sampler import TaskStates, evaluation_specs
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.make import make_profiler
from embodied_rl.training.observer import Observer, SilentObserver
from embodied_rl.training.parts import make_parts
from embodied_rl.training.ranked import evaluate_together, stop_together
from embodied_rl.training.settings import PolicyFiles, RunOptions, TaskSplit, TrainOutcome, TrainSettings
from embodied_rl.utils.signals import Interrupted, StopRequest
from embodied_rl.vec_env import VecEnv

_BEGIN = RunOptions()


@dataclass(slots=True)
class _Boundary:
    """The state between two iterations: all that a checkpoint needs beside weights and optimiser."""

    iteration: int
    sampler: dict[str, Any]
    rng: dict[str, Any]
    metrics_position: int


class _Run:
    """One run's parts, wired together, and its loop."""

    def __init__(
        self,
        run_dir: Path,
        env: VecEnv,
        policy: TrainablePolicy,
        files: PolicyFiles,
        settings: TrainSettings,
        states: TaskSplit,
        observer: Observer,
        options: RunOptions,
    ) -> None:
        self.env = env
        self.policy = policy
        self.files = files
        self.settings = settings
        self.config = options.config
        self.collectives = options.collectives
        self.observer = observer = observer if self.collectives.rank == 0 else SilentObserver()
        self.stop = StopRequest(
            lambda: observer.log("stopping: finishing this step, then saving (again: leave at once)")
        )
        self.profiler = options.profiler or make_profiler(settings.scheduler)
        self.heldout = evaluation_specs(_first_states(states.heldout, settings.evaluation), settings.seed)
        self.average = WeightAverage(policy, updates) if (updates := settings.learner.average_updates) > 0 else None
        callbacks = Callbacks(
            on_episode=observer.episode, check_interrupt=self._check_interrupt, log=observer.log, remote=options.remote
        )
        trained_in = env if settings.people is None else settings.people
        parts = make_parts(
            run_dir, trained_in, policy, settings, states.train, self.profiler, callbacks, self.collectives
        )
        self.sampler, self.learner, self.scheduler = parts.sampler, parts.learner, parts.scheduler
        self.checkpoints = Checkpoints(run_dir / "checkpoints", settings.checkpoint.keep)
        self.guard = Guard(settings.guard, by_success=settings.rollout.sampler == "uniform")
        self.before: EvalReport | None = None
        self.after: EvalReport | None = None
        self.boundary: _Boundary
        """Set by `begin` or `restore`."""
        self.saved: Path | None = None

    def restore(self, loaded: Loaded) -> None:
        """Continue where `loaded` was saved."""
        self.files.load(loaded.policy)
        resume_average(self.average, self.policy, loaded.trainer.get("average"))
        self.learner.load_state_dict(loaded.trainer["learner"])
        self.sampler.load_state_dict(loaded.state["sampler"])
        self.before = EvalReport.from_json(before) if (before := loaded.state["before"]) is not None else None
        restore_rng(loaded.trainer["rng"])
        self.guard.load_state_dict(loaded.state["guard"])
        self.checkpoints.protected = self.guard.good
        self.collectives.gather(None)  # all have read it
        # Only now files change, when everything above was found to fit; and the pointer first: a kill after the metrics
        # were cut must not leave a checkpoint to go on from that needs them.
        if self.collectives.rank == 0:
            self.checkpoints.point_latest(loaded.path.name)
            self.observer.begin(int(loaded.state["metrics_position"]))
            self.checkpoints.continue_from(loaded)
        self.boundary = self._boundary_now(loaded.iteration)
        self.saved = loaded.path

    def begin(self) -> None:
        """Start at iteration 0, also where an earlier start was killed before its first checkpoint."""
        if self.collectives.rank == 0:
            self.observer.begin(0)
            self.checkpoints.continue_from(None)
        self.boundary = self._boundary_now(0)

    def run(self) -> TrainOutcome:
        """Every iteration that is left."""
        settings = self.settings
        self._evaluate_if_due(self.boundary.iteration)
        self.profiler.drain()  # what came before is no iteration's idle time
        began = time.perf_counter()
        self._announce_rollout(self.boundary.iteration)
        for batch in self.scheduler.batches(self.boundary.iteration, settings.iterations):
            iteration = batch.version + 1
            if broken := self.sampler.broken.found_in(batch.version):
                self.observer.log(f"left out of training, as the simulator breaks there: {name_states(broken)}")
            self.observer.phase("update", iteration, 0)
            with self.profiler.span("update"):
                metrics = self.learner.update(batch)
                if self.average is not None:
                    self.average.add()
            metrics |= self._guard(metrics | batch.info)  # before `publish`: it may put older weights back
            self.scheduler.publish(self.learner.version)
            ended = time.perf_counter()
            metrics |= batch.info | self.profiler.drain() | {"time/iteration": ended - began}
            self.observer.metrics(iteration, metrics)
            self.boundary = self._boundary_now(iteration)  # after the metrics: it has their end
            if iteration % settings.checkpoint.every == 0 or iteration == settings.iterations:
                self.save()
            stop_together(self.collectives, self.stop)
            began = ended + self._evaluate_if_due(iteration)  # an evaluation is no iteration's time
            self._announce_rollout(iteration)
        if self.average is not None:
            self.average.apply()
        assert self.before is not None
        assert self.after is not None
        assert self.saved is not None
        return TrainOutcome(self.before, self.after, self.saved)

    def _guard(self, metrics: dict[str, float]) -> dict[str, float]:
        """Say why this update looks like a collapse, and go back to the last good checkpoint where that is asked for.

        Weights, their mean and the optimiser go back; episodes and updates are counted on, so that what comes differs.
        """
        alarms = self.guard.check(metrics)
        if not alarms:
            return {}
        text = f"ALARM after update {self.learner.version}: {'; '.join(alarms)}"
        good = self.guard.good
        back = self.guard.may_roll_back() and good is not None and good in self.checkpoints.names()
        if back and good is not None:
            version = self.learner.version
            loaded = load(self.checkpoints.folder / good)
            self.files.load(loaded.policy)
            resume_average(self.average, self.policy, loaded.trainer.get("average"))
            self.learner.load_state_dict(loaded.trainer["learner"])
            self.learner.version = version
            self.guard.rolled_back()
            text += f". Rolled back to {good}"
        else:
            text += self.guard.why_not()
        self.observer.log(text)
        return {"guard/alarms": float(len(alarms)), "guard/rolled_back": float(back)}

    def _check_interrupt(self) -> None:
        """Stop if that was asked for, but not in the middle of an update that single groups have begun."""
        if not self.learner.update_in_progress:
            self.stop.check_interrupt()

    def save(self) -> Path:
        """Write a checkpoint of the last boundary, unless it is there already; rank 0 does, and all wait for it."""
        boundary = self.boundary
        name = f"iter-{boundary.iteration:06d}"
        if self.saved is None or self.saved.name != name:
            self.guard.saving(name)
            self.checkpoints.protected = self.guard.good
            state = {
                "guard": self.guard.state_dict(),
                "sampler": boundary.sampler,
                "metrics_position": boundary.metrics_position,
                "before": self.before.to_json() if self.before is not None else None,
                "config": self.config,
            }
            trainer = {"learner": self.learner.state_dict(), "rng": boundary.rng}
            if self.average is not None:
                trainer["average"] = self.average.state_dict()
            self.saved = self.checkpoints.folder / name
            if self.collectives.rank == 0:
                self.checkpoints.save(boundary.iteration, self._save_policy, trainer, state)
            self.collectives.gather(None)  # no rank goes on before it is there
        return self.saved

    def _save_policy(self, folder: Path) -> None:
        with self._averaged():
            self.files.save(folder)

    def _averaged(self) -> AbstractContextManager[None]:
        """A `with` block in which the policy has the weights that are evaluated and saved."""
        return nullcontext() if self.average is None else self.average.in_place()

    def _boundary_now(self, iteration: int) -> _Boundary:
        return _Boundary(iteration, self.scheduler.sampler_state(), rng_state(), self.observer.position())

    def _announce_rollout(self, iteration: int) -> None:
        if iteration < self.settings.iterations and self.settings.recorded is None:
            self.observer.phase("rollout", iteration + 1, self.settings.rollout.episodes_per_iteration)

    def _evaluate_if_due(self, iteration: int) -> float:
        """Evaluate before the first update, every `every` updates, and after the last; return the seconds that took.

        Episodes that had to end before are not in them: they are the next iteration's. An evaluation is not part of a
        boundary: a run resumed from it evaluates again, and gets the same.
        """
        if self.settings.recorded is not None:
            self.before = self.after = unmeasured(self.settings.evaluation.mode)
            return 0.0
        every, last = self.settings.evaluation.every, self.settings.iterations
        if not (iteration in (0, last) or (every > 0 and iteration % every == 0)):
            return 0.0
        self.observer.phase("evaluate", iteration, len(self.heldout))
        with self.scheduler.paused(), self.profiler.excluded(), self._averaged():
            began = time.perf_counter()
            report = evaluate_together(
                self.collectives,
                self.env,
                self.policy,
                self.heldout,
                self.settings.evaluation.mode,
                on_episode=self.observer.episode,
                on_round=self.stop.check_interrupt,
            )
            seconds = time.perf_counter() - began
        if iteration == 0:
            self.before = report
        if iteration == last:
            self.after = report
        self.observer.evaluation(iteration, report)
        return seconds


def train(
    run_dir: Path,
    env: VecEnv,
    policy: TrainablePolicy,
    files: PolicyFiles,
    settings: TrainSettings,
    states: TaskSplit,
    observer: Observer,
    options: RunOptions = _BEGIN,
) -> TrainOutcome:
    """Train `policy` in `env`. In the end the policy has the weights that were evaluated last.

    On a CPU the same settings, policy and states give the same weights and metrics, bit for bit, except where rows of
    older policies are trained on (mode async, Ray with `max_staleness`): there timing decides which policy acts.

    The first SIGINT, SIGTERM or SIGHUP saves a checkpoint and raises Interrupted. An update that has begun is finished
    before; if it began with single groups, so is the rollout that these belong to. Any other rollout is dropped. The
    second signal leaves at once. Call it from the main thread.

    Args:
        states: no pair of task and initial state may be in both parts, unless settings.train_on_heldout.

    Raises:
        UserError: settings that do not fit together, a damaged checkpoint, a full disk.
        NonFiniteError, RatioError: as `Learner.update`.
        RankError: another rank was lost.
        Interrupted: stopped by a signal; the message says how to go on.
    """
    if not settings.train_on_heldout:
        _check_disjoint(states)
    if settings.iterations < 1:
        raise UserError(f"iterations must be at least 1, got {settings.iterations}.")
    run = _Run(run_dir, env, policy, files, settings, states, observer, options)
    with closing(run.learner), closing(run.scheduler), run.stop:
        run.begin() if options.resume is None else run.restore(load(options.resume))
        try:
            return run.run()
        except Interrupted:
            path = run.save()
            raise Interrupted(f"saved {path}; continue with: {options.resume_command}") from None


def _first_states(states: TaskStates, config: EvalConfig) -> dict[str, list[int]]:
    short = [(task, len(rows)) for task, rows in states.items() if len(rows) < config.states_per_task]
    if short:
        task, count = short[0]
        raise UserError(
            f"evaluation.states_per_task is {config.states_per_task}, but task '{task}' has {count} held-out states."
        )
    return {task: list(rows)[: config.states_per_task] for task, rows in states.items()}


def _check_disjoint(states: TaskSplit) -> None:
    for task, rows in states.train.items():
        shared = set(rows) & set(states.heldout.get(task, ()))
        if shared:
            raise UserError(
                f"task '{task}' would be evaluated on initial state {min(shared)}, which it is trained on; "
                "keep training and held-out states apart."
            )
