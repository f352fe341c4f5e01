"""ALOHA: states against bare MuJoCo, rewards against gym-aloha's own code, cameras against MuJoCo's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.aloha.expert import Expert
from embodied_rl.sim.aloha.factory import Setup, aloha_factory
from embodied_rl.sim.aloha.robot import ARM_RANGES, FINGER_CLOSED, FINGER_OPEN, HOME, NAMES, ROBOT
from embodied_rl.sim.aloha.tasks import HORIZON, load_tasks
from embodied_rl.sim.mujoco.joint_env import JointEnv, compile_stages, find_joint_robot
from embodied_rl.sim.mujoco.joint_kernel import judge_stages
from embodied_rl.sim.mujoco.task import Stage, Touch
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.pinned_wheel import ALOHA, PinnedWheel
from embodied_rl.sim.render.scene import camera_index, camera_pose
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.suites import ALOHA_SUITES
from embodied_rl.vec_env import VecEnv
from tests.sim.aloha.there import needs_aloha
from tests.sim.contract import EnvIdContract, SuccessContract, VecEnvContract, draw

pytestmark = needs_aloha()
CUBE, INSERTION = ALOHA_SUITES


@contextmanager
def opened(suite: str, num_envs: int = 1, **options: object) -> Iterator[MujocoVecEnv]:
    setup = Setup(width=16, **options)  # pyright: ignore[reportArgumentType]
    with closing(aloha_factory(suite, (), setup)(num_envs)) as env:
        yield env


def spec_of(suite: str, seed: int, number: int = 0) -> EpisodeSpec:
    return EpisodeSpec(number, load_tasks(suite)[0].name, seed, seed=1)


def expert_actions(suite: str, seed: int) -> torch.Tensor:
    """Actions float32 [1, T, 14] with which the expert succeeds."""
    actions = []
    with opened(suite, reward="success") as env:
        env.reset([0], [spec_of(suite, seed)])
        expert = Expert(suite, env.model(0))
        for _ in range(HORIZON):
            actions.append(torch.from_numpy(expert.act(env.state([0])[0].numpy())).float())
            if env.step([0], actions[-1][None, None]).success.any():
                return torch.stack(actions)[None]
    raise AssertionError("the expert did not succeed")


def controls(action: Array) -> Array:
    """What gym-aloha sends to the 16 actuators."""
    arms = []
    for arm in np.float64(action).reshape(2, 7):
        finger = arm[6] * (FINGER_OPEN - FINGER_CLOSED) + FINGER_CLOSED
        arms.append([*arm[:6], finger, -finger])
    return np.concatenate(arms)


class TestContract(VecEnvContract, SuccessContract, EnvIdContract):
    tasks = (f"{CUBE}/transfer_cube",)

    @property
    def success(self) -> tuple[EpisodeSpec, torch.Tensor]:
        return spec_of(CUBE, 2), expert_actions(CUBE, 2)

    def make(self, num_envs: int) -> VecEnv:
        return aloha_factory(CUBE, (), Setup(width=16, cameras=("top", "left_wrist"), renderer="raster"))(num_envs)


@pytest.mark.parametrize("suite", ALOHA_SUITES)
def test_states_are_those_of_bare_mj_steps_bit_for_bit(suite: str) -> None:
    """400 control steps: the expert's, which grasp, then others. Ours run in chunks of different lengths."""
    grasping = expert_actions(suite, 3)[0]
    rest = draw_wildly(HORIZON - len(grasping))
    actions = np.concatenate([grasping.numpy(), rest])
    task = load_tasks(suite)[0]
    model = task.build_physics()
    data = mujoco.MjData(model)
    data.qpos[:] = task.init_states[3][1 : 1 + model.nq]
    stages = []
    with opened(suite, reward="native") as env:
        env.reset([0], [spec_of(suite, 9)])
        env.step([0], torch.from_numpy(actions[None, :3]))
        env.reset([0], [spec_of(suite, 3)])  # what was before leaves nothing behind
        step = 0
        for length in [1, 2, 7, 30] * 10:
            chunk = actions[step : step + length]
            stages += env.step([0], torch.from_numpy(chunk[None])).reward[0].tolist()
            for action in chunk:
                data.ctrl[:] = controls(action)
                for _ in range(10):
                    mujoco.mj_step(model, data)
            step += length
            np.testing.assert_array_equal(env.data(0).qpos, data.qpos)
            np.testing.assert_array_equal(env.data(0).qvel, data.qvel)
    assert step == HORIZON
    assert {2, 4} <= set(map(int, stages)), "something was grasped and lifted"


