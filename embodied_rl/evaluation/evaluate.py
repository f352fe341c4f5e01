"""Success on given episodes, each run exactly once, with Wilson intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, pstdev
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.evaluation.intervals import Z95, wilson
from embodied_rl.policy import ActMode, Policy
from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.metrics import helped
from embodied_rl.rollout.retries import EVALUATION_ATTEMPTS, FailureCause, RetryPolicy
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import EnvInfo, VecEnv


@dataclass(frozen=True, slots=True)
class Score:
    """Successes of n episodes; low and high: the Wilson 95 % interval; mean_steps: control steps an episode.

    mean_return, return_std: of the episodes' summed rewards. has_success: whether the tasks have a goal that can be
    reached; where they have none, the mean return is what counts. not_measured: further episodes, which broke the
    simulator and count for nothing; n may be 0 only beside some of these.
    """

    successes: int
    episodes: int
    low: float
    high: float
    mean_steps: float
    mean_return: float
    return_std: float
    has_success: bool = True
    not_measured: int = 0

    @property
    def rate(self) -> float:
        """successes / episodes; 0 where nothing was measured."""
        return self.successes / max(1, self.episodes)

    @property
    def value(self) -> float:
        """What counts: the rate, or the mean return where the tasks have no success flag."""
        return self.rate if self.has_success else self.mean_return

    @property
    def return_interval(self) -> tuple[float, float]:
        """The normal 95 % interval of the mean return."""
        reach = Z95 * self.return_std / math.sqrt(self.episodes) if self.episodes else math.inf
        return self.mean_return - reach, self.mean_return + reach


@dataclass(frozen=True, slots=True)
class EvalReport:
    """What an evaluation found.

    tasks: by task, in the order given; results: of the measured episodes, in the order given; not_measured: episodes
    that broke the simulator, which no score counts; repeatable: as of `EnvInfo`: without it an initial state's number
    says nothing, and no other evaluation is of the same states.
    """

    mode: ActMode
    overall: Score
    tasks: dict[str, Score]
    results: list[EpisodeResult]
    not_measured: list[EpisodeSpec] = field(default_factory=list)
    repeatable: bool = True

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a metrics file: eval/return, eval/steps, eval/return/<task>, and where the tasks have a
        success flag eval/success, its interval and eval/success/<task>."""
        total = self.overall
        low, high = total.return_interval
        values = {
            "eval/steps": total.mean_steps,
            "eval/episodes": float(total.episodes),
            "eval/return": total.mean_return,
            "eval/return_ci_low": low,
            "eval/return_ci_high": high,
        } | {f"eval/return/{task}": score.mean_return for task, score in self.tasks.items() if score.episodes}
        if self.not_measured:
            values["eval/not_measured"] = float(len(self.not_measured))
        if not total.has_success:
            return values
        return {
            "eval/success": total.rate,
            "eval/success_ci_low": total.low,
            "eval/success_ci_high": total.high,
            **helped(self.results, "eval"),
            **values,
        } | {f"eval/success/{task}": score.rate for task, score in self.tasks.items() if score.episodes}

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> EvalReport:
        """The inverse of `to_json`."""
        results = [EpisodeResult(**{**row, "spec": EpisodeSpec(**row["spec"])}) for row in data["results"]]
        tasks = {task: Score(**score) for task, score in data["tasks"].items()}
        not_measured = [EpisodeSpec(**spec) for spec in data.get("not_measured", [])]
        repeatable = data.get("repeatable", True)
        return EvalReport(data["mode"], Score(**data["overall"]), tasks, results, not_measured, repeatable)


def evaluate(
    env: VecEnv,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    mode: ActMode,
    *,
    on_episode: Callable[[EpisodeResult], None] | None = None,
    on_round: Callable[[], None] | None = None,
    clock: Profiler | None = None,
) -> EvalReport:
    """Run each of `specs` once and score it; the result does not depend on the number of envs.

    An episode whose simulator failed is run again; one that fails in 3 attempts is not measured, and counts for
    nothing. on_round is called before each decision.

    Raises:
        UserError: Nothing could be measured, or an episode's actions were not finite in 5 attempts.
    """
    by_id = run_once(env, policy, specs, mode, on_episode=on_episode, on_round=on_round, clock=clock)
    return report(specs, by_id, mode, env.info)


