"""MetaWorld's own simulation with images: the contract, and that nothing differs from MetaWorld itself."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.metaworld import load
from embodied_rl.sim.metaworld.pictures import CAMERAS, visual_model
from embodied_rl.sim.metaworld.tasks import INSTRUCTIONS, load_tasks
from embodied_rl.sim.metaworld.vec_env import MetaWorldFactory, MetaWorldVecEnv, Setup
from embodied_rl.sim.metaworld.world import World
from embodied_rl.sim.pinned_wheel import METAWORLD, PinnedWheel
from embodied_rl.sim.render.mesh.renderer import RasterRenderer
from embodied_rl.sim.step_reward import StepReward
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import EnvIdContract, SuccessContract, VecEnvContract, draw, run, same_observations
from tests.sim.metaworld.there import needs_metaworld

pytestmark = needs_metaworld()
REACH, PUSH = "metaworld/reach-v3", "metaworld/push-v3"


_KEPT: dict[str, Path] = {}


@pytest.fixture(scope="module", autouse=True)
def _decimate_meshes_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    _KEPT["ladders"] = tmp_path_factory.mktemp("ladders")


def open_env(*names: str, num_envs: int = 1, **options: object) -> MetaWorldVecEnv:
    setup = replace(Setup(image_size=16, ladders=_KEPT["ladders"]), **options)  # pyright: ignore[reportArgumentType]
    return MetaWorldVecEnv(load_tasks(names), num_envs, setup)


def expert_actions(name: str, spec: EpisodeSpec) -> torch.Tensor:
    """Actions float32 [1, T, 4] with which MetaWorld's own policy succeeds."""
    expert, actions = load.scripted_expert(name), []
    with closing(open_env(name, cameras=0)) as env:
        env.reset([0], [spec])
        for _ in range(200):
            action = np.asarray(expert.get_action(env.full_state(0)), np.float32).clip(-1, 1)
            actions.append(torch.from_numpy(action))
            if env.step([0], actions[-1][None, None]).success.any():
                return torch.stack(actions)[None]
    raise AssertionError("the expert did not succeed")


class TestContract(VecEnvContract, SuccessContract, EnvIdContract):
    tasks = (REACH, PUSH)

    @property
    def success(self) -> tuple[EpisodeSpec, torch.Tensor]:
        spec = EpisodeSpec(0, REACH, 2, 1)
        return spec, expert_actions("reach-v3", spec)

    def make(self, num_envs: int) -> VecEnv:
        return open_env("reach-v3", "push-v3", num_envs=num_envs)


@pytest.mark.parametrize("name", ["reach-v3", "push-v3", "drawer-open-v3", "assembly-v3"])
def test_an_episode_is_metaworlds_own_bit_for_bit(name: str) -> None:
    task = load_tasks([name])[0]
    actions = draw(open_env(name, cameras=0).info, 1, steps=40)
    own = load.make(name)
    own.seed(int(task.init_states[5]))
    state, _ = own.reset()
    with closing(open_env(name, cameras=0, reward="native")) as env:
        env.reset([0], [EpisodeSpec(0, task.name, 3, 0)])  # what was before leaves nothing behind
        env.step([0], actions)
        env.reset([0], [EpisodeSpec(0, task.name, 5, 0)])
        np.testing.assert_array_equal(env.full_state(0), state)
        for k in range(40):
            state, reward, _, _, info = own.step(actions[0, k].numpy())
            result = env.step([0], actions[:, k : k + 1])
            np.testing.assert_array_equal(env.full_state(0), state)
            assert float(result.reward) == np.float32(reward)
            assert bool(result.success) == bool(info["success"])
        out = env.new_observation(1)
        env.observe([0], out)
        np.testing.assert_array_equal(out.proprio[0].numpy(), state[:4].astype(np.float32))


def test_every_task_has_words_and_a_scripted_policy_and_its_names_are_metaworlds() -> None:
    assert set(INSTRUCTIONS) == set(load.environments())
    assert len(set(INSTRUCTIONS.values())) == len(INSTRUCTIONS) == 50
    assert [bool(load.scripted_expert(name)) for name in INSTRUCTIONS].count(True) == 50


