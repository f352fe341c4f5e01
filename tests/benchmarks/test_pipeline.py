"""`embodied-rl bench pipeline`: its arithmetic, its stand-ins, and one quick run; no test looks at how long it took."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.benchmarks import pipeline, pipeline_real
from embodied_rl.benchmarks.pipeline_real import RendersEachStep
from embodied_rl.benchmarks.pipeline_timed import PROFILES, Cost, Devices, Profile, TimedEnv, TimedLearner, TimedPolicy
from embodied_rl.cli import main
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.types import EpisodeResult, EpisodeSpec, Observation, RolloutBatch
from tests.toy import TASKS, ToyEnv


def row(profile: str, mode: str, ms: float, of_bound: float) -> dict[str, object]:
    return {
        "profile": profile,
        "mode": mode,
        "ms_per_decision": ms,
        "of_bound": of_bound,
        "of_own_bound": of_bound / 0.8,
    }


def test_ratios_by_hand() -> None:
    """8 ms at half of the bound: the bound is 4 ms, twice as fast as serial."""
    rows = [
        row("p", "serial", 8, 0.5),
        row("p", "lockstep", 6, 2 / 3),
        row("p", "stream", 5, 0.8),
        row("p", "async", 4, 1.0),
        row("q", "serial", 8, 0.5),
        row("q", "lockstep", 6, 2 / 3),
        row("q", "stream", 5, 0.8),
        row("q", "async", 8, 0.5),
    ]
    assert pipeline.ratios_of(rows) == pytest.approx(
        {
            "p.vs_serial": 2,
            "p.vs_lockstep": 1.5,
            "p.of_bound": 1,
            "p.stream.vs_serial": 1.6,
            "p.stream.vs_lockstep": 1.2,
            "p.stream.of_bound": 0.8,
            "p.async.vs_serial": 2,
            "p.async.vs_lockstep": 1.5,
            "p.async.of_bound": 1,
            "p.async.of_own_bound": 1.25,
            "p.bound_vs_serial": 2,
            "q.vs_serial": 1.6,
            "q.vs_lockstep": 1.2,
            "q.of_bound": 0.8,
            "q.stream.vs_serial": 1.6,
            "q.stream.vs_lockstep": 1.2,
            "q.stream.of_bound": 0.8,
            "q.async.vs_serial": 1,
            "q.async.vs_lockstep": 0.75,
            "q.async.of_bound": 0.5,
            "q.async.of_own_bound": 0.625,
            "q.bound_vs_serial": 2,
        }
    )
    # the second turn met a machine half as fast, the third one a machine that was busy while serial ran
    turns = [(100, 30, 50, 120, 150), (50, 15, 25, 60, 75), (10, 30, 50, 120, 150)]
    names = [way.name for way in pipeline_real.WAYS]
    real = [
        {"scheduler": name, "decisions_per_s": speed, "turn": turn}
        for turn, speeds in enumerate(turns)
        for name, speed in zip(names, speeds, strict=True)
    ]
    ratios = pipeline_real.ratios_of(real)
    assert ratios["real.stream.vs_serial"] == pytest.approx(1.2)
    assert ratios["real.async.vs_lockstep"] == pytest.approx(3)
    assert ratios["real.stream.vs_peer"] == pytest.approx(4)
    assert ratios["real.serial.decisions_per_s"] == 50
    assert (ratios["real.serial.decisions_per_s_low"], ratios["real.serial.decisions_per_s_high"]) == (10, 100)
    assert (ratios["real.stream.vs_serial_low"], ratios["real.stream.vs_serial_high"]) == pytest.approx((1.2, 12))


def test_real_turns_do_the_same_work() -> None:
    """A turn of small iterations: whoever is on-policy runs the same episodes, also after it waited for others."""
    config = pipeline_real.real_config()
    config = replace(
        config,
        env=replace(config.env, num_envs=2),
        rollout=replace(config.rollout, episodes_per_iteration=2),
        learner=replace(config.learner, minibatch_groups=1),
        tasks=config.tasks[:1],
    )
    rows = list(pipeline_real.measure_all(config, turns=1))
    assert [row["scheduler"] for row in rows] == [way.name for way in pipeline_real.WAYS]
    ahead = pipeline_real.RUN_UP - 1
    assert {row["scheduler"]: row["iteration"] for row in rows} == {
        way.name: ahead if way.name == "async" else 1 for way in pipeline_real.WAYS
    }
    work = {row["scheduler"]: row["decisions"] for row in rows}
    assert work["serial"] == work["peer"] == work["lockstep"] == work["stream"]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_profile_costs_what_its_source_says(profile: Profile) -> None:
    """ms a decision without overlap, on the busiest device, and there with every row evaluated again."""
    times = (profile.serial_seconds(1000), profile.bound_seconds(1000), profile.bound_seconds(1000, 1000))
    expected = {
        "openvla_maniskill": (101, 52, 52),
        "oft_libero": (24.7 + 26, 29.5, 33),
        "pi0_libero": (90.8, 65.8, 65.8 + 11),
    }
    assert times == pytest.approx(expected[profile.name], rel=0.005)
    assert "Measured:" in profile.source
    assert "Derived:" in profile.source
    assert (profile.stream.staleness, profile.stale.staleness) == (0, 1)


def timed_batch(lengths: Sequence[int], stale: bool) -> RolloutBatch:
    """Groups of one episode with so many rows."""
    rows = sum(lengths)
    episodes = [
        EpisodeResult(EpisodeSpec(at, "wait", 0, at, at), True, True, False, 1.0, length, length)
        for at, length in enumerate(lengths)
    ]
    return RolloutBatch(
        images=torch.zeros(rows, 1),
        proprio=torch.zeros(rows, 1),
        instruction=["wait"] * rows,
        replay={},
        log_prob=torch.zeros(rows, 1),
        value=None,
        reward=torch.zeros(rows),
        mask=torch.ones(rows, 1, dtype=torch.bool),
        episode=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        episodes=episodes,
        version=1,
        row_version=torch.full((rows,), 0 if stale else 1),
    )


def test_stages_wait_as_long_as_their_rows_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that come early, the rest with the batch; stale rows once more, on their device."""
    profile = Profile(
        name="p",
        source="",
        num_envs=6,
        simulate=Cost("sim", 1.0, fixed=2.0),
        act=Cost("act", 0.25),
        learn=Cost("gpu", 0.125),
        evaluate=Cost("act", 0.5),
        stream=PipelinedConfig(),
        stale=PipelinedConfig(mode="async"),
    )
    played: list[tuple[str, float]] = []
    monkeypatch.setattr(Devices, "play", lambda self, *what: played.append(what))
    devices = Devices(1.0)
    env, policy = TimedEnv(profile, devices, 1), TimedPolicy(profile, devices)
    env.reset(range(4), [EpisodeSpec(at, "wait", 0, at, at) for at in range(4)])
    env.step([0, 2, 3], torch.zeros(3, 1, 1))
    policy.act(env.new_observation(3), None, "sample")  # type: ignore[arg-type]
    policy.evaluate(torch.zeros(4, 1))
    assert played == [("sim", 5.0), ("act", 0.75), ("act", 2.0)]
    assert copy.deepcopy(policy) is policy
    played.clear()
    learner = TimedLearner(profile, devices, make_algorithm(GRPOConfig()), microbatch=4, streams=True)
    learner.accumulate(timed_batch([3, 2], stale=True))
    assert played == [("gpu", 0.5), ("gpu", 0.125)]
    learner.update(timed_batch([3, 2, 1], stale=True))
    assert played[2:] == [("gpu", 0.125)]