def run_once(
    env: VecEnv,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    mode: ActMode,
    *,
    on_episode: Callable[[EpisodeResult], None] | None = None,
    on_broken: Callable[[EpisodeSpec], None] | None = None,
    on_round: Callable[[], None] | None = None,
    clock: Profiler | None = None,
) -> dict[int, EpisodeResult]:
    """As `evaluate`; the results by episode id. on_broken is called with each episode that is not measured."""
    if not specs:
        raise ValueError("there are no episodes to evaluate")
    waiting = iter(specs)
    attempts = RetryPolicy(EVALUATION_ATTEMPTS)

    def again(spec: EpisodeSpec, cause: FailureCause) -> EpisodeSpec | None:
        if attempts.record_failure(spec, cause) is not None:
            return spec
        if on_broken is not None:
            on_broken(spec)
        return None

    driver = EnvRunner(env, policy, clock or Profiler(), record=False, on_step=on_round)
    by_id: dict[int, EpisodeResult] = {}
    for recording in driver.run(lambda: next(waiting, None), again, mode):
        by_id[recording.result.spec.episode_id] = recording.result
        if on_episode is not None:
            on_episode(recording.result)
    return by_id


def report(
    specs: Sequence[EpisodeSpec], by_id: Mapping[int, EpisodeResult], mode: ActMode, info: EnvInfo
) -> EvalReport:
    """Score finished episodes, overall and by task.

    Args:
        specs: all that were to run.
        by_id: the results of those that were measured.
        mode: how the policy acted.
        info: of the simulator.

    Raises:
        UserError: There is none.
    """
    results = [by_id[spec.episode_id] for spec in specs if spec.episode_id in by_id]
    not_measured = [spec for spec in specs if spec.episode_id not in by_id]
    if not results:
        raise UserError(nothing_measured(not_measured))
    tasks = {}
    for task in dict.fromkeys(spec.task for spec in specs):
        rows = [result for result in results if result.spec.task == task]
        lost = sum(spec.task == task for spec in not_measured)
        tasks[task] = score(rows, has_success=info.has_success, not_measured=lost)
    overall = score(results, has_success=info.has_success, not_measured=len(not_measured))
    return EvalReport(mode, overall, tasks, results, not_measured, info.repeatable)


def unmeasured(mode: ActMode) -> EvalReport:
    """Of a policy that no simulator is there for: no episode, and any success from 0 to 1."""
    return EvalReport(mode, Score(0, 0, 0.0, 1.0, 0.0, 0.0, 0.0), {}, [])


def nothing_measured(specs: Sequence[EpisodeSpec]) -> str:
    """What to say where every one of `specs` broke the simulator."""
    first = specs[0]
    return (
        f"nothing could be measured: the simulator broke in every one of {len(specs)} episodes, the first of task "
        f"'{first.task}', initial state {first.init_state}. Mend the simulator, or evaluate on other states."
    )


def score(
    results: Sequence[EpisodeResult],
    successes: Sequence[bool] | None = None,
    *,
    has_success: bool = True,
    not_measured: int = 0,
) -> Score:
    """The score of episodes; ValueError without any.

    Args:
        results: of those that were measured.
        successes: one for each, where something else counts than that the goal was reached once.
        has_success, not_measured: as of `Score`.
    """
    if not results and not_measured:
        return Score(0, 0, 0.0, 1.0, 0.0, 0.0, 0.0, has_success, not_measured)
    won = sum(result.success for result in results) if successes is None else sum(successes)
    low, high = wilson(won, len(results))
    steps, returns = [result.num_steps for result in results], [result.reward for result in results]
    return Score(won, len(results), low, high, fmean(steps), fmean(returns), pstdev(returns), has_success, not_measured)
