"""States of tabletop worlds: a fixed layout, MuJoCo's own numbers, and no trace in the simulation."""

from __future__ import annotations

from contextlib import closing

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco import factory, goal
from embodied_rl.sim.mujoco.factory import MujocoFactory
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.state import facts
from embodied_rl.sim.state.staged import Shaping
from embodied_rl.sim.state.vector import StateLayout
from embodied_rl.sim.tabletop import load_suite, problem_of, suites
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import VecEnvContract
from tests.sim.state.episodes import DRAWER, STOVE, TWO, expert_actions, open_worlds, random_actions, task

GOAL = tuple(load_suite("tabletop_goal"))


def worlds(num_envs: int) -> MujocoFactory:
    return MujocoFactory(
        GOAL[:2],
        "raycast",
        official=False,
        image_size=16,
        threads=1,
        stop_at_success=True,
        cameras=0,
        max_scene_bytes=1 << 28,
        layout=StateLayout.of(GOAL),
    )


class TestStateWorlds(VecEnvContract):
    tasks = tuple(each.name for each in GOAL[:2])

    def make(self, num_envs: int) -> VecEnv:
        return worlds(num_envs)(num_envs)


def named(env: MujocoVecEnv, env_id: int = 0) -> dict[str, float]:
    layout = StateLayout.of(list(env._tasks.values()))
    return dict(zip(layout.names(), env.state([env_id])[0].tolist(), strict=True))


@pytest.mark.parametrize("suite", suites())
def test_the_layout_has_room_for_every_model_of_the_suite(suite: str) -> None:
    tasks, free, single = load_suite(suite), [], []
    for each in tasks:
        kinds = [int(kind) for kind in each.build_physics().jnt_type]
        free.append(kinds.count(int(mujoco.mjtJoint.mjJNT_FREE)))
        single.append(len(kinds) - free[-1] - 9)
    layout = StateLayout.of(tasks)
    assert (layout.objects, layout.joints) == (max(free), max(single))
    assert layout.facts == max(len(each.goal) for each in tasks)
    assert len(set(layout.names())) == layout.dim


def test_a_state_is_what_mujoco_says() -> None:
    with closing(open_worlds("tabletop_goal")) as env:
        env.reset([0], [EpisodeSpec(0, GOAL[1].name, 3, 0)])
        env.step([0], random_actions(12, 0)[None])
        data, model, seen = env.data(0), env.model(0), named(env)
        thing = problem_of(GOAL[1].name).goal[0].args[0]
        joint = data.joint(f"{thing}_joint0")
        assert [seen[f"object0_{axis}"] for axis in ("x", "y", "z", "qw")] == pytest.approx(joint.qpos[:4])
        assert [seen[f"object0_{axis}"] for axis in ("vx", "vy", "vz", "wx")] == pytest.approx(joint.qvel[:4])
        arm = [data.joint(f"robot0_joint{i}") for i in range(1, 8)]
        assert [seen[f"arm_pos{i}"] for i in range(1, 8)] == pytest.approx([float(j.qpos[0]) for j in arm])
        assert [seen[f"arm_vel{i}"] for i in range(1, 8)] == pytest.approx([float(j.qvel[0]) for j in arm])
        assert seen["finger_vel2"] == pytest.approx(float(data.joint("gripper0_finger_joint2").qvel[0]))
        grip, body = data.site("gripper0_grip_site").xpos, data.body(f"{thing}_main").xpos
        assert [seen[f"eef_{axis}"] for axis in "xyz"] == pytest.approx(grip)
        assert [seen[f"fact0_reach_{axis}"] for axis in "xyz"] == pytest.approx(body - grip, abs=1e-6)
        plate = data.body("plate_1_main").xpos
        assert [seen[f"fact0_place_{axis}"] for axis in "xyz"] == pytest.approx(plate - body, abs=1e-6)
        assert seen["fact0_is_On"] == 1.0
        assert model.nv == 9 + 2 * 6 + 2


def test_what_the_goal_speaks_of_comes_first_in_every_task() -> None:
    for suite in suites():
        for each in load_suite(suite):
            first, *_ = problem_of(each.name).goal
            if first.predicate not in ("on", "in"):
                continue
            with closing(open_worlds(suite)) as env:
                env.reset([0], [EpisodeSpec(0, each.name, 0, 0)])
                expected = env.data(0).joint(f"{first.args[0]}_joint0").qpos[:3]
                seen = named(env)
            assert [seen[f"object0_{axis}"] for axis in "xyz"] == pytest.approx(expected), each.name


