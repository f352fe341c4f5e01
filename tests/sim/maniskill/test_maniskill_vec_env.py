"""ManiSkill on the CPU: the contract, and what the adapter does with actions, rewards, pictures and missing files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.maniskill import load, vec_env, vulkan
from embodied_rl.sim.maniskill.control import Control, libero_proprio
from embodied_rl.sim.maniskill.tasks import load_tasks
from embodied_rl.sim.maniskill.vec_env import ManiSkillFactory, ManiSkillVecEnv, Setup
from embodied_rl.sim.step_reward import RewardMode
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.sim.wrappers.subprocess_worker import rss
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import (
    EnvIdContract,
    SuccessContract,
    VecEnvContract,
    check_result,
    draw,
    run,
    same_observations,
    same_results,
)
from tests.sim.optional import needs

pytestmark = needs("mani_skill")
PUSH = "maniskill/PushCube-v1"


def push_actions(spec: EpisodeSpec) -> torch.Tensor:
    """Actions float32 [1, 50, 7] that push the cube to its goal: behind it, down, forward; +1 closes the gripper."""
    with closing(ManiSkillVecEnv(load_tasks(["PushCube-v1"]), 1)) as env:
        env.reset([0], [spec])
        out, actions = env.new_observation(1), []
        for k in range(50):
            env.observe([0], out)
            assert out.state is not None
            cube = out.state[0, 28:31]
            hand = out.proprio[0, :3]
            behind = cube + torch.tensor([-0.09, 0.0, 0.0])
            aim = behind if k < 12 else cube + torch.tensor([0.3, 0.0, 0.0])
            move = ((aim - hand) / 0.05).clamp(-1, 1)
            if k >= 12:
                move[2] = ((0.02 - hand[2]) / 0.05).clamp(-1, 1)
            actions.append(torch.cat([move, torch.zeros(3), torch.ones(1)]))
            if env.step([0], actions[-1][None, None]).terminated.any():
                break
    return torch.stack(actions)[None]


class TestStates(VecEnvContract, SuccessContract, EnvIdContract):
    tasks = (PUSH,)

    @property
    def success(self) -> tuple[EpisodeSpec, torch.Tensor]:
        spec = EpisodeSpec(0, PUSH, 2, 1)
        return spec, push_actions(spec)

    def make(self, num_envs: int) -> VecEnv:
        return ManiSkillVecEnv(load_tasks(["PushCube-v1"]), num_envs)


def make(task: str = "PushCube-v1", **options: object) -> ManiSkillVecEnv:
    return ManiSkillVecEnv(load_tasks([task]), 1, Setup(**options))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def push() -> Iterator[ManiSkillVecEnv]:
    with closing(make()) as env:
        yield env


@pytest.mark.process
def test_pictures_in_processes_are_those_of_rgb_mode() -> None:
    """Drawn on demand in a child, against ManiSkill's own mode that draws in every step."""
    factory = ManiSkillFactory(tuple(load_tasks(["PushCube-v1"])), image_size=32)
    spec, actions = EpisodeSpec(0, PUSH, 5, 0), torch.full((1, 3, 7), 0.5)
    with closing(ProcessVecEnv(factory, 2, processes=1)) as env:
        assert env.info.cameras == ("base_camera",)
        assert "lavapipe" in env.info.renderer or env.info.renderer.startswith("sapien")
        env.reset([0, 1], [spec, spec])
        first, second = env.new_observation(1), env.new_observation(1)
        env.observe([0], first)
        env.observe([1], second)
        same_observations(first, second)
        _, moved = run(env, [0], actions)
        assert env.frame(0, "base_camera", 48).shape == (48, 48, 3)
        assert env.frame(0, "render_camera", 40).std() > 5
        again = env.new_observation(1)
        env.observe([0], again)
        same_observations(moved, again)
    own = load.make(
        "PushCube-v1",
        num_envs=1,
        obs_mode="rgb",
        control_mode="pd_ee_delta_pose",
        sim_backend="cpu",
        render_backend="cpu",
        sensor_configs={"width": 32, "height": 32},
    )
    with closing(own):
        seed = int(load_tasks(["PushCube-v1"])[0].init_states[5])
        pictures = [own.reset(seed=seed)[0]["sensor_data"]["base_camera"]["rgb"]]
        for _ in range(3):
            # 0.5 of 0.05 m and 0.5 rad; +0.5 closes, which is ManiSkill's -0.5
            seen = own.step(torch.tensor([[0.25, 0.25, 0.25, 1.0, 1.0, 1.0, -0.5]]))[0]
        pictures.append(seen["sensor_data"]["base_camera"]["rgb"])
    assert torch.equal(pictures[0][0], first.images[0, 0])
    assert torch.equal(pictures[1][0], moved.images[0, 0])
    assert not torch.equal(first.images, moved.images)


