"""The fastest way to run a config on this machine, by short real trials. Shared by `plan` and `train --autotune`."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.autotune.memory import host_shortage
from embodied_rl.autotune.trials import Round, Trial, TrialOutcome, halve, num_trials, run_trial
from embodied_rl.config.env import EnvConfig, resized
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig, SchedulerConfig, SerialConfig
from embodied_rl.utils.signals import Interrupted
from embodied_rl.utils.words import counted
from embodied_rl.vec_env import VecEnv

OpenEnv = Callable[[EnvConfig], AbstractContextManager[VecEnv]]
States = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Tuning:
    """The config with the choice filled in, what its candidate's trials gave, and all candidates' outcomes."""

    config: TrainConfig
    best: TrialOutcome[TrainConfig]
    outcomes: list[TrialOutcome[TrainConfig]]

    def describe(self) -> str:
        """The choice, in a line."""
        env, learner = self.config.env, self.config.learner
        return (
            f"chosen of {len(self.outcomes)}: {self.config.scheduler.describe()}; {counted(env.num_envs, 'env')}, "
            f"micro-batches of {learner.microbatch_size} rows; {self.best.rate:.0f} decisions/s"
        )

    def table(self) -> Table:
        """What was tried and what came out, for 80 columns; rates of one round compare."""
        table = Table("schedule", title="tried in short iterations on a copy of the policy", box=box.SIMPLE_HEAD)
        for name in ("envs", "micro-batch", "round"):
            table.add_column(name, justify="right")
        table.add_column("decisions/s", overflow="fold")
        for outcome in self.outcomes:
            config = outcome.candidate
            style = "bold" if outcome is self.best else None
            table.add_row(
                config.scheduler.describe(),
                str(config.env.num_envs),
                str(config.learner.microbatch_size),
                str(outcome.last_round or ""),
                outcome.error or f"{outcome.rate:.1f}{' *' if outcome is self.best else ''}",
                style=style,
            )
        return table


def tune(
    config: TrainConfig,
    open_env: OpenEnv,
    policy: TrainablePolicy,
    states: States,
    console: Console,
    others: Sequence[str] = (),
) -> Tuning:
    """Choose scheduler, env groups, worlds and micro-batch for `config`, which is resolved; the rest stays as given.

    `async` is tried only where config asks for it. Whose rows do not fit into the host's memory is not
    tried, what runs out of a device's has failed. Neither `policy` nor any
    random stream of the run changes.

    Args:
        open_env: opens the simulator; it is closed again.
        states: initial states to train on, by task.
        others: further devices of the policy's kind; acting on the first of them is tried too.

    Raises:
        UserError: for schedules that cannot be tried from here, or if nothing fits into memory or none runs.
        Interrupted: on Ctrl-C.
    """
    if isinstance(config.scheduler, RayConfig):
        raise UserError("plan and --autotune know this machine only: choose --scheduler serial or pipelined for them.")
    if config.learner.num_processes > 1:
        raise UserError(
            "plan and --autotune measure a learner of one process: leave out --learner.num-processes for them."
        )
    if config.reward.model:
        raise UserError("plan and --autotune have no reward model in their trials: leave out --reward.model for them.")
    try:
        with _Trials(config, open_env, policy, states) as trials:
            return _tune(config, trials, console, others)
    except KeyboardInterrupt:
        raise Interrupted("stopped while schedules were tried: nothing was trained or written") from None


def _tune(config: TrainConfig, trials: _Trials, console: Console, others: Sequence[str]) -> Tuning:
    observation, rows_per_group = trials.look()
    batch_rows = round(config.rollout.groups(trials.group_size) * rows_per_group)
    outcomes = [
        TrialOutcome(one, error=host_shortage(one, observation, batch_rows))
        for one in candidates(config, rows_per_group, others)
    ]
    fitting = [outcome.candidate for outcome in outcomes if outcome.error is None]
    if not fitting:
        raise UserError(
            f"no schedule's rows fit into memory ({outcomes[0].error}): lower --rollout.episodes-per-iteration."
        )
    total = num_trials(len(fitting))
    if not console.is_terminal:
        console.print(f"trying {len(fitting)} schedules in up to {total} short iterations")
    columns = (TextColumn("trying {task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{len(fitting)} schedules", total=total)

        def trial(candidate: TrainConfig, round_: Round) -> Trial:
            try:
                return trials.run(candidate, round_.waves)
            finally:
                bar.advance(task)

        try:
            best, tried = halve(fitting, trial)
        except RuntimeError as error:
            raise UserError(f"none of {len(fitting)} schedules runs; the first one: {error}") from error
    by_config = {outcome.candidate: outcome for outcome in tried}
    return Tuning(best.candidate, best, [by_config.get(outcome.candidate, outcome) for outcome in outcomes])


class _Trials:
    """Runs trials on one simulator after the other: it is opened anew where a candidate wants another one."""

    def __init__(self, config: TrainConfig, open_env: OpenEnv, policy: TrainablePolicy, states: States) -> None:
        self.group_size = make_algorithm(config.algorithm).group_size
        self._config, self._open_env = config, open_env
        self._policy, self._states = policy, states
        self._opened = ExitStack()
        self._env: tuple[EnvConfig, VecEnv] | None = None

    def __enter__(self) -> _Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def look(self) -> tuple[int, float]:
        """Bytes of a recorded row, and rows of a group as one wave of episodes has them. It warms the process up."""
        config = self._config
        small = fill_in(config, SerialConfig(), config.env.num_envs, max(1, config.learner.microbatch_size // 2), 1)
        row = self._env_of(config.env).new_observation(1)
        found = self.run(small, waves=1)
        return row.images.nbytes + row.proprio.nbytes, found.decisions / self._groups(1)

    def run(self, candidate: TrainConfig, waves: int) -> Trial:
        """A trial with so many episodes for each world of the given config, at most as many as an iteration has."""
        episodes = self._groups(waves) * self.group_size
        short = dataclasses.replace(
            candidate, rollout=dataclasses.replace(candidate.rollout, episodes_per_iteration=episodes)
        )
        try:
            return run_trial(short, self._env_of(candidate.env), self._policy, self._states)
        except BaseException:
            self._close()  # it may be broken
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            raise

    def _groups(self, waves: int) -> int:
        whole = self._config.rollout.groups(self.group_size)
        return min(whole, math.ceil(waves * self._config.env.num_envs / self.group_size))

    def _env_of(self, config: EnvConfig) -> VecEnv:
        if self._env is None or self._env[0] != config:
            self._close()
            self._env = config, self._opened.enter_context(self._open_env(config))
        return self._env[1]

    def _close(self) -> None:
        self._env = None
        self._opened.close()


def candidates(config: TrainConfig, rows_per_group: float, others: Sequence[str] = ()) -> list[TrainConfig]:
    """Configs to try, the simplest first: at most twelve.

    They are serial and pipelined with several numbers of env groups, these two with half the worlds, with half and with
    twice the micro-batch, and pipelined with acting on the first of `others`.
    """
    most, rows = config.env.num_envs, config.learner.microbatch_size
    given = config.scheduler if isinstance(config.scheduler, PipelinedConfig) else PipelinedConfig()
    cpu = (given.act_device or config.device).startswith("cpu")
    usual = dataclasses.replace(given, env_groups=PipelinedConfig().num_env_groups(most, cpu=cpu))
    asked = given.env_groups or 0
    counts = (1, 2, asked if asked > 2 else 4)
    pipelined = [dataclasses.replace(given, env_groups=count) for count in counts if count <= most]
    found: list[tuple[SchedulerConfig, int, int]] = [(one, most, rows) for one in (SerialConfig(), *pipelined)]
    if others and given.act_device is None:
        apart = (dataclasses.replace(given, env_groups=count, act_device=others[0]) for count in (1, 2))
        found += [(one, most, rows) for one in apart if (one.env_groups or 1) <= most]
    found += [(one, most // 2, rows) for one in (SerialConfig(), usual) if most // 2 >= (usual.env_groups or 1)]
    found += [(one, most, size) for one in (SerialConfig(), usual) for size in (2 * rows, rows // 2) if size]
    return [fill_in(config, *one, rows_per_group) for one in found]


def fill_in(
    config: TrainConfig, scheduler: SchedulerConfig, num_envs: int, microbatch_size: int, rows_per_group: float
) -> TrainConfig:
    """`config` with a choice filled in, and `autotune` off: it is done.

    Pipelined schedulers learn from groups as they end, so minibatches of rows become minibatches of about as many rows
    in whole groups.
    """
    learner = dataclasses.replace(config.learner, microbatch_size=microbatch_size)
    if isinstance(scheduler, PipelinedConfig) and learner.minibatch_size is not None:
        groups = config.rollout.groups(make_algorithm(config.algorithm).group_size)
        learner = _in_groups(learner, groups, rows_per_group)
    env = resized(config.env, num_envs, processes=config.env.watched and min(config.env.watched, num_envs))
    return dataclasses.replace(config, autotune=False, scheduler=scheduler, learner=learner, env=env)


def _in_groups(learner: LearnerConfig, groups: int, rows_per_group: float) -> LearnerConfig:
    assert learner.minibatch_size is not None
    minibatches = max(1, round(groups * rows_per_group / learner.minibatch_size))
    return dataclasses.replace(learner, minibatch_size=None, minibatch_groups=math.ceil(groups / minibatches))


def further_devices(config: TrainConfig) -> list[str]:
    """Devices beside the one that the policy learns on, of its kind."""
    return [f"cuda:{number}" for number in range(1, torch.cuda.device_count())] if config.device == "cuda" else []
