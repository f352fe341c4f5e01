"""Probing, and what a choice does to a run's options; `embodied-rl plan tabletop` once, small."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.autotune.costs import Cost
from embodied_rl.autotune.measure_memory import measure_sizes
from embodied_rl.autotune.memory import Sizes, fits, held_by_update
from embodied_rl.autotune.outcomes import Outcome
from embodied_rl.autotune.probe import APART, IN_TURN, SIDE_BY_SIDE, Probes, probe
from embodied_rl.autotune.search import Choice, Space, schedulers, search
from embodied_rl.autotune.simulate import Work
from embodied_rl.autotune.tune import apply, describe, space_of, tune
from embodied_rl.cli import main
from embodied_rl.cli.plan_schedule import run_trial, under_way
from embodied_rl.config.train import TrainConfig, load_yaml
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig, SerialConfig
from embodied_rl.utils.profiler import Span
from embodied_rl.utils.threads import set_torch_threads
from tests.toy import HORIZON, SIZE, TASKS, ToyEnv, ToyPolicy

CONFIG = TrainConfig(
    algorithm=GRPOConfig(group_size=4, success_rate_range=None),
    rollout=RolloutConfig(episodes_per_iteration=24),
    device="cpu",
    learner=LearnerConfig(minibatch_size=48, microbatch_size=32),
    num_threads=1,
)


def test_probes_see_whole_episodes_and_leave_the_policy_alone() -> None:
    policy = ToyPolicy()
    weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    threads = torch.get_num_threads()
    specs = [spec for _ in range(2) for spec in EpisodeSampler(5, TASKS, 4).next_group()]
    found = probe(ToyEnv(8), policy, specs, threads=1)
    lengths = [outcome.decisions for outcome in found.outcomes]
    assert len(lengths) == 8
    assert all(1 <= length <= HORIZON // 2 for length in lengths)  # two control steps a decision
    assert all(outcome.success for outcome in found.outcomes if outcome.decisions < HORIZON // 2)
    rounds = max(lengths)
    assert len(found.act) == len(found.simulate) == rounds - 1  # the first round warms up
    rows = [count for count, _ in found.act]
    assert rows == sorted(rows, reverse=True)
    assert sum(rows) + 8 == sum(lengths)
    assert [count for count, _ in found.learn] == [count for count, _ in found.evaluate] == [8, 16, 32]
    assert all(torch.equal(policy.state_dict()[name], tensor) for name, tensor in weights.items())
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert torch.get_num_threads() == threads


def assert_cost(cost: Cost, device: str, row: float, fixed: float) -> None:
    assert cost.device == device
    assert (cost.row, cost.fixed) == pytest.approx((row, fixed))


def test_each_placement_has_its_costs() -> None:
    probes = Probes(
        simulate=[(4, 0.4), (8, 0.8)],
        act=[(4, 0.5), (8, 0.9)],
        act_all=[(4, 0.3), (8, 0.5)],
        learn=[(8, 0.8), (16, 1.6)],
        outcomes=[Outcome(0, 3, True), Outcome(0, 5, False)],
    )
    on_cpu = probes.placements(2, "cpu")
    assert_cost(on_cpu[IN_TURN].act, "all cores", row=0.05, fixed=0.1)
    assert_cost(on_cpu[SIDE_BY_SIDE].act, "cpu", row=0.1, fixed=0.1)
    assert on_cpu[SIDE_BY_SIDE].servers == {"cpu": 2}
    assert (on_cpu[SIDE_BY_SIDE].learners, on_cpu[SIDE_BY_SIDE].steppers) == (1, 2)
    on_gpu = probes.placements(16, "gpu")
    assert {on_gpu[name].act.device for name in on_gpu} == {"gpu"}
    assert on_gpu[SIDE_BY_SIDE].simulate.device == "cpu"
    assert (on_gpu[SIDE_BY_SIDE].learners, on_gpu[SIDE_BY_SIDE].steppers) == (None, 1)


def test_acting_may_have_a_device_of_its_own() -> None:
    probes = Probes(
        simulate=[(8, 0.8)], act=[(8, 0.8)], act_all=[(8, 0.8)], learn=[(8, 0.8)], outcomes=[Outcome(0, 3, True)]
    )
    assert APART not in probes.placements(16, "gpu")
    apart = probes.placements(16, "gpu", another=True)[APART]
    assert len({apart.act.device, apart.learn.device, apart.simulate.device}) == 3
    chosen = apply(CONFIG, Choice(APART, PipelinedConfig(env_groups=2), 16, 32), 6, 16, "cuda:1").scheduler
    assert isinstance(chosen, PipelinedConfig)
    assert chosen.act_device == "cuda:1"


def test_what_is_not_searched_stays_as_given_or_is_refused() -> None:
    given = PipelinedConfig(mode="async", max_staleness=2, max_batch_delay_ms=3.0)
    space = space_of(replace(CONFIG, scheduler=given), {}, 8, 4, lambda choice: True)
    pipelined = [one for one in space.schedulers if isinstance(one, PipelinedConfig)]
    assert {(one.mode, one.max_staleness, one.max_batch_delay_ms) for one in pipelined} == {("async", 2, 3.0)}
    assert len({one.env_groups for one in pipelined}) > 1
    elsewhere = replace(CONFIG, scheduler=PipelinedConfig(act_device="cpu"))
    with pytest.raises(UserError, match="leave out --scheduler"):
        tune(elsewhere, ToyEnv(8), ToyPolicy(), TASKS, 1)


def test_acting_elsewhere_is_chosen_where_it_pays() -> None:
    """Acting and learning take as long as each other: side by side on one GPU they wait, on two they do not."""
    costs = Probes(
        simulate=[(8, 0.08)], act=[(8, 0.8)], act_all=[(8, 0.8)], learn=[(8, 0.8)], outcomes=[Outcome(0, 4, True)]
    ).placements(4, "gpu", another=True)
    work = Work(8, 8, 1, lambda spec: 4)

    def best(fits: Callable[[Choice], bool]) -> Choice:
        space = Space(
            placements=costs, schedulers=schedulers(("async",), (2, 4)), worlds=(8,), microbatches=(8,), fits=fits
        )
        return search(space, work).choice

    assert best(lambda choice: True).placement == APART
    assert best(lambda choice: choice.placement != APART).placement != APART


SIZES = Sizes(weights=1000, learning=400, trained=100, update_fixed=50, update_row=10, act_row=3, observation=7)


def test_what_a_schedule_needs_is_counted_where_it_is_held() -> None:
    learner = 1000 + 12 * 100
    assert SIZES.needs(Choice(IN_TURN, SerialConfig(), 8, 32), 10) == {"host": 2 * 70, "learn": learner + 50 + 320}
    stream = PipelinedConfig(env_groups=2)
    assert SIZES.needs(Choice(SIDE_BY_SIDE, stream, 8, 32), 10)["learn"] == learner + 400 + 50 + 320 + 24
    assert SIZES.needs(Choice(SIDE_BY_SIDE, stream, 8, 32), 10)["host"] == 70
    stale = PipelinedConfig(env_groups=2, mode="async", max_staleness=2)
    assert SIZES.needs(Choice(APART, stale, 8, 32), 10) == {
        "host": 4 * 70,
        "learn": learner + 50 + 320,
        "act": 1000 + 24 + 96,
    }


def test_an_update_that_begins_early_keeps_rows_of_its_own() -> None:
    """With further epochs a copy of all of them; else of a minibatch; and none under `serial`."""
    assert (held_by_update(10, 2, 0.2), held_by_update(10, 1, 0.2), held_by_update(10, 1, 3.0)) == (10, 2, 10)
    stream = Choice(SIDE_BY_SIDE, PipelinedConfig(env_groups=2), 8, 32)
    assert SIZES.needs(stream, 10, streamed=10)["host"] == 2 * 70
    ahead = replace(stream, scheduler=PipelinedConfig(env_groups=2, mode="async"))
    assert SIZES.needs(ahead, 10, streamed=10)["host"] == 4 * 70
    whole = replace(stream, scheduler=SerialConfig())
    assert SIZES.needs(whole, 10, streamed=10) == SIZES.needs(whole, 10)


@given(gpu=st.integers(2000, 3500), second=st.integers(900, 1100), host=st.integers(500, 3000), rows=st.integers(8, 64))
@settings(deadline=None, max_examples=20)
def test_a_plan_that_does_not_fit_is_never_chosen(gpu: int, second: int, host: int, rows: int) -> None:
    room = {"cpu": host, "cuda": gpu, "cuda:1": second}
    costs = Probes(
        simulate=[(8, 0.08)], act=[(8, 0.2)], act_all=[(8, 0.2)], learn=[(8, 0.4)], outcomes=[Outcome(0, 4, True)]
    ).placements(4, "gpu", another=True)
    space = Space(
        placements=costs,
        schedulers=schedulers(("stream", "async"), (1, 4)),
        worlds=(8, 4),
        microbatches=(32, 8),
        fits=lambda choice: fits(SIZES.needs(choice, rows), room, "cuda", "cuda:1"),
    )
    if next(space.all(), None) is None:
        return
    needs = SIZES.needs(search(space, Work(8, 8, 1, lambda spec: 4)).choice, rows)
    assert needs["host"] <= host
    assert needs["learn"] <= gpu
    assert needs.get("act", 0) <= second


def test_sizes_of_a_policy_are_measured_and_leave_it_alone() -> None:
    policy = ToyPolicy()
    policy.body.requires_grad_(False)
    sizes = measure_sizes(policy, ToyEnv(2), EpisodeSampler(5, TASKS, 4).next_group()[0])
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    assert sizes.weights == 4 * sum(parameter.numel() for parameter in policy.parameters())
    assert sizes.learning == 4 * sizes.trained == 4 * sum(parameter.numel() for parameter in trained)
    assert 0 < sizes.act_row <= sizes.update_row
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert sizes.observation == 3 * SIZE * SIZE + 2 * 4


def test_nothing_is_chosen_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_rl.autotune.tune.room", lambda device, held: 100)
    with pytest.raises(UserError, match=r"no schedule fits into memory: lower --learner.microbatch-size"):
        tune(CONFIG, ToyEnv(8), ToyPolicy(), TASKS, cores=2, others=["cpu:1"])


def test_a_choice_fills_in_the_config() -> None:
    stream = Choice(SIDE_BY_SIDE, PipelinedConfig(env_groups=3), 16, 64)
    config = apply(replace(CONFIG, autotune=True), stream, groups=6, rows_per_group=16)
    assert (config.scheduler, config.env.num_envs, config.learner.microbatch_size) == (stream.scheduler, 16, 64)
    # 96 rows in minibatches of 48 were two steps: three groups each
    assert (config.learner.minibatch_size, config.learner.minibatch_groups) == (None, 3)
    assert not config.autotune
    config.check()
    serial = apply(CONFIG, Choice(IN_TURN, SerialConfig(), 16, 64), groups=6, rows_per_group=16)
    assert serial.learner.minibatch_size == 48
    own = replace(CONFIG, learner=LearnerConfig(minibatch_size=None, minibatch_groups=2))
    assert apply(own, stream, 6, 16).learner.minibatch_groups == 2
    watched = replace(CONFIG, env=replace(CONFIG.env, num_envs=64, processes=64))
    assert apply(watched, stream, 6, 16).env.processes == 16


def test_the_run_stays_as_on_policy_as_it_was() -> None:
    """Overlap async is only considered where it was asked for."""
    for scheduler in (SerialConfig(), PipelinedConfig(env_groups=2), PipelinedConfig(env_groups=2, mode="async")):
        tuning = tune(replace(CONFIG, scheduler=scheduler), ToyEnv(8), ToyPolicy(), TASKS, cores=2)
        tuning.config.check()
        chosen = tuning.config.scheduler
        if isinstance(chosen, PipelinedConfig):
            allowed = scheduler.mode if isinstance(scheduler, PipelinedConfig) else "stream"
            assert chosen.mode == allowed
        assert tuning.config.learner.microbatch_size <= 2 * CONFIG.learner.microbatch_size
        assert len(describe(tuning)) == 3


def test_a_trial_is_of_full_updates_and_leaves_nothing_behind() -> None:
    """The critic does not learn alone, as it does at the beginning of a run; the learner's threads end."""
    config = replace(
        CONFIG,
        algorithm=PPOConfig(critic_warmup_iterations=2),
        num_threads=2,
        env=replace(CONFIG.env, num_envs=8, num_threads=1),
    )
    policy, threads = ToyPolicy(), torch.get_num_threads()
    body = policy.body.weight.detach().clone()
    try:
        trial = run_trial(config, ToyEnv(8), policy, TASKS)
    finally:
        set_torch_threads(threads)
    assert trial.rows > 0
    assert not torch.equal(policy.body.weight, body)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("learn")]


def test_time_under_way_counts_once_what_is_side_by_side() -> None:
    acts = [Span(worker, "act", begin, end, 0) for worker, begin, end in (("a", 0, 2), ("b", 1, 3), ("a", 5, 6))]
    spans = [*acts, Span("c", "learn", 0, 9, 0)]
    assert under_way(spans, ("act",)) == 4
    assert under_way(spans, ("act", "learn")) == 9
    assert under_way(spans, ("step",)) == 0


def test_plan_with_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tuned.yaml"
    words = ["--env.num-envs", "4", "--rollout.episodes-per-iteration", "4", "--num-threads", "1"]
    assert main(["plan", "tabletop", *words, "--write", str(file)]) == 0
    said = capsys.readouterr().out
    for text in ("measured: simulate", "chosen of", "predicted", "decisions/s", "memory", f"--config {file}"):
        assert text in said
    config = load_yaml(file)
    config.check()
    assert config.env.num_envs <= 4
    assert main(["plan", "tabletop", "--write"]) == 2
    assert main(["plan", "tabletop", "--chart", str(tmp_path / "no" / "chart.png")]) == 2
