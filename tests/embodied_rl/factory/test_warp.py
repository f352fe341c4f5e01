"""`--env warp` and `--env.renderer warp`: what is opened, what is refused, what the stamps say."""

from __future__ import annotations

import dataclasses

import pytest

import embodied_rl as erl
from embodied_rl.config.env import MujocoConfig, SceneConfig, WarpConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.scenes import pick_renderer, scene_envs
from embodied_rl.factory.view import View
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.warp import install
from tests.sim.warp.worlds import needs_warp


@pytest.mark.parametrize(
    ("simulator", "options", "message"),
    [
        (MujocoConfig, {"renderer": "warp", "processes": 1}, "processes"),
        (MujocoConfig, {"randomize_color": 0.1}, "--env.renderer warp"),
        (WarpConfig, {"randomize_camera": 0.1, "renderer": "raycast"}, "--env.renderer warp"),
        (WarpConfig, {"randomize_mass": 1.0}, "a share in"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    simulator: type[SceneConfig], options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(simulator(num_envs=2), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("simulator", [MujocoConfig, WarpConfig])
@pytest.mark.parametrize("what", ["color", "light", "camera"])
def test_pictures_that_nobody_draws_are_not_randomised(simulator: type[SceneConfig], what: str) -> None:
    config = dataclasses.replace(simulator(num_envs=1), renderer="warp", **{f"randomize_{what}": 0.1})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="without cameras there are none"):
        scene_envs(load_suite("tabletop_spatial")[:1], config, View(cameras=0, state=True))


def test_the_scenes_of_warp_are_those_of_the_current_era() -> None:
    assert WarpConfig().physics_version == "current"
    assert MujocoConfig(renderer="warp").physics_version == "auto"


@needs_warp
def test_a_state_needs_the_native_engine() -> None:
    with pytest.raises(UserError, match="no state"):
        scene_envs(load_suite("tabletop_spatial")[:1], WarpConfig(num_envs=1), View(state=True))


def test_worlds_that_warp_cannot_draw_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads would stay."""

    def missing() -> None:
        raise UserError("MuJoCo Warp is not installed")

    closed: list[MujocoVecEnv] = []

    def close(native: MujocoVecEnv) -> None:
        closed.append(native)

    monkeypatch.setattr(install, "require", missing)
    monkeypatch.setattr(MujocoVecEnv, "close", close)
    with pytest.raises(UserError, match="not installed"):
        scene_envs(load_suite("tabletop_spatial")[:1], MujocoConfig(num_envs=1, renderer="warp"), View(image_size=16))
    assert len(closed) == 1


@needs_warp
def test_auto_draws_with_warp_where_warp_simulates() -> None:
    tasks = load_suite("tabletop_spatial")[:1]
    assert pick_renderer(WarpConfig(), tasks).name == "warp"
    assert "not the official ones" in pick_renderer(MujocoConfig(renderer="warp"), tasks).reason
    assert pick_renderer(WarpConfig(renderer="raycast"), tasks).name == "raycast"


@needs_warp
@pytest.mark.parametrize(
    ("options", "simulator", "renderer"),
    [
        ({"renderer": "warp"}, "native-mujoco", "mujoco-warp"),
        ({"simulator": "warp"}, "mujoco-warp", "mujoco-warp"),
        ({"simulator": "warp", "renderer": "raycast"}, "mujoco-warp", "raycast"),
    ],
)
def test_the_stamp_says_what_simulates_and_what_draws(options: dict[str, str], simulator: str, renderer: str) -> None:
    with erl.make_vec_env("tabletop_spatial", 1, image_size=16, device="cpu", **options) as env:  # type: ignore[arg-type]
        assert env.info.simulator.startswith(simulator)
        assert env.info.renderer.startswith(renderer)