def test_two_cameras_are_the_tasks_own_and_one_in_the_hand() -> None:
    """Where `panda_wristcam` has it, on a robot that moves like any other; and PickCube's goal is seen."""
    name, hand = "maniskill/PickCube-v1", None
    specs, seen = [EpisodeSpec(0, name, 3, 0)], {}
    for cameras in (None, 1, 2):
        with closing(
            ManiSkillVecEnv(
                load_tasks(["PickCube-v1"]), 1, Setup(image_size=32, cameras=cameras, for_policies=cameras is not None)
            )
        ) as env:
            env.reset([0], specs)
            seen[cameras] = run(env, [0], draw(env.info, 1))
            assert env.info.cameras == ("base_camera", "hand_camera")[: cameras or 1]
            if cameras == 2:
                hand = env._sub_envs[0, name].env.scene.sensors["hand_camera"].camera.get_local_pose()
    for one in seen.values():  # no camera changes what happens
        same_results(one[0], seen[None][0])
        assert torch.equal(one[1].proprio, seen[None][1].proprio)
    assert torch.equal(seen[1][1].images[:, 0], seen[2][1].images[:, 0])
    assert not torch.equal(seen[1][1].images, seen[None][1].images)  # the goal, which ManiSkill hides
    assert hand is not None
    own = load.make("StackCube-v1", num_envs=1, obs_mode="state", sim_backend="cpu", render_backend="cpu")
    with closing(own):
        own.reset(seed=0)
        links = own.agent.robot.links_map
        wrist = links["panda_hand"].pose.inv() * links["camera_link"].pose
        np.testing.assert_allclose(hand.sp.p, wrist.sp.p, atol=1e-4)
        assert abs(float(hand.sp.q @ wrist.sp.q)) == pytest.approx(1, abs=1e-4)
    with pytest.raises(UserError, match=r"PickCube-v1 has 2 cameras \(base_camera, hand_camera\), not 3"):
        ManiSkillVecEnv(load_tasks(["PickCube-v1"]), 1, Setup(image_size=32, cameras=3, for_policies=True))


def test_liberos_numbers_of_all_worlds_at_once(push: ManiSkillVecEnv) -> None:
    """As the GPU backend computes them."""
    push.reset([0], [EpisodeSpec(0, PUSH, 0, 0)])
    _, seen = run(push, [0], draw(push.info, 1))
    at_once = libero_proprio(push._sub_envs[0, PUSH].env)
    torch.testing.assert_close(at_once, seen.proprio, rtol=0, atol=1e-6)


def test_liberos_gripper_and_scale(push: ManiSkillVecEnv) -> None:
    assert "control libero" in push.info.simulator
    moves = {}
    for gripper in (-1.0, 1.0):
        push.reset([0], [EpisodeSpec(0, PUSH, 0, 0)])
        before = push.new_observation(1)
        push.observe([0], before)
        action = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, gripper])
        _, after = run(push, [0], action.repeat(1, 4, 1))
        moves[gripper] = after.proprio[0] - before.proprio[0]
        assert 0.05 < float(after.proprio[0, 2] - before.proprio[0, 2]) < 0.2  # 4 steps of 0.05 m, less a lag
    assert moves[1.0][6:].sum() < -0.03  # +1 closes
    assert abs(float(moves[-1.0][6:].sum())) < 0.02  # it begins open


def test_proprio_turns_by_axis_and_angle(push: ManiSkillVecEnv) -> None:
    push.reset([0], [EpisodeSpec(0, PUSH, 0, 0)])
    out = push.new_observation(1)
    push.observe([0], out)
    assert out.proprio[0, 3:6].norm() == pytest.approx(np.pi, abs=0.2)  # the hand looks down


