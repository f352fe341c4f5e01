"""A recorded episode is the rollout, bit for bit, and recording it changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.rollout.recording import RecordedEpisode, RecordingVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.profiler import Profiler
from tests.toy import CHUNK, TASKS, ToyEnv, ToyPolicy

SPECS = [EpisodeSpec(i, list(TASKS)[i % 2], i, seed=50 + i, group=i) for i in range(12)]


def run(env: ToyEnv | RecordingVecEnv) -> tuple[dict[int, Trajectory], dict[int, RecordedEpisode]]:
    waiting = iter(SPECS)
    found, recorded = {}, {}
    runner = EnvRunner(env, ToyPolicy(seed=3), Profiler(), record=True)
    for trajectory in runner.run(lambda: next(waiting, None), lambda spec, cause: spec, "sample"):
        found[trajectory.result.spec.episode_id] = trajectory
        if isinstance(env, RecordingVecEnv):
            recorded[trajectory.result.spec.episode_id] = env.take(trajectory.result.spec)
    return found, recorded


def test_recording_changes_no_episode_and_keeps_what_was_seen_and_done() -> None:
    plain, _ = run(ToyEnv(5))
    watched, recorded = run(RecordingVecEnv(ToyEnv(5)))
    assert plain.keys() == watched.keys() == recorded.keys()
    for key, trajectory in watched.items():
        result, episode = trajectory.result, recorded[key]
        assert result == plain[key].result
        assert len(episode.action) == len(episode.images) == len(episode.reward) == result.num_steps
        assert sum(episode.reward) == result.reward
        assert episode.success == result.success
        assert episode.decision == [k // CHUNK for k in range(result.num_steps)]
        assert episode.calls == list(range(result.num_decisions)) == list(range(episode.asked))
        first = np.flatnonzero(np.diff(episode.decision, prepend=-1))
        steps = trajectory.steps
        assert len(first) == len(steps) == result.num_decisions
        for place, (step, row) in zip(first, steps, strict=True):
            assert np.array_equal(episode.images[place], step.obs.images[row].numpy())
            assert np.array_equal(episode.proprio[place], step.obs.proprio[row].numpy())
            ran = episode.action[place : place + CHUNK][: result.num_steps - place]
            asked = step.act.actions[row, : len(ran)].clamp(-1, 1).numpy()
            assert np.array_equal(np.stack(ran), asked)


def test_frames_between_decisions_are_those_of_the_control_steps() -> None:
    """The world of the toy moves by 0.25 times the action: each frame shows where the step before led."""
    _, recorded = run(RecordingVecEnv(ToyEnv(3)))
    for episode in recorded.values():
        position, action = np.stack(episode.proprio), np.stack(episode.action)
        moved = np.clip(position[:-1] + np.float32(0.25) * action[:-1], -1, 1)
        np.testing.assert_allclose(position[1:], moved, atol=1e-6)


def test_a_run_that_broke_is_forgotten() -> None:
    env = RecordingVecEnv(ToyEnv(2, breaks={1: 1}))
    found, recorded = run(env)
    assert found.keys() == set(range(12))
    assert len(recorded[1].action) == found[1].result.num_steps
    with pytest.raises(ValueError, match="was taken already"):
        env.take(SPECS[1])


def test_actions_are_recorded_as_they_were_executed() -> None:
    env = RecordingVecEnv(ToyEnv(1))
    env.reset([0], [replace(SPECS[0], init_state=3)])
    obs = env.new_observation(1)
    env.observe([0], obs)
    env.step([0], torch.full((1, CHUNK, 2), -7.0))
    assert np.stack(env.take(replace(SPECS[0], init_state=3)).action).tolist() == [[-1.0, -1.0]] * CHUNK
