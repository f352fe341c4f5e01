"""What is recorded of an episode's commands, and the smoothness of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied_rl.evaluation.actions import ActionRecorder, smoothness
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.rollout.sampler import evaluation_specs
from tests.toy import HELDOUT, ToyEnv, ToyPolicy


def test_every_executed_step_of_every_episode_is_kept_and_no_other() -> None:
    specs = evaluation_specs(HELDOUT, 0)
    env = ActionRecorder(ToyEnv(5, breaks={specs[3].episode_id: 1}))
    report = evaluate(env, ToyPolicy(), specs, "sample")
    for result in report.results:
        assert len(env.take(result.spec.episode_id)) == result.num_steps
    plain = evaluate(ToyEnv(3), ToyPolicy(), specs, "sample")
    assert [(r.success, r.num_steps) for r in plain.results] == [(r.success, r.num_steps) for r in report.results]


def test_commands_are_as_clipped() -> None:
    env = ActionRecorder(ToyEnv(1))
    (spec,) = evaluation_specs({"toy/reach": [16]}, 0)
    env.reset([0], [spec])
    env.step([0], torch.tensor([[[3.0, -0.5], [0.0, 0.0]]]))
    assert env.take(spec.episode_id).tolist() == [[1.0, -0.5], [0.0, 0.0]]


def test_smoothness_by_hand() -> None:
    """Steady motion has no jerk; a step back and forth along x has second differences of 4."""
    steady = np.tile(np.array([0.3, 0.4, 0.0, 1.0], np.float32), (5, 1))
    assert smoothness(steady) == {"path_length": 2.5, "jerk": 0.0}
    shaking = np.zeros((4, 7), np.float32)
    shaking[:, 0] = [1, -1, 1, -1]
    shaking[:, 6] = [9, 0, 9, 0]  # the gripper is no translation
    assert smoothness(shaking) == {"path_length": 4.0, "jerk": 4.0}
    assert smoothness(shaking[:2])["jerk"] == pytest.approx(0.0)
