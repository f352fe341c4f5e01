"""`bench few-episodes`: what rows are made of episodes, who acts, what a critic learns, and what is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.benchmarks import few_episodes, few_episodes_value, few_episodes_world
from embodied_rl.benchmarks.few_episodes import DETECTOR, paired, read, report, run
from embodied_rl.benchmarks.few_episodes_arms import ARMS, Result, Start, imitable, run_arm
from embodied_rl.benchmarks.few_episodes_policy import DIM, ChunkCritic, FlowPolicy, Steering
from embodied_rl.benchmarks.few_episodes_value import _alarms, _limits, detect, returns_of
from embodied_rl.benchmarks.few_episodes_world import ACTIONS, CHUNK, HORIZON, Episode, Rows, World, rows_of
from embodied_rl.benchmarks.lab.page import fill
from embodied_rl.cli.bench import main
from embodied_rl.errors import UserError
from embodied_rl.rng import DecisionRng


def episode(decisions: int, steps: int = 0, *, success: bool = True, task: int = 0) -> Episode:
    """Decisions of the policy, then steps of the expert; row i has the state i and acts by i + 1."""
    count = decisions + steps
    states = np.arange(count + 1, dtype=np.float32)[:, None].repeat(3, 1)
    chunks = np.zeros((count, CHUNK, ACTIONS), np.float32) + np.arange(1, count + 1, dtype=np.float32)[:, None, None]
    chunks[decisions:, 1:] = 0.0
    human = np.arange(count) >= decisions
    return Episode(task, success, states, chunks, human, np.zeros(count, np.bool_))


def test_a_decision_leads_to_the_next_row_and_a_step_of_the_expert_to_the_one_a_chunk_later() -> None:
    rows = rows_of(episode(2, 6))
    assert rows.state[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert rows.next_state[:, 0].tolist() == [1, 2, 6, 7, 8, 8, 8, 8]
    assert rows.over.tolist() == [False] * 4 + [True] * 4
    assert torch.equal(rows.won, rows.over)
    chunks = rows.chunk.view(-1, CHUNK, ACTIONS)
    assert chunks[0, :, 0].tolist() == [1, 1, 1, 1]
    assert chunks[2, :, 0].tolist() == [3, 4, 5, 6]
    assert chunks[6, :, 0].tolist() == [7, 8, 0, 0], "past the success the arm stays"
    assert chunks[6, :, -1].tolist() == [7, 8, 8, 8], "and the gripper keeps its command"


def test_a_failure_is_over_and_not_won_and_an_outcome_may_be_believed_instead() -> None:
    lost = episode(3, success=False)
    assert rows_of(lost).over.tolist() == [False, False, True]
    assert not rows_of(lost).won.any()
    assert rows_of(lost, success=True).won.tolist() == [False, False, True]


def test_a_chunk_that_a_push_disturbed_teaches_nothing() -> None:
    shown = episode(0, 6)
    shown.pushed[4] = True
    assert rows_of(shown).state[:, 0].tolist() == [0, 5]


def test_own_successes_are_imitated_whole_and_helped_ones_from_the_takeover_on() -> None:
    episodes = [episode(3), episode(2, 4), episode(5, success=False)]
    rows = imitable(episodes, [one.success for one in episodes])
    assert rows is not None
    assert rows.state[:, 0].tolist() == [0, 1, 2, 2, 3, 4, 5]
    assert imitable(episodes[2:], [False]) is None


def test_returns_count_steps_to_go_and_what_came_before_help_is_a_failure() -> None:
    assert returns_of(episode(2)) == pytest.approx([-2 / HORIZON, -1 / HORIZON])
    assert returns_of(episode(1, 4)) == pytest.approx([-1, *(-steps / 4 / HORIZON for steps in (4, 3, 2, 1))])
    assert returns_of(episode(2, success=False)).tolist() == [-1, -1]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with closing(World.heldout(4)) as made:
        yield made


def still(state: torch.Tensor, _rng: DecisionRng) -> torch.Tensor:
    return torch.zeros(len(state), CHUNK, ACTIONS)


def test_the_expert_takes_over_late_and_finishes(world: World) -> None:
    alone, helped = world.run(still, world.specs[:1]), world.run(still, world.specs[:2], takeover=3)
    assert (alone[0].success, len(alone[0].human), alone[0].helped) == (False, HORIZON, False)
    assert [one.success for one in helped] == [True, True]
    assert all(one.human.tolist() == [row >= 3 for row in range(len(one.human))] for one in helped)
    assert [one.task for one in helped] == [0, 1]
    assert helped[0].states.shape == (len(helped[0].human) + 1, 76)


def test_episodes_do_not_depend_on_how_many_run_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(state: torch.Tensor, rng: DecisionRng) -> torch.Tensor:
        return torch.from_numpy(rng.normal(CHUNK * ACTIONS)).view(len(state), CHUNK, ACTIONS).clamp(-1, 1)

    together = world.run(noisy, world.specs[:3], takeover=2)
    monkeypatch.setattr(few_episodes_world, "_ENVS", 1)
    with closing(World.heldout(3)) as narrow:
        apart = narrow.run(noisy, takeover=2)
    for one, other in zip(together, apart, strict=True):
        assert np.array_equal(one.states, other.states)
        assert np.array_equal(one.chunks, other.chunks)


def toy_rows(good: float) -> Rows:
    """One decision an episode: it succeeds where the chunk's first number is `good`."""
    chunk = torch.zeros(64, DIM)
    chunk[::2, 0] = good
    state = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    over = torch.ones(64, dtype=torch.bool)
    return Rows(state, chunk, state, over, torch.arange(64) % 2 == 0, ~over)


