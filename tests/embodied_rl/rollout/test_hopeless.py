"""Episodes stopped as hopeless: how many successes that may cost, and that it depends on nothing but closed batches."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout import hopeless
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.episode import ActiveEpisode
from embodied_rl.rollout.groups import GroupQueue
from embodied_rl.rollout.hopeless import HopelessRule, Success, calibrate
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig, SchedulerConfig, SerialConfig
from embodied_rl.training.on_policy import RunOptions, TaskSplit, train
from embodied_rl.types import ActOutput, EpisodeResult, EpisodeSpec, Observation, StopTrace
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.signals import Interrupted
from tests.embodied_rl.scheduler.toys import Outcome, Setup, SlowEnv, assert_same_rows, jitter, pipelined, serial
from tests.embodied_rl.toy_run import JsonObserver, files_of, newest, settings_of
from tests.toy import HELDOUT, TASKS, ToyPolicy

LEVEL, AUDITS = 0.6, 0.25
VALUES = st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=6)
SUCCESSES = st.lists(st.builds(Success, st.just("t"), st.sampled_from([1.0, 1.0, 4.0]), VALUES.map(tuple)), max_size=80)


def is_stopped(values: Sequence[float], limits: Sequence[float]) -> bool:
    return any(value < limits[min(place, len(limits) - 1)] for place, value in enumerate(values))


@given(SUCCESSES, st.floats(0.01, 0.5))
@settings(deadline=None, max_examples=50)
def test_at_most_the_given_share_of_the_remembered_successes_is_stopped(successes: list[Success], level: float) -> None:
    limits = calibrate(successes, level).tolist()
    lost = sum(success.weight for success in successes if is_stopped(success.values, limits))
    assert lost <= level * sum(success.weight for success in successes) + 1e-9
    assert limits[0] == -np.inf, "the first decision is always made"
    if len(successes) * level < hopeless.MIN_STOPS:
        assert set(limits) == {-np.inf}


def drifting(seed: int, count: int) -> list[Success]:
    """Successes whose values walk up from a start of their own, of 4 to 12 decisions."""
    draws = np.random.default_rng(seed)
    return [
        Success("t", 1.0, tuple((draws.normal() + 0.3 * draws.normal(size=length).cumsum()).tolist()))
        for length in draws.integers(4, 13, count)
    ]


def test_of_further_successes_hardly_more_are_stopped() -> None:
    lost, level = [], 0.05
    for seed in range(20):
        limits = calibrate(drifting(seed, 200), level).tolist()
        lost.append(np.mean([is_stopped(x.values, limits) for x in drifting(1000 + seed, 200)]))
    assert 0.01 < np.mean(lost) < level * 1.3


def test_the_horizon_is_learned_from_successes() -> None:
    """Values say nothing here; all but one of a hundred successes are over after three decisions."""
    successes = [Success("t", 1.0, (0.5,) * 3)] * 99 + [Success("t", 1.0, (0.5,) * 9)]
    limits = calibrate(successes, 0.03)
    np.testing.assert_allclose(limits[1:3], 0.5)
    assert (limits[1:3] <= 0.5).all(), "or each success would be stopped"
    assert set(limits[3:]) == {np.inf}


def test_limits_follow_the_mean_and_spread_of_successes() -> None:
    """A fall that is common early, where values spread, is hopeless late."""
    draws = np.random.default_rng(0)
    ends = [tuple((draws.normal(size=4) * [1, 1, 0.1, 0.1] + [0, 0, 2, 3]).tolist()) for _ in range(400)]
    limits = calibrate([Success("t", 1.0, values) for values in ends], 0.03)
    assert -4 < limits[1] < -2 < 1 < limits[2] < 1.9 < 2.5 < limits[3] < 2.9


def result_of(number: int, task: str, *, success: bool, values: Sequence[float]) -> EpisodeResult:
    trace = StopTrace(False, False, tuple(values))
    spec = EpisodeSpec(number, task, 0, number, number)
    return EpisodeResult(spec, success, success, not success, 0.0, len(values), len(values), stop=trace)


def judged(rule: HopelessRule, task: str, value: float, bank_row: int | None = None, *, success: bool = False) -> float:
    """Share of 200 episodes at their second decision that the rule stops."""
    specs = [EpisodeSpec(number, task, 0, number, bank_row=bank_row) for number in range(200)]
    episodes = [ActiveEpisode(spec, num_decisions=1, success=success) for spec in specs]
    return len(rule.judge(episodes, torch.full((200,), value))) / 200


def test_a_task_is_judged_by_its_own_successes_alone() -> None:
    rule = HopelessRule(0.05, 0.1)
    many = [result_of(i, "many", success=True, values=(0, 1 + i / 100)) for i in range(100)]
    some = [result_of(i, "some", success=True, values=(0, i / 100)) for i in range(100, 120)]
    few = [result_of(i, "few", success=True, values=(0, 5)) for i in range(120, 124)]
    batch = [*many, *some, *few]
    rule.close_batch(hopeless.FIRST_BATCH - 1, batch)
    assert judged(rule, "many", -9) == 0, "of a new critic"
    rule.close_batch(hopeless.FIRST_BATCH, batch)
    assert 0.85 < judged(rule, "many", 0.99) < 0.95, "all but the audited ones"
    assert judged(rule, "many", 1.2) == 0
    assert judged(rule, "some", -9) == judged(rule, "few", -9) == judged(rule, "never seen", -9) == 0
    assert judged(rule, "many", -9, bank_row=3) == 0, "it began elsewhere"
    assert judged(rule, "many", -9, success=True) == 0, "it has succeeded, and goes on for its reward"
    assert rule.close_batch(hopeless.FIRST_BATCH + 1, batch)["rollout/tasks_with_limits"] == 2, "some have 40 now"
    rule.forget()
    assert judged(rule, "many", -9) == 0


def test_what_could_never_stop_anything_is_refused() -> None:
    assert RolloutConfig(episodes_per_iteration=64, stop_hopeless=True).stopping() is not None
    for options in ({"episodes_per_iteration": 6}, {"episodes_per_iteration": 64, "false_stops": 0.003}):
        with pytest.raises(UserError, match="successes of a task in 10 updates"):
            RolloutConfig(stop_hopeless=True, **options)  # type: ignore[arg-type]


def test_what_could_never_stop_an_episode_of_any_task_is_refused() -> None:
    """Of ten tasks, each has a tenth of the episodes; an adaptive sampler may give one of them most."""
    rollout = RolloutConfig(episodes_per_iteration=64, stop_hopeless=True)
    assert rollout.stopping(9) is not None
    with pytest.raises(UserError, match=r"needs 67 successes .* of 10, in those at most 64 episodes.* fewer --tasks"):
        rollout.stopping(10)
    assert replace(rollout, sampler="adaptive").stopping(10) is not None
    with pytest.raises(UserError, match="fewer --tasks"):
        replace(rollout, sampler="adaptive", uniform_share=1.0).stopping(10)


def test_old_batches_are_forgotten() -> None:
    rule = HopelessRule()
    for batch in range(30):
        rule.close_batch(batch, [result_of(i, "t", success=i < 5, values=(0, 1)) for i in range(9)])
    assert [len(x) for x in rule.state_dict()["batches"]] == [5] * hopeless.MEMORY
    rule.close_batch(30, [result_of(i, "t", success=True, values=(0, 1)) for i in range(hopeless.ENOUGH)])
    assert [len(x) for x in rule.state_dict()["batches"]] == [hopeless.ENOUGH]


class Watching(HopelessRule):
    """Keeps the specs of audited episodes that it would have stopped."""

    def __init__(self) -> None:
        super().__init__(LEVEL, AUDITS)
        self.spared: set[int] = set()

    def judge(
        self, episodes: Sequence[ActiveEpisode], value: torch.Tensor | None, lost: Sequence[int] = ()
    ) -> list[int]:
        stopped = super().judge(episodes, value, lost)
        ended = {episodes[row].spec.episode_id for row in stopped}
        self.spared |= {x.spec.episode_id for x in episodes if x.hopeless} - ended
        return stopped


LEARNER = LearnerConfig(lr=1e-2, value_lr=5e-2, minibatch_size=None, minibatch_groups=4, microbatch_size=24)
SETUP = Setup(
    PPOConfig(gamma=0.9, entropy_coef=0.01),
    groups=32,
    iterations=5,
    learner=LEARNER,
    breaks={70: 1, 129: 1, 135: 1},
    stopping=Watching,
)


def results(outcome: Outcome) -> list[EpisodeResult]:
    return [result for batch in outcome.batches for result in batch.episodes]


def test_serial_and_pipelined_stop_the_same_episodes_and_count_each_once(tmp_path: Path) -> None:
    one = serial(SETUP, tmp_path, env=SlowEnv(6, breaks=SETUP.breaks))
    for env_ids, stages in ((7, 3),):
        two = pipelined(SETUP, tmp_path, env_ids=env_ids, stages=stages, pause=jitter(env_ids))
        for left, right in zip(one.batches, two.batches, strict=True):
            assert_same_rows(left, right)
            assert left.info["rollout/hopeless"] == right.info["rollout/hopeless"]
        assert one.sampler.state_dict() == two.sampler.state_dict()
        assert sorted(two.episodes) == sorted(one.episodes) == list(range(160))
    stopped = [x for x in results(one) if x.stop is not None and x.stop.stopped]
    assert len(stopped) > 5
    for x in stopped:
        assert x.truncated
        assert not x.success
        assert x.num_steps == 2 * x.num_decisions < 8
        assert x.num_decisions > 0
    rule = one.sampler.stopping
    assert isinstance(rule, Watching)
    assert rule.spared, "or nothing shows that audited episodes go on"
    assert not rule.spared & {x.spec.episode_id for x in stopped}
    assert all(rule.audits(x.spec) for x in results(one) if x.spec.episode_id in rule.spared)


class Watches(JsonObserver):
    """Interrupts the run when the n-th episode of training has ended; evaluations must not be stopped."""

    def __init__(self, path: Path, after: int) -> None:
        super().__init__(path)
        self.after, self.training, self.evaluated = after, False, 0

    def phase(self, name: str, iteration: int, episodes: int) -> None:
        self.training = name == "rollout"

    def episode(self, result: EpisodeResult) -> None:
        self.after -= self.training
        if self.after == 0 and self.training:
            os.kill(os.getpid(), signal.SIGINT)

    def evaluation(self, iteration: int, report: EvalReport) -> None:
        super().evaluation(iteration, report)
        self.evaluated += 1
        assert {result.stop for result in report.results} == {None}


def train_toy(folder: Path, scheduler: SchedulerConfig, *, after: int = -1, resume: bool = False) -> list[Any]:
    """Its metrics, of each update and evaluation."""
    rollout = RolloutConfig(episodes_per_iteration=32, stop_hopeless=True, false_stops=LEVEL, audit_share=AUDITS)
    what = replace(
        settings_of(SETUP.algorithm, iterations=6), scheduler=scheduler, learner=LEARNER, workers=2, rollout=rollout
    )
    what = replace(what, evaluation=EvalConfig(every=2, states_per_task=6))
    policy, observer = ToyPolicy(), Watches(folder / "metrics.jsonl", after)
    options = RunOptions(resume=newest(folder) if resume else None, resume_command="x")
    train(folder, SlowEnv(6), policy, files_of(policy), what, TaskSplit(TASKS, HELDOUT), observer, options)
    assert observer.evaluated
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "rollout/stopped"} for line in lines]


def test_a_run_that_was_interrupted_goes_on_as_if_not_and_evaluations_are_whole(tmp_path: Path) -> None:
    whole = train_toy(tmp_path / "whole", SerialConfig())
    assert sum(line.get("rollout/hopeless", 0) for line in whole) > 0
    stream = PipelinedConfig(env_groups=3)
    with pytest.raises(Interrupted):
        train_toy(tmp_path / "run", stream, after=32 * 4 + 7)
    for left, right in zip(train_toy(tmp_path / "run", stream, resume=True), whole, strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)


class Falling(ToyPolicy):
    """Its critic falls by 1 with each decision."""

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        return replace(super().act(obs, rng, mode), value=-torch.from_numpy(rng.decision).float())


def collect(sampler: EpisodeSampler, versions: range, *, final_value: bool = False) -> list[list[EpisodeResult]]:
    queue = GroupQueue(sampler, groups=40)
    collector = Collector(SlowEnv(5), Falling(), queue, Profiler(), final_value=final_value)
    return [collector.collect(version).episodes for version in versions]


@pytest.mark.parametrize("bootstrap", [True, False])
def test_what_is_stopped_is_bootstrapped_as_the_horizon_is(bootstrap: bool) -> None:
    """From the value of what it showed before the decision that it did not make, or it is worth 0."""
    batches = collect(EpisodeSampler(5, TASKS, stopping=HopelessRule(LEVEL, AUDITS)), range(7), final_value=bootstrap)
    ended = [x for batch in batches for x in batch if x.truncated]
    assert {x.stop.stopped for x in ended if x.stop is not None} == {True, False}
    assert all(x.final_value == (-x.num_decisions if bootstrap else 0) for x in ended)


class LearnsAtOnce(Watching):
    """Broken: it learns from each decision of the open batch."""

    def judge(
        self, episodes: Sequence[ActiveEpisode], value: torch.Tensor | None, lost: Sequence[int] = ()
    ) -> list[int]:
        stopped = super().judge(episodes, value, lost)
        found = [Success(x.spec.task, 1.0, tuple(x.values)) for x in episodes if x.num_decisions == 2]
        if self._batches and found:
            self._batches[-1] += found
            self._calibrate()
        return stopped


def test_a_rule_that_learns_from_the_open_batch_depends_on_the_number_of_envs(tmp_path: Path) -> None:
    setup = replace(SETUP, stopping=LearnsAtOnce, breaks={})
    runs = [results(serial(setup, tmp_path, env=SlowEnv(envs))) for envs in (3, 9)]
    assert runs[0] != runs[1]
    runs = [results(serial(replace(setup, stopping=Watching), tmp_path, env=SlowEnv(envs))) for envs in (3, 9)]
    assert runs[0] == runs[1]


class Blind(SlowEnv):
    """An env that breaks is seen to before its step fails: the picture stays that of another."""

    def observe(self, env_ids: Sequence[int], out: Observation) -> list[int]:
        super().observe(env_ids, out)
        return [row for row, env_id in enumerate(env_ids) if self._doomed[env_id] and self._steps[env_id] > 0]


@pytest.mark.parametrize("run", [serial, pipelined])
def test_an_episode_whose_simulator_broke_is_run_again_and_not_stopped(
    run: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Its picture is another one's, and so would its value be."""

    def strict() -> HopelessRule:
        rule = HopelessRule()
        rule._thresholds = {task: np.array([-np.inf, np.inf]) for task in TASKS}
        return rule

    setup = replace(SETUP, stopping=strict, iterations=1)
    breaks = next(
        {episode: 1} for episode in range(32) if not strict().audits(EpisodeSampler(5, TASKS).group(episode)[0])
    )
    out = run(setup, tmp_path, env=Blind(6, breaks=breaks))
    assert out.sampler.counts.requeued == 1
    assert {x.num_decisions for x in results(out) if x.stop is not None and x.stop.stopped} == {1}
    assert sum(x.stop is not None and x.stop.stopped for x in results(out)) > 16


