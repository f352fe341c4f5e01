"""The bench of late answers: what is executed when, and what a seam is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.benchmarks.lab.latency import row_of, settings_for, table
from embodied_rl.benchmarks.lab.latency_run import OpenEpisode, Setting, executor_for, figures, run_episodes
from embodied_rl.policy import PolicyTraits
from embodied_rl.types import ActOutput, ChunkResult, EpisodeSpec, Observation

K, STEPS = 4, 16


class World:
    """A point that goes where actions say; an observation tells the step, and so does an action of the policy below."""

    num_envs = 2

    def __init__(self) -> None:
        self.step_of = np.zeros(2, int)
        self.place = np.zeros((2, 3))
        self.seen: list[np.ndarray] = []

    def reset(self, env_ids: Any, episodes: Any) -> None:
        self.step_of[list(env_ids)], self.place[list(env_ids)] = 0, 0

    def new_observation(self, rows: int) -> Observation:
        return Observation.from_numpy(
            np.zeros((rows, 0, 8, 8, 3), np.uint8), np.zeros((rows, 8), np.float32), [""] * rows
        )

    def observe(self, env_ids: Any, out: Observation) -> None:
        out.proprio[:, :3] = torch.from_numpy(self.place[list(env_ids)])
        out.proprio[:, 7] = torch.from_numpy(self.step_of[list(env_ids)].astype(np.float32))

    def step(self, env_ids: Any, actions: torch.Tensor) -> ChunkResult:
        ids = list(env_ids)
        self.seen.append(actions[0, 0].numpy().copy())
        self.place[ids] += actions[:, 0, :3].numpy()
        self.step_of[ids] += 1
        result = ChunkResult.zeros(len(ids), 1)
        result.truncated[:] = torch.from_numpy(self.step_of[ids] >= STEPS)
        return result


class Tells:
    """Action k of a chunk from step s is (s + k) / 100 in x and s / 100 in y."""

    chunk_len, action_dim, terms_per_step, with_value = K, 7, 7, False

    def __init__(self) -> None:
        self.prefixes: list[Any] = []
        self.traits = PolicyTraits(continue_chunk=self.go_on)

    def act(self, obs: Observation, rng: Any, mode: str) -> ActOutput:
        actions = torch.zeros(len(obs.proprio), K, 7)
        actions[:, :, 0] = (obs.proprio[:, 7:] + torch.arange(K)) / 100
        actions[:, :, 1] = obs.proprio[:, 7:] / 100
        return ActOutput(actions, torch.zeros(len(actions), 1), None, {})

    def go_on(self, obs: Observation, rng: Any, prefix: Any) -> torch.Tensor:
        self.prefixes.append((obs.proprio[0, 7].item(), prefix.previous[0], prefix.weights[0]))
        return self.act(obs, rng, "greedy").actions


def executed(setting: Setting) -> tuple[list[tuple[int, int]], Tells]:
    """For each step, the step that its action was decided for, and the step of the observation."""
    world, policy = World(), Tells()
    run_episodes(world, policy, [EpisodeSpec(0, "t", 0, 1), EpisodeSpec(1, "t", 1, 2)], setting)  # type: ignore[arg-type]
    return [(round(100 * float(a[0])), round(100 * float(a[1]))) for a in world.seen], policy


def test_naive_waits_and_executes_late() -> None:
    steps, _ = executed(Setting("naive", 2, K))
    wait, chunk = [(0, 0)] * 2, [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert steps[:6] == wait + chunk
    assert steps[6:12] == [*wait, (6, 6), (7, 6), (8, 6), (9, 6)]
    assert executed(Setting("naive", 0, K))[0] == [(step, step - step % 4) for step in range(STEPS)]


def test_aligned_actions_belong_to_their_step() -> None:
    steps, _ = executed(Setting("aligned", 2, 1))
    assert [for_step for for_step, _ in steps[2:]] == list(range(2, STEPS))


def test_real_time_chunks_are_asked_to_go_on_from_what_will_be_executed() -> None:
    steps, policy = executed(Setting("rtc", 2, 2))
    assert [for_step for for_step, _ in steps[2:]] == list(range(2, STEPS))
    assert [observed for _, observed in steps[2:]] == [s - s % 2 - 2 for s in range(2, STEPS)]
    for step, previous, weights in policy.prefixes:
        assert previous[:2, 0].tolist() == pytest.approx([step / 100, (step + 1) / 100])
        assert weights.tolist() == [1, 1, 0, 0]


def test_seams_are_where_another_chunk_begins_to_act() -> None:
    episode = OpenEpisode(executor_for(Setting("naive", 0, K), K, 7))
    episode.positions = [np.array([x, 0, 0]) for x in (0.0, 0, 0, 0, 1, 2, 3, 4)]
    episode.actions = [np.zeros(7) for _ in range(8)]
    episode.actions[3][0] = 0.5
    episode.seams = [3]
    found = figures([episode])
    assert found.seam_jump == 0.5
    assert found.seam_jerk == pytest.approx(np.sqrt((1 + 1 + 0) / 3) * 20**3)
    assert found.jerk == pytest.approx(np.sqrt(2 / 5) * 20**3)
    assert figures([OpenEpisode(episode.executor, episode.positions, episode.actions)]).seam_jerk == 0


def test_the_settings_and_the_table() -> None:
    ways = [(s.way, s.latency, s.horizon) for s in settings_for(8, 3, flow=True)]
    assert ways == [
        ("naive", 0, 8), ("naive", 3, 8), ("aligned", 3, 2),
        ("newest", 0, 4), ("rtc", 0, 4), ("newest", 3, 4), ("rtc", 3, 4),
    ]  # fmt: skip
    assert ("rtc", 4, 4) in [(s.way, s.latency, s.horizon) for s in settings_for(8, 4, flow=True)]
    assert len(settings_for(4, 3, flow=False)) == 3
    episode = OpenEpisode(executor_for(Setting("naive", 0, K), K, 7))
    episode.positions, episode.actions, episode.success = [np.zeros(3)] * 5, [np.zeros(7)] * 5, True
    row = row_of(Setting("rtc", 3, 4), figures([episode]))
    assert row["success"] == 1.0
    assert table([row]).row_count == 1