def test_another_controller_by_name() -> None:
    with closing(make(control="pd_ee_delta_pos")) as env:
        assert env.info.action_dim == 4
        assert env.info.proprio_dim == 0
        assert "control pd_ee_delta_pos" in env.info.simulator
    with closing(make(control="pd_ee_delta_pos", image_size=8, cameras=1, for_policies=True)) as env:
        env.reset([0], [EpisodeSpec(0, PUSH, 0, 0)])
        _, seen = run(env, [0], torch.zeros(1, 1, 4))
        assert seen.proprio.shape == (1, 8)
        assert seen.proprio[0, 2] > 0.1  # the hand is above the table
    with pytest.raises(UserError, match=r"no controller 'pd_ee_delta_poss'.*Did you mean"):
        make(control="pd_ee_delta_poss")
    with pytest.raises(UserError, match="no gripper that LIBERO's actions fit"):
        make("MS-CartpoleBalance-v1", control="libero")


def test_a_task_without_success_is_paid_natively() -> None:
    with closing(make("MS-CartpoleBalance-v1")) as env:
        assert "reward native of normalized_dense" in env.info.simulator
        env.reset([0], [EpisodeSpec(0, "maniskill/MS-CartpoleBalance-v1", 0, 0)])
        result = env.step([0], draw(env.info, 1))
        check_result(result, env.info, 1)
        assert 0 < float(result.reward[0, 0]) <= 1


def test_what_a_task_pays_and_which_robots_fit() -> None:
    """Where a task names 'none' first, its best mode is taken all the same."""
    assert load.reward_mode("PlugCharger-v1") == "sparse"
    assert load.reward_mode("PushCube-v1") == "normalized_dense"
    assert load.reward_mode("Empty-v1") == "none"
    with pytest.raises(UserError, match="several robots"):
        make("TwoRobotPickCube-v1")


def test_rewards_are_what_their_mode_says() -> None:
    spec = EpisodeSpec(0, PUSH, 2, 1)
    actions = torch.cat([push_actions(spec), torch.zeros(1, 2, 7)], dim=1)
    paid = {}
    modes: tuple[RewardMode, ...] = ("native", "progress", "success")
    for mode in modes:
        with closing(make(reward=mode, gamma=0.5)) as env:
            env.reset([0], [spec])
            first, result = env.step([0], actions[:, :1]), env.step([0], actions[:, 1:])
            assert result.success.all()
            assert bool(result.terminated) == (mode != "native")
            paid[mode] = np.append(first.reward[0], result.reward[0, : int(result.steps_taken)])
    steps = len(paid["progress"])
    assert len(paid["native"]) == steps + 2
    grown = np.diff(paid["native"][: steps - 1], prepend=0, append=0)
    grown[0] *= 0.5  # a decision of one step, and another one that success ends
    assert paid["progress"] == pytest.approx(grown + np.eye(steps)[-1], abs=1e-6)
    assert paid["success"].tolist() == [0.0] * (steps - 1) + [1.0]


def test_a_world_that_breaks_shows_its_last_sound_state(push: ManiSkillVecEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    push.reset([0], [EpisodeSpec(0, PUSH, 0, 0)])
    _, before = run(push, [0], torch.zeros(1, 2, 7))
    with monkeypatch.context() as broken:
        broken.setattr(vec_env, "_row", lambda state: np.full(35, np.nan, np.float32))
        result = push.step([0], torch.zeros(1, 2, 7))
    assert result.failed.all()
    assert result.steps_taken.tolist() == [1]
    after = push.new_observation(1)
    push.observe([0], after)
    assert before.state is not None
    assert after.state is not None
    assert torch.equal(before.state, after.state)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("StackCube-v1", "has states of 48 numbers, not 35"),
        ("PickCubeSO100-v1", "has states of"),
        ("MS-CartpoleBalance-v1", "has states of"),
    ],
)
def test_tasks_that_do_not_fit_together_are_refused_when_they_are_opened(other: str, said: str) -> None:
    """Not by a traceback in the middle of a run, when the other one is reset for the first time."""
    with pytest.raises(UserError, match=rf"^maniskill/{other} {said}.*: train it apart from maniskill/PushCube-v1\.$"):
        ManiSkillVecEnv(load_tasks(["PushCube-v1", other]), 1)