def test_a_joint_counts_down_to_its_threshold_and_is_held_beyond() -> None:
    with closing(open_worlds("tabletop_goal")) as env:
        chosen = task("tabletop_goal", DRAWER)
        env.reset([0], [EpisodeSpec(0, chosen.name, 0, 0)])
        before = named(env)
        env.step([0], expert_actions("tabletop_goal", DRAWER)[None])
        after = named(env)
        assert (before["fact0_held"], after["fact0_held"]) == (0.0, 1.0)
        assert before["fact0_gap"] > 0.0 > after["fact0_gap"]
        drawer = float(env.data(0).joint("cabinet_1_drawer_joint").qpos[0])
        assert after["joint0_pos"] == pytest.approx(drawer)
        env.reset([0], [EpisodeSpec(0, chosen.name, 1, 0)])
        assert named(env)["fact0_held"] == 0.0  # nothing of the last episode


def test_slots_that_a_task_lacks_are_zeros() -> None:
    with closing(open_worlds("tabletop_long")) as env:
        one = next(each for each in load_suite("tabletop_long") if each.build_physics().njnt == 9 + 2)
        env.reset([0], [EpisodeSpec(0, one.name, 0, 0)])
        seen = named(env)
    assert seen["object1_present"] == 1.0
    assert {value for name, value in seen.items() if name.startswith("joint")} == {0.0}


@pytest.mark.parametrize("shaping", [None, Shaping("shaped", 0.9)])
def test_the_simulation_does_not_know_whether_it_is_read(shaping: Shaping | None) -> None:
    actions, spec = random_actions(40, 1), EpisodeSpec(0, task("tabletop_long", TWO).name, 2, 0)
    ends = []
    for state in (False, True):
        with closing(open_worlds("tabletop_long", state=state, shaping=shaping if state else None)) as env:
            env.reset([0], [spec])
            rewards = []
            for step in actions:
                if state:
                    env.state([0])
                result = env.step([0], step[None, None])
                rewards.append(result.reward[0, 0])
            full = np.zeros(mujoco.mj_stateSize(env.model(0), mujoco.mjtState.mjSTATE_INTEGRATION))
            mujoco.mj_getState(env.model(0), env.data(0), full, mujoco.mjtState.mjSTATE_INTEGRATION)
            ends.append((full, torch.stack(rewards)))
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    if shaping is None:
        assert torch.equal(ends[0][1], ends[1][1])


@pytest.mark.process
def test_states_pass_through_processes_unchanged() -> None:
    spec, actions = EpisodeSpec(0, GOAL[0].name, 5, 0), random_actions(6, 2)
    make = worlds(3)
    with closing(make(3)) as here, closing(ProcessVecEnv(make, 3, processes=2)) as there:
        seen = []
        for env in (here, there):
            env.reset([0, 2], [spec, spec])
            env.step([2], actions[None])
            out = env.new_observation(2)
            assert not env.observe([2, 0], out)
            assert out.images.shape == (2, 0, 16, 16, 3)
            assert out.state is not None
            assert torch.equal(out.state, env.state([2, 0]))
            seen.append(out.state)
        assert torch.equal(*seen)
        assert not torch.equal(seen[0][0], seen[0][1])


def test_without_cameras_no_renderer_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "make_renderer", None)
    with closing(worlds(1)(1)) as env:
        assert env.info.renderer == "none"
        env.reset([0], [EpisodeSpec(0, GOAL[0].name, 0, 0)])
        env.observe([0], env.new_observation(1))
        with pytest.raises(NotImplementedError, match="no cameras"):
            env.frame(0, "agentview", 16)


def test_a_layout_without_room_is_refused_and_so_is_a_state_without_a_layout() -> None:
    spec = EpisodeSpec(0, task("tabletop_goal", STOVE).name, 0, 0)
    small = StateLayout(1, 2, 1)
    with closing(MujocoVecEnv(GOAL, 1, cameras=0, layout=small)) as env, pytest.raises(UserError, match="too many"):
        env.reset([0], [spec])
    with closing(MujocoVecEnv(GOAL, 1, cameras=0)) as env:
        env.reset([0], [spec])
        with pytest.raises(UserError, match="no state"):
            env.state([0])


def test_the_height_of_up_is_the_goals() -> None:
    assert facts.UP_HEIGHT == goal._UP_HEIGHT
