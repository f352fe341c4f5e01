"""The twin in lockstep: its arm moves as under training's controller, and everything repeats."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied_rl.benchmarks.twin_lockstep import Lockstep, Twin
from embodied_rl.policy import PolicyTraits
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Observation

TASK = "tabletop_object/pick_up_the_bottle_and_place_it_in_the_basket"


class Sideways:
    """A policy that pushes sideways, and keeps what it was shown."""

    chunk_len, action_dim, terms_per_step, with_value, traits = 4, 7, 7, False, PolicyTraits()

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []
        self.decisions: list[int] = []

    def act(self, obs: Observation, rng: DecisionRng, mode: str) -> ActOutput:
        self.seen.append(obs.proprio[0].numpy().copy())
        self.decisions.append(int(rng.decision[0]))
        actions = torch.tensor([0, 0.3, 0, 0, 0, 0, -1.0]).expand(len(obs.proprio), 4, 7)
        return ActOutput(actions, torch.zeros(len(actions), 28), None, {})


def pushed(twin: Twin) -> Sideways:
    policy = Sideways()
    lockstep = Lockstep(policy, "tabletop_object", twin)  # type: ignore[arg-type]
    assert not lockstep.run(TASK, 50, 0.6)
    assert lockstep.holds == 0
    return policy


def test_the_arm_moves_as_it_is_asked_and_everything_repeats() -> None:
    first, second = pushed(Twin()), pushed(Twin())
    np.testing.assert_array_equal(first.seen, second.seen)
    assert first.decisions == list(range(len(first.seen)))
    assert 6 <= len(first.seen) <= 12, "every two control steps, and before the start"
    # a constant action moves the reference by up to 0.306 times its 0.05 m a step
    moved = first.seen[-1][:3] - first.seen[0][:3]
    assert 0.03 < moved[1] < 0.3 * 0.05 * 0.306 * 20
    assert np.abs(moved[[0, 2]]).max() < 0.01


def test_late_answers_leave_less_of_each_chunk() -> None:
    now, late = pushed(Twin()), pushed(Twin(answer_ms=80.0))
    assert late.seen[-1][1] < now.seen[-1][1] - 0.002


def test_an_arm_whose_answers_are_all_too_late_is_not_armed() -> None:
    with pytest.raises(RuntimeError, match=r"the arm is idle: arm is not possible .*policy: none yet"):
        pushed(Twin(answer_ms=150.0))


@pytest.mark.parametrize("looks", [("light",), ("texture",)])
def test_a_look_changes_the_pictures_and_not_the_episode(looks: tuple[str, ...]) -> None:
    images = []
    for twin in (Twin(), Twin(looks=looks)):
        lockstep = Lockstep(Sideways(), "tabletop_object", twin)  # type: ignore[arg-type]
        lockstep.plant.reset(TASK, 50, seed=50)
        images.append((lockstep.plant.images().astype(int), lockstep.plant.joints()[0]))
    assert np.abs(images[0][0] - images[1][0]).mean() > 1
    np.testing.assert_array_equal(images[0][1], images[1][1])
