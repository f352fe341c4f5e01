"""The environment's contract, on the built-in tabletop tasks."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import Array, EpisodeSpec

TASKS = load_suite("tabletop_object")


class _Flat:
    """Paints every picture with the height of the hand, in mm modulo 256."""

    name = "flat"

    def add_scene(self, visual_model: mujoco.MjModel) -> int:
        return int(visual_model.body("robot0_right_hand").id)

    def remove_scene(self, scene: int) -> None:
        pass

    def render(
        self,
        scene: int,
        xpos: Array,
        xmat: Array,
        cameras: tuple[str, ...],
        out: Array,
        site_groups: tuple[int, ...] = (),
    ) -> None:
        out[:] = int(1000 * xpos[scene, 2]) % 256


@pytest.fixture
def env() -> Iterator[MujocoVecEnv]:
    made = MujocoVecEnv(TASKS, 4, image_size=8, renderer=_Flat(), threads=2)
    yield made
    made.close()


def _spec(task: int = 0, state: int = 0) -> EpisodeSpec:
    return EpisodeSpec(0, TASKS[task].name, state, 0)


def _actions(rows: int, steps: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (rows, steps, 7)).astype(np.float32))


def test_slots_threads_and_chunks_change_nothing(env: MujocoVecEnv) -> None:
    plan = _actions(2, 8)
    env.reset([0, 2], [_spec(0, 3), _spec(1, 5)])
    env.step([0, 2], plan)
    alone = MujocoVecEnv(TASKS, 1, threads=1)
    for env_id, spec, actions in ((0, _spec(0, 3), plan[:1]), (2, _spec(1, 5), plan[1:])):
        alone.reset([0], [spec])
        for step in range(8):
            alone.step([0], actions[:, step : step + 1])
        np.testing.assert_array_equal(env.data(env_id).qpos, alone.data(0).qpos)
    alone.close()


def test_reset_forgets_everything(env: MujocoVecEnv) -> None:
    ends = []
    for _ in range(2):
        env.reset([1], [_spec(2, 7)])
        env.step([1], _actions(1, 6))
        ends.append(env.data(1).qpos.copy())
        env.reset([1], [_spec(0, 1)])
        env.step([1], _actions(1, 3, seed=9))
    np.testing.assert_array_equal(*ends)


def test_observation(env: MujocoVecEnv) -> None:
    env.reset([3, 1], [_spec(1), _spec(0)])
    out = env.new_observation(2)
    env.observe([3, 1], out)
    out.check()
    assert out.instruction == [TASKS[1].instruction, TASKS[0].instruction]
    data = env.data(3)
    np.testing.assert_allclose(out.proprio[0, :3], data.site("gripper0_grip_site").xpos, atol=1e-6)
    turn, quat = out.proprio[0, 3:6].double().numpy(), np.empty(4)
    angle = np.linalg.norm(turn)
    mujoco.mju_axisAngle2Quat(quat, turn / angle, angle)
    assert abs(quat @ data.body("robot0_right_hand").xquat) == pytest.approx(1.0, abs=1e-6)
    assert (env.frame(3, PANDA.cameras[1], 5) == out.images[0, 0, 0, 0].numpy()).all()


def test_up_goes_up(env: MujocoVecEnv) -> None:
    env.reset([0], [_spec()])
    before = env.data(0).site("gripper0_grip_site").xpos[2]
    actions = torch.zeros(1, 8, 7)
    actions[..., 2] = 1.0
    env.step([0], actions)
    assert env.data(0).site("gripper0_grip_site").xpos[2] > before + 0.05


def test_horizon_truncates_inside_a_chunk(env: MujocoVecEnv) -> None:
    env.reset([0], [_spec()])
    still, horizon = torch.zeros(1, 40, 7), TASKS[0].max_episode_steps
    taken = 0
    for _ in range(horizon // 40 + 1):
        result = env.step([0], still)
        taken += int(result.steps_taken[0])
    assert taken == horizon
    assert result.truncated[0]
    assert not result.terminated[0]
    with pytest.raises(ValueError, match="reset it first"):
        env.step([0], still)


def test_success_stops_the_chunk(env: MujocoVecEnv) -> None:
    """The object is put over the bottom of the basket."""
    env.reset([0], [_spec()])
    model, data, goal = env.model(0), env.data(0), TASKS[0].goal[0]
    joint = model.body(goal.body).jntadr[0]  # type: ignore[union-attr]
    at = model.jnt_qposadr[joint]
    data.qpos[at : at + 3] = data.site(goal.site).xpos  # type: ignore[union-attr]
    result = env.step([0], torch.zeros(1, 8, 7))
    assert result.success[0]
    assert result.terminated[0]
    assert result.steps_taken[0] < 8
    assert result.reward[0, result.steps_taken[0] - 1] == 1.0 == result.reward.sum()


def test_an_episode_can_go_on_after_success() -> None:
    """Every step in which the goal holds pays; only the horizon ends the episode."""
    env = MujocoVecEnv(TASKS[:1], 1, threads=1, stop_at_success=False)
    env.reset([0], [_spec()])
    model, data, goal = env.model(0), env.data(0), TASKS[0].goal[0]
    at = model.jnt_qposadr[model.body(goal.body).jntadr[0]]  # type: ignore[union-attr]
    data.qpos[at : at + 3] = data.site(goal.site).xpos  # type: ignore[union-attr]
    result = env.step([0], torch.zeros(1, 8, 7))
    assert result.success[0]
    assert not result.terminated[0]
    assert result.steps_taken[0] == 8
    assert result.reward.sum() > 1
    data.qpos[at] += 1.0  # thrown out again
    assert env.step([0], torch.zeros(1, 2, 7)).reward.sum() == 0.0
    env.close()


def test_diverged_physics_is_a_failure(env: MujocoVecEnv) -> None:
    env.reset([0, 1], [_spec(), _spec()])
    env.data(0).qvel[:] = 1e12
    result = env.step([0, 1], torch.zeros(2, 4, 7))
    assert result.failed.tolist() == [True, False]
    assert not result.success.any()
    env.reset([0], [_spec()])
    assert not env.step([0], torch.zeros(1, 4, 7)).failed[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_actions_are_refused(env: MujocoVecEnv, bad: float) -> None:
    env.reset([0], [_spec()])
    actions = torch.zeros(1, 2, 7)
    actions[0, 1, 3] = bad
    with pytest.raises(ValueError, match="non-finite"):
        env.step([0], actions)


def test_bad_input_is_named(env: MujocoVecEnv) -> None:
    with pytest.raises(UserError, match="Did you mean"):
        env.reset([0], [EpisodeSpec(0, TASKS[0].name + "x", 0, 0)])
    with pytest.raises(UserError, match="initial states 0 to"):
        env.reset([0], [_spec(0, 10_000)])
    with pytest.raises(ValueError, match="env 9"):
        env.reset([9], [_spec()])
    drop_action_history = MujocoVecEnv(TASKS[:1], 1)
    drop_action_history.reset([0], [_spec()])
    with pytest.raises(UserError, match="no renderer"):
        drop_action_history.observe([0], drop_action_history.new_observation(1))
    drop_action_history.close()