def test_the_critic_finds_the_better_chunk_without_asking_the_policy_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = toy_rows(1.0)
    policy = FlowPolicy(rows.state, seed=0)
    critic = ChunkCritic(policy, rows, 0, Steering(batch=64, lr=5e-3))
    critic.add(rows)
    with monkeypatch.context() as patched:
        patched.setattr(policy, "chunks", None)
        assert critic.learn(60, 1) < 0.05
    offered = torch.zeros(5, 8, DIM)
    offered[torch.arange(5), torch.tensor([3, 0, 7, 1, 2]), 0] = 1.0
    monkeypatch.setattr(policy, "chunks", lambda state, noise: offered)
    acted = critic.act(rows.state[:5], DecisionRng(np.arange(5), np.arange(5)))
    assert acted[:, 0, 0].tolist() == [1.0] * 5


def test_alarms_are_counted_by_outcome_and_a_missed_failure_counts_to_the_horizon() -> None:
    held = [episode(8), episode(8), episode(HORIZON, success=False), episode(HORIZON, success=False)]
    limits = _limits(lambda one: np.arange(1.0, len(one.human) + 1), held[:2])
    assert limits == [8.0, np.inf]
    scores = [np.full(len(one.human) - 3, value) for one, value in zip(held, (0.5, 2.0, 2.0, 0.5), strict=True)]
    false, found, decision, saved = _alarms(scores, held, 1.0)
    assert (false, found, decision) == (0.5, 0.5, (4 + HORIZON) / 2)
    assert saved == pytest.approx(1 - (4 + HORIZON) / 2 / HORIZON)


def test_detectors_are_calibrated_on_both_tasks_and_compared_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[list[int]] = []

    def learned(_policy: FlowPolicy, episodes: list[Episode], _seed: int) -> Callable[[Episode], np.ndarray]:
        taught.append([one.task for one in episodes])
        return lambda one: np.full(len(one.human), 0.1 if one.success else 1.0)

    monkeypatch.setattr(few_episodes_value, "_learned", learned)
    both = [episode(6 if won else HORIZON, success=won, task=task) for won in (True, False) for task in (0, 1)]
    twice = [*both[:2], *both[:2], *both[2:], *both[2:]]
    found = detect(FlowPolicy(toy_rows(1.0).state, seed=0), both[:2], twice, [*both, episode(7)], seed=0)
    clock, learning = found[0], found[-1]
    assert taught == [[0, 1, 0, 1]]
    assert (clock.false_alarms, clock.found, clock.decision) == (1 / 3, 1.0, 7.0)
    assert (clock.same_decision, clock.same_saved) == (clock.decision, clock.saved)
    assert (learning.detector, learning.false_alarms, learning.decision) == ("learned", 0.0, 4.0)
    assert few_episodes._detector_table([result(DETECTOR, 0, 0.5, detectors=[asdict(one) for one in found])])[2:]


def test_an_interval_is_of_paired_seeds() -> None:
    mean, reach = paired([10.0, 20.0, 30.0])
    assert (mean, round(reach, 2)) == (20.0, 24.84)


def result(arm: str, seed: int, success: float, **more: Any) -> Result:
    return Result(arm, seed, 10, 0 if arm in ("none", DETECTOR) else 60, success, [success, success], **more)


def test_the_table_compares_seed_by_seed_with_the_start_and_the_control() -> None:
    found = [result("none", 0, 0.5), result("none", 1, 0.3), result("more", 0, 0.5), result("more", 1, 0.4)]
    lines = report([*found, result("steer", 0, 0.8), result("steer", 1, 0.6)])
    (line,) = [line for line in lines if line.startswith("| steer")]
    assert "| 60 | 70.0 | 80 60 | +30.0 (+30.0 to +30.0) | +25.0 (-38.5 to +88.5) |" in line


def test_a_file_goes_on_where_it_stopped_and_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def measure(arm: str, start: Start, _results: object) -> Result:
        asked.append((arm, start.seed))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return result(arm, start.seed, 0.5)

    monkeypatch.setattr(few_episodes, "measure", measure)
    path = tmp_path / "few.json"
    with pytest.raises(KeyboardInterrupt):
        run(path, False, seeds=2, only="more,none")
    run(path, False, seeds=2, only="none,more")
    assert asked == [("none", 0), ("more", 0), ("none", 1), ("none", 1), ("more", 1)]
    stored = json.loads(path.read_text())
    assert stored["rows"][0] == asdict(result("none", 0, 0.5))
    assert stored["ratios"] == {"none_demos10_episodes0": 0.5, "more_demos10_episodes60": 0.5}
    page = fill("a\n<!-- figures of few-episodes -->\n<!-- end of few-episodes -->\nz", stored)
    assert "| more: as many more steps on the demonstrations | 60 | 50.0 | 50 50 |" in page
    stored["settings"]["steering"]["candidates"] = 4
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match="was measured with another steering"):
        read(path)
    path.write_text("{}")
    with pytest.raises(UserError, match="holds no results of this bench"):
        read(path)


def test_every_arm_runs_and_an_unknown_one_is_refused(world: World) -> None:
    with closing(Start(0, 1, 2, world, scale=0.002)) as start:
        found = {name: run_arm(name, start, [1, 1]) for name in ARMS}
    assert {one.episodes for name, one in found.items() if ARMS[name].acts} == {2}
    assert sum(found["people"].expert_frames) > 0
    assert all(frames > 0 for frames in found["people_demo"].expert_frames)
    with pytest.raises(UserError, match=r"no arm 'stear'\. Did you mean 'steer'"):
        run(None, True, only="stear")
    with pytest.raises(UserError, match="--demos belongs to bench few-episodes only"):
        main(["sim", "--demos", "3"])