def test_actions_that_mean_something_else_are_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """PullCube has PushCube's states; here with a robot that goes half as far."""
    describe = vec_env.describe_control

    def slower(wanted: str, env: object, task: str) -> Control:
        control = describe(wanted, env, task)
        return replace(control, scale=control.scale / 2) if "Pull" in task else control

    tasks = load_tasks(["PushCube-v1", "PullCube-v1"])
    with closing(ManiSkillVecEnv(tasks, 1)) as env:
        for task in tasks:
            env.reset([0], [EpisodeSpec(0, task.name, 0, 0)])
            assert not env.step([0], draw(env.info, 1)).failed.any()
    monkeypatch.setattr(vec_env, "describe_control", slower)
    with pytest.raises(UserError, match="controlled by other actions"):
        ManiSkillVecEnv(tasks, 1)


def test_a_task_that_pays_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="Empty-v1 has neither a reward nor a success"):
        make("Empty-v1")
    monkeypatch.setattr(load, "reward_mode", lambda env_id: load.NO_REWARD)
    with pytest.raises(UserError, match=r"PushCube-v1 is 0 in every step, .*: use 'success'"):
        make(reward="native")
    with closing(make()) as env:  # progress: growth of nothing, and 1 for success
        assert "progress of none" in env.info.simulator


def test_missing_files_are_refused_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, push: ManiSkillVecEnv
) -> None:
    from mani_skill.utils import assets

    with pytest.raises(UserError, match=r"PickSingleYCB-v1 needs files .*\(ycb\).*download_asset"):
        load_tasks(["PickSingleYCB-v1"])
    monkeypatch.setattr(assets.DATA_SOURCES["ycb"], "output_dir", tmp_path)
    (tmp_path / str(assets.DATA_SOURCES["ycb"].target_path)).mkdir(parents=True)  # what a failed download leaves
    with pytest.raises(UserError, match="PickSingleYCB-v1 needs files"):
        load_tasks(["PickSingleYCB-v1"])
    with pytest.raises(UserError, match=r"AnymalC-Reach-v1 needs files of a robot .*\(anymal_c\)"):  # a robot's files
        make("AnymalC-Reach-v1")
    with pytest.raises(UserError, match=r"no task 'PushCub-v1'.*PushCube-v1"):
        load_tasks(["PushCub-v1"])
    with pytest.raises(UserError, match="name one"):
        load_tasks([])


def test_memory_stays_flat_over_a_thousand_resets(push: ManiSkillVecEnv) -> None:
    def resets(count: int) -> int:
        for index in range(count):
            push.reset([0], [EpisodeSpec(index, PUSH, index, 0)])
        return rss()

    before = resets(50)
    assert resets(1_000) - before < 20 << 20


@pytest.mark.parametrize("task", ["PullCube-v1", "PegInsertionSide-v1", "RotateValveLevel0-v1", "SO100GraspCube-v1"])
def test_tasks_that_need_no_download(task: str) -> None:
    """Two slots of one process end the same episode alike."""
    name = f"maniskill/{task}"
    with closing(ManiSkillVecEnv(load_tasks([task]), 2)) as env:
        actions = draw(env.info, 1)
        env.reset([0], [EpisodeSpec(1, name, 3, 0)])
        ends = []
        for env_id in (0, 1):
            env.reset([env_id], [EpisodeSpec(0, name, 1, 0)])
            ends.append(run(env, [env_id], actions))
    same_results(ends[0][0], ends[1][0])
    same_observations(ends[0][1], ends[1][1])


def test_the_drivers_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user chose, then the folder of the script, then the system's."""
    for name in ("VK_ICD_FILENAMES", "VK_DRIVER_FILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(vulkan, "_SYSTEM", (tmp_path / "icd.d",))
    assert vulkan.choose_cpu_driver() == "no CPU driver"
    (tmp_path / "icd.d").mkdir()
    (tmp_path / "icd.d" / "lvp_icd.x86_64.json").touch()
    assert vulkan.choose_cpu_driver() == "lavapipe of the system"
    ours = vulkan.installed_lavapipe()
    ours.parent.mkdir()
    ours.touch()
    assert vulkan.choose_cpu_driver() == f"lavapipe in {ours.parent}"
    monkeypatch.setenv("VK_ICD_FILENAMES", "mine.json")
    assert vulkan.choose_cpu_driver() == "mine.json"