def test_off_nothing_is_noted(tmp_path: Path) -> None:
    out = serial(replace(SETUP, stopping=lambda: None, iterations=1), tmp_path)
    assert {x.stop for x in results(out)} == {None}
    assert not [name for name in out.batches[0].info if "hopeless" in name or "audited" in name]
    assert "hopeless" not in out.sampler.state_dict()


def test_a_resumed_rule_goes_on_exactly() -> None:
    def fresh(rule: HopelessRule | None) -> EpisodeSampler:
        return EpisodeSampler(5, TASKS, stopping=rule)

    rule: Callable[[], HopelessRule] = lambda: HopelessRule(LEVEL, AUDITS)  # noqa: E731
    whole = fresh(rule())
    collect(whole, range(4))
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = fresh(rule())
    resumed.load_state_dict(state)
    later = collect(resumed, range(4, 7))
    assert later == collect(whole, range(4, 7))
    assert any(x.stop is not None and x.stop.stopped for batch in later for x in batch)
    assert resumed.state_dict() == whole.state_dict()
    for other in (None, HopelessRule(LEVEL, 0.5)):
        with pytest.raises(UserError, match="stopped by other rules"):
            fresh(other).load_state_dict(state)
    del state["hopeless"]["rule"]
    with pytest.raises(UserError, match="own config and version"):
        fresh(rule()).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"false_stops": 0.1}, "--rollout.false-stops goes with --rollout.stop-hopeless"),
        ({"audit_share": 0.1}, "--rollout.audit-share goes with --rollout.stop-hopeless"),
        ({"stop_hopeless": True, "audit_share": 0.0}, "must lie between 0 and 1"),
        ({"stop_hopeless": True, "false_stops": 1.0}, "must lie between 0 and 1"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RolloutConfig(**options)


@pytest.mark.parametrize(
    ("algorithm", "scheduler", "message"),
    [
        (GRPOConfig(), SerialConfig(), "use --algorithm ppo"),
        (PPOConfig(), PipelinedConfig(mode="async"), "does not go with --scheduler.mode async"),
        (PPOConfig(), RayConfig(), "does not go with --scheduler ray"),
    ],
)
def test_what_it_does_not_go_with(algorithm: Any, scheduler: SchedulerConfig, message: str) -> None:
    learner = LearnerConfig(minibatch_size=None, minibatch_groups=2)
    config = TrainConfig(algorithm=algorithm, scheduler=scheduler, learner=learner)
    config.check()
    with pytest.raises(UserError, match=message):
        replace(config, rollout=RolloutConfig(stop_hopeless=True)).check()


def test_it_needs_success_and_a_critic() -> None:
    assert RolloutConfig().stopping(has_success=False) is None
    with pytest.raises(UserError, match="goes by success"):
        RolloutConfig(stop_hopeless=True).stopping(has_success=False)
    with pytest.raises(RuntimeError, match="no value"):
        HopelessRule().judge([], None)