@pytest.mark.parametrize("name", ["push-v3", "door-open-v3"])
def test_pictures_are_of_the_scene_that_mujoco_draws(name: str) -> None:
    """The same model, bodies, cameras and goals: poses in the visual model equal those of the simulation."""
    world = World(load_tasks([name])[0])
    world.reset(11, StepReward("success"))
    world.step(np.ones(4, np.float32))
    model, physics, data = visual_model(world.env.model_name), world.env.model, world.env.data
    assert [model.body(k).name for k in range(physics.nbody)] == [physics.body(k).name for k in range(physics.nbody)]
    xpos, xmat = world.poses()
    assert xpos.shape == (model.nbody, 3)
    goal = physics.site("goal").id
    np.testing.assert_array_equal(xpos[physics.nbody + goal], data.site_xpos[goal])
    geom = int(np.flatnonzero(model.geom_bodyid == physics.nbody + goal)[0])
    np.testing.assert_array_equal(model.geom_rgba[geom], physics.site_rgba[goal])
    plain, images = RasterRenderer(), np.zeros((3, 2, 48, 48, 3), np.uint8)
    plain.render(plain.add_scene(model), xpos, xmat, CAMERAS, images[0])
    # the corner's view is that from where others put it, turned by half a turn
    corner = physics.camera("corner2").id
    physics.cam_pos[corner] = (0.75, 0.075, 0.7)
    plain.render(plain.add_scene(physics), data.xpos, data.xmat, CAMERAS, images[1], (0, 1, 2))
    physics.cam_quat[corner] = model.cam_quat[corner]
    plain.render(plain.add_scene(physics), data.xpos, data.xmat, CAMERAS, images[2], (0, 1, 2))
    np.testing.assert_array_equal(images[0], images[2])
    turned = images[1, 0, ::-1, ::-1].astype(int)
    assert np.abs(images[0, 0] - turned).mean() < 3 < np.abs(images[0, 0] - images[1, 0].astype(int)).mean()


def test_images_words_and_the_number_of_cameras() -> None:
    with closing(open_env("reach-v3", "door-open-v3", num_envs=2, image_size=40, cameras=1)) as env:
        assert (env.info.cameras, env.info.image_shape) == (("corner2",), (40, 40))
        env.reset([0, 1], [EpisodeSpec(0, REACH, 0, 0), EpisodeSpec(1, "metaworld/door-open-v3", 0, 0)])
        _, seen = run(env, [0, 1], draw(env.info, 2))
        assert seen.instruction == ["move the hand to the goal", "open the door"]
        assert seen.images.float().std() > 10
        assert env.frame(1, "gripperPOV", 24).std() > 10
        with pytest.raises(UserError, match="unknown camera 'corner'"):
            env.frame(0, "corner", 24)
    with closing(open_env("reach-v3", cameras=0)) as env:
        assert (env.info.cameras, env.info.renderer, env.info.state_dim) == ((), "none", 39)
    with pytest.raises(UserError, match="up to 2 cameras here, got 3"):
        open_env("reach-v3", cameras=3)
    with pytest.raises(UserError, match=r"no task 'reach-v9'\. Did you mean"):
        load_tasks(["reach-v9"])


def test_initial_states_are_different_and_alone_decide_how_an_episode_begins() -> None:
    with closing(open_env("push-v3", num_envs=2, cameras=0)) as env:
        env.reset([0, 1], [EpisodeSpec(0, PUSH, 4100, 1), EpisodeSpec(1, PUSH, 4100, 2)])
        np.testing.assert_array_equal(env.full_state(0), env.full_state(1))
        env.reset([1], [EpisodeSpec(1, PUSH, 4101, 2)])
        assert (env.full_state(0)[36:] != env.full_state(1)[36:]).any()
        assert (env.full_state(0)[4:7] != env.full_state(1)[4:7]).any()


def test_a_simulation_that_breaks_fails_its_episode_and_no_other() -> None:
    with closing(open_env("push-v3", num_envs=2)) as env:
        env.reset([0, 1], [EpisodeSpec(0, PUSH, 0, 0), EpisodeSpec(1, PUSH, 1, 0)])
        before = env.full_state(0).copy()
        world = env._worlds[0]
        assert world is not None
        world.env.data.qvel[:] = 1e12
        result = env.step([0, 1], draw(env.info, 2))
        assert result.failed.tolist() == [True, False]
        np.testing.assert_array_equal(env.full_state(0), before)
        env.reset([0], [EpisodeSpec(2, PUSH, 2, 0)])
        assert not env.step([0], draw(env.info, 1)).failed.any()


@pytest.mark.process
def test_watched_processes_show_the_same(tmp_path: Path) -> None:
    setup = Setup(image_size=24, ladders=tmp_path)
    factory, spec = MetaWorldFactory(tuple(load_tasks(["push-v3"])), setup), EpisodeSpec(0, PUSH, 7, 0)
    seen = []
    for env in (factory(1), ProcessVecEnv(factory, 1, processes=1)):
        with closing(env):
            env.reset([0], [spec])
            seen.append(run(env, [0], draw(env.info, 1))[1])
    same_observations(*seen)


def test_without_the_package_one_line_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert METAWORLD.installed() is not None or load.load_metaworld()
    monkeypatch.setattr(load.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(PinnedWheel, "installed", lambda _: None)
    with pytest.raises(UserError, match="MetaWorld is not installed; run: embodied-rl assets install metaworld"):
        load.load_metaworld.__wrapped__()