def test_a_simulator_that_renders_each_step_does_the_same() -> None:
    """Chunks cut into steps end alike, also where worlds end in the middle of a chunk."""
    specs = [spec for _ in range(3) for spec in EpisodeSampler(5, TASKS, 2).next_group()]
    whole, cut = ToyEnv(6), ToyEnv(6)
    stepped = RendersEachStep(cut)
    env_ids = list(range(6))
    for env in (whole, stepped):
        env.reset(env_ids, specs)
    draw = np.random.default_rng(0)
    ended = 0
    while env_ids:
        actions = torch.from_numpy(draw.uniform(-1, 1, (len(env_ids), 2, 2)).astype(np.float32))
        one, two = whole.step(env_ids, actions), stepped.step(env_ids, actions)
        for name in ("reward", "terminated", "truncated", "success", "steps_taken", "failed"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
        over = one.terminated | one.truncated
        ended += int(over.sum())
        env_ids = [env_id for env_id, end in zip(env_ids, over, strict=True) if not end]
    assert ended == 6


def test_a_simulator_that_renders_each_step_draws_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once for a new episode: the last frame of a chunk is what the policy sees, or nobody where it was over."""
    drawn: list[int] = []
    observe = ToyEnv.observe

    def counted(env: ToyEnv, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        drawn.extend(env_ids)
        return observe(env, env_ids, out)

    monkeypatch.setattr(ToyEnv, "observe", counted)
    env = RendersEachStep(ToyEnv(3))
    env.reset([0, 1, 2], [spec for _ in range(2) for spec in EpisodeSampler(5, TASKS, 2).next_group()][:3])
    running, steps = [0, 1, 2], np.zeros(3, int)
    draw = np.random.default_rng(0)
    while running:
        env.observe(running, env.new_observation(len(running)))
        result = env.step(running, torch.from_numpy(draw.uniform(-1, 1, (len(running), 2, 2)).astype(np.float32)))
        steps[running] += result.steps_taken.numpy()
        over = (result.terminated | result.truncated).tolist()
        running = [env_id for env_id, end in zip(running, over, strict=True) if not end]
    assert [drawn.count(env_id) for env_id in range(3)] == [1 + count for count in steps]


def test_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pipeline.json"
    assert main(["bench", "pipeline", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["bench"] == "pipeline"
    assert found["quick"] is True
    assert [row["mode"] for row in found["rows"]] == ["serial", "lockstep", "stream", "async"]
    # whoever overlaps what, the episodes are the same, and so are the rows that are learned
    assert len({row["rows"] for row in found["rows"]}) == 1
    assert set(found["ratios"]) == {
        f"openvla_maniskill.{name}"
        for name in (
            "vs_serial",
            "vs_lockstep",
            "of_bound",
            "stream.vs_serial",
            "stream.vs_lockstep",
            "stream.of_bound",
            "async.vs_serial",
            "async.vs_lockstep",
            "async.of_bound",
            "async.of_own_bound",
            "bound_vs_serial",
        )
    }
    assert "openvla_maniskill.of_bound" in capsys.readouterr().out


def stopped(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from rows
    raise KeyboardInterrupt


def test_one_part_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`--only` leaves the other part out, and the file says which it is."""
    file = tmp_path / "pipeline.json"
    modes = ("serial", "lockstep", "stream", "async")
    rows = [row("p", mode, 8, 0.5) | {"stages": 1, "ahead": 2, "microbatch": 8} for mode in modes]
    monkeypatch.setattr(pipeline, "measure", lambda *given: rows)
    real_part = pipeline._real
    monkeypatch.setattr(pipeline, "_real", lambda console, save: pytest.fail("the real part runs"))
    assert main(["bench", "pipeline", "--only", "timed", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["bench"], found["real"], len(found["rows"])) == ("pipeline timed", [], 4 * len(PROFILES))
    figures = {"decisions_per_s": 1.0, "seconds": 2.0, "cpu_seconds": 3.0, "turn": 0}
    turns = [{"scheduler": way.name, **figures} for way in pipeline_real.WAYS]
    half = [*turns, *({**row, "turn": 1} for row in turns[:2])]  # stopped in the second turn
    monkeypatch.setattr(pipeline_real, "measure_all", lambda config: stopped(half))
    monkeypatch.setattr(pipeline, "_real", real_part)
    file.unlink()
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(file, only="real")
    assert json.loads(file.read_text())["real"] == turns
    monkeypatch.setattr(pipeline, "_real", lambda console, save: turns)
    monkeypatch.setattr(pipeline, "measure", lambda *given: pytest.fail("the timed part runs"))
    assert main(["bench", "pipeline", "--only", "real", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["bench"], found["real"], found["rows"]) == ("pipeline real", turns, [])
    assert all(name.startswith("real.") for name in found["ratios"])
    capsys.readouterr()
    assert main(["bench", "sim", "--only", "real"]) == 2
    assert "--only belongs to bench pipeline and few-episodes and gpu and backends only" in capsys.readouterr().err
    assert main(["bench", "pipeline", "--only", "timed", "--quick"]) == 2
    assert "leave --only out" in capsys.readouterr().err