def draw_wildly(steps: int) -> Array:
    """Actions float32 [steps, 14] around the home pose, each held for a while."""
    rng = np.random.default_rng(5)
    home = np.array([*HOME[:6], 0.5] * 2)
    drawn = home + rng.uniform(-0.4, 0.4, (steps // 10 + 1, 14))
    return np.repeat(drawn, 10, axis=0)[:steps].astype(np.float32)


class _Task:
    """What gym-aloha's tasks take from dm_control, which does not run on this MuJoCo."""

    def __init__(self, random: object = None) -> None: ...

    def before_step(self, action: Array, physics: Any) -> None:
        physics.data.ctrl[:] = action


class _Physics:
    """A state as gym-aloha's code reads it."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self.data = data
        self.model = SimpleNamespace(id2name=lambda number, kind: model.geom(number).name)


@pytest.fixture
def gym_aloha(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """gym-aloha's own draws and tasks, from the package whose scenes are used."""
    for name in ("dm_control", "dm_control.suite", "dm_control.suite.base"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    base = sys.modules["dm_control.suite.base"]
    base.Task = _Task  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["dm_control.suite"].base = base  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.syspath_prepend(str(ALOHA.require()))
    sim, utils = import_module("gym_aloha.tasks.sim"), import_module("gym_aloha.utils")
    return SimpleNamespace(
        draws={CUBE: utils.sample_box_pose, INSERTION: lambda seed: np.concatenate(utils.sample_insertion_pose(seed))},
        tasks={CUBE: sim.TransferCubeTask(), INSERTION: sim.InsertionTask()},
        home=sim.START_ARM_POSE,
    )


@pytest.mark.parametrize("suite", ALOHA_SUITES)
def test_initial_states_are_gym_alohas_draws(suite: str, gym_aloha: SimpleNamespace) -> None:
    task = load_tasks(suite)[0]
    for seed in (*range(20), 4095, task.heldout_states[0], task.heldout_states[-1]):
        qpos = np.concatenate([gym_aloha.home, gym_aloha.draws[suite](seed)])
        np.testing.assert_array_equal(task.init_states[seed, 1 : 1 + len(qpos)], qpos)
        assert not task.init_states[seed, 1 + len(qpos) :].any()


@pytest.mark.parametrize(("suite", "needed"), [(CUBE, {0, 1, 2, 4}), (INSERTION, {0, 2, 3, 4})])
def test_rewards_controls_and_proprio_are_gym_alohas_own_in_every_step(
    suite: str, needed: set[int], gym_aloha: SimpleNamespace
) -> None:
    """Its code reads the same states: the expert's, and what wild moves make of them."""
    official, seen = gym_aloha.tasks[suite], set()
    actions = np.concatenate([expert_actions(suite, 1)[0].numpy(), draw_wildly(150)])[:HORIZON]
    proprio = np.zeros(14, np.float32)
    with opened(suite, reward="native") as env:
        env.reset([0], [spec_of(suite, 1)])
        physics = _Physics(env.model(0), env.data(0))
        for step, action in enumerate(actions):
            result = env.step([0], torch.from_numpy(action[None, None]))
            reward = official.get_reward(physics)
            assert float(result.reward) == reward
            assert bool(result.success) == (reward == 4)
            assert not result.terminated[0], "in gym-aloha's own reward later steps pay too"
            assert bool(result.truncated) == (step + 1 == HORIZON)
            sent = env.data(0).ctrl.copy()
            official.before_step(action.astype(np.float64), physics)
            np.testing.assert_array_equal(sent, env.data(0).ctrl)
            env._slots[0].env.proprio(proprio)  # pyright: ignore[reportOptionalMemberAccess]
            np.testing.assert_array_equal(proprio, official.get_qpos(physics).astype(np.float32))
            seen.add(reward)
    assert needed <= seen


@pytest.mark.parametrize("suite", ALOHA_SUITES)
def test_stages_are_gym_alohas_for_every_set_of_contacts(suite: str, gym_aloha: SimpleNamespace) -> None:
    """Contacts of all pairs of geoms that its rewards name, in both orders, drawn at random."""
    task, rng, seen = load_tasks(suite)[0], np.random.default_rng(2), set()
    model = task.build_physics()
    table = compile_stages(task.stages, model)
    touches = list(dict.fromkeys(touch for stage in task.stages for touch in (*stage.touching, *stage.apart)))
    pairs = [(a, b) for touch in touches for a in touch.geoms for b in touch.others]
    pairs += [(b, a) for a, b in pairs]
    data = mujoco.MjData(model)
    held = np.zeros(len(task.stages), np.bool_)
    mujoco.mj_resetData(model, data)
    data.qpos[:] = task.init_states[0][1 : 1 + model.nq]
    data.qpos[18] = 0.0  # deep in the table, so that there are contacts to rename
    mujoco.mj_forward(model, data)
    assert data.ncon > 0
    for _ in range(300):
        drawn = [pairs[k] for k in rng.choice(len(pairs), data.ncon)]
        for contact, (a, b) in zip(data.contact, drawn, strict=True):
            contact.geom1, contact.geom2 = contact.geom[:] = model.geom(a).id, model.geom(b).id
        judge_stages(data._address, table, held)
        reward = gym_aloha.tasks[suite].get_reward(_Physics(model, data))
        assert held.sum() == reward
        seen.add(reward)
    assert len(seen) >= 4


def test_progress_pays_how_much_the_stage_grew() -> None:
    actions = expert_actions(CUBE, 3)
    with opened(CUBE, reward="native") as env:
        env.reset([0], [spec_of(CUBE, 3)])
        stages = env.step([0], actions).reward[0].numpy()
    with opened(CUBE, reward="progress", gamma=0.5) as env:
        env.reset([0], [spec_of(CUBE, 3)])
        first = env.step([0], actions[:, :100]).reward[0].numpy()
        rest = env.step([0], actions[:, 100:]).reward[0].numpy()
    potential = np.concatenate([[0.0], stages[:-1], [0.0]]) / 4
    grown = np.diff(potential)
    np.testing.assert_allclose(first[:-1], grown[:99], atol=1e-6)
    assert first[-1] == pytest.approx(0.5 * potential[100] - potential[99])  # a decision is discounted once
    np.testing.assert_allclose(rest[:-1], grown[100:-1], atol=1e-6)
    assert rest[-1] == pytest.approx(1.0 - potential[-2])


def test_an_observation_is_lerobots() -> None:
    with opened(CUBE, cameras=("top",), renderer="raster") as env:
        info = env.info
        assert (info.cameras, info.image_shape, info.control_hz) == (("top",), (12, 16), 50.0)
        assert (info.proprio_dim, info.action_dim, info.state_dim) == (14, 14, 21)
        assert info.max_episode_steps == 400
        env.reset([0], [spec_of(CUBE, 0)])
        out = env.new_observation(1)
        env.observe([0], out)
        gripper = (HOME[6] - FINGER_CLOSED) / (FINGER_OPEN - FINGER_CLOSED)
        np.testing.assert_allclose(out.proprio[0], [*HOME[:6], gripper] * 2, rtol=1e-6)
        np.testing.assert_allclose(out.state[0, 14:], env.data(0).qpos[16:], rtol=1e-6)  # pyright: ignore
        assert out.images.float().std() > 10
        env.step([0], torch.zeros(1, 5, 14))
        env.observe([0], out)
        velocity = env.data(0).qvel[[0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14]]
        velocity[[6, 13]] /= FINGER_OPEN - FINGER_CLOSED
        np.testing.assert_allclose(out.state[0, :14], velocity, rtol=1e-5, atol=1e-7)  # pyright: ignore
    assert len(NAMES) == len(set(NAMES)) == 14


def test_the_bounds_are_those_of_the_actuators() -> None:
    model = load_tasks(CUBE)[0].build_physics()
    for arm in range(2):
        np.testing.assert_array_equal(model.actuator_ctrlrange[8 * arm : 8 * arm + 6], ARM_RANGES)
        low, high = model.actuator_ctrlrange[8 * arm + 6]
        assert FINGER_CLOSED < low < high < FINGER_OPEN  # so a gripper's 0 and 1 are past what it can do
    assert (ROBOT.action_low[6], ROBOT.action_high[6]) == (0.0, 1.0)


@pytest.mark.parametrize("camera", ROBOT.cameras)
def test_cameras_are_where_mujoco_has_them(camera: str) -> None:
    task = load_tasks(INSERTION)[0]
    model = task.build_physics()
    env = JointEnv(model, find_joint_robot(task.robot, model), compile_stages(task.stages, model))
    env.reset(task.init_states[0])
    env.run(draw_wildly(30))
    at = camera_index(model, camera)
    position, axes = camera_pose(model, at, env.seen.xpos, env.seen.xmat)
    np.testing.assert_allclose(position, env.data.cam_xpos[at], rtol=0, atol=1e-15)
    np.testing.assert_allclose(axes.ravel(), env.data.cam_xmat[at], rtol=0, atol=2e-15)


@pytest.mark.process
def test_what_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"unknown camera 'tpo'\. Did you mean 'top'"), opened(CUBE, cameras=("tpo",)):
        pass
    with pytest.raises(UserError, match="suite 'aloha_insertion' has no task 'transfer_cube'"):
        load_tasks(INSERTION, "transfer_cube")
    model = load_tasks(CUBE)[0].build_physics()
    with pytest.raises(UserError, match="geom 'peg', which the model lacks"):
        compile_stages((Stage((Touch(("peg",), ("table",)),)),), model)
    with opened(CUBE) as env:
        env.reset([0], [spec_of(CUBE, 0)])
        with pytest.raises(UserError, match="for LIBERO's Panda, and suite 'aloha_transfer_cube' has a pair of"):
            env.single_env(0)
    assert ALOHA.installed() is not None
    monkeypatch.setattr(PinnedWheel, "installed", lambda _: None)
    with pytest.raises(UserError, match="gym-aloha is not installed; run: embodied-rl assets install aloha"):
        load_tasks(CUBE)


def test_steps_do_not_depend_on_threads_or_neighbours() -> None:
    actions = draw(aloha_factory(CUBE, (), Setup(width=16))(1).info, 3, steps=20)
    alone = []
    for row in range(3):
        with opened(CUBE) as env:
            env.reset([0], [spec_of(CUBE, row)])
            env.step([0], actions[row : row + 1])
            alone.append(env.data(0).qpos.copy())
    with opened(CUBE, 3, threads=2) as env:
        env.reset(range(3), [spec_of(CUBE, row, row) for row in range(3)])
        env.step(range(3), actions)
        for row in range(3):
            np.testing.assert_array_equal(env.data(row).qpos, alone[row])


@pytest.mark.parametrize(("suite", "seed"), [(suite, seed) for suite in ALOHA_SUITES for seed in (0, 11)])
def test_the_expert_succeeds_in_time(suite: str, seed: int) -> None:
    assert expert_actions(suite, seed).shape[1] < 300
