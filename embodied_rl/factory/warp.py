"""Opens worlds that MuJoCo Warp simulates, draws, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embodied_rl.config.env import SceneConfig, WarpConfig
from embodied_rl.errors import UserError
from embodied_rl.utils.console import tell_once

if TYPE_CHECKING:
    from embodied_rl.sim.mujoco.task import MujocoTask
    from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
    from embodied_rl.sim.render import Choice
    from embodied_rl.sim.warp.randomize import Randomization
    from embodied_rl.vec_env import VecEnv


@dataclass(frozen=True, slots=True)
class WarpRequest:
    """What `factory.scenes` was asked for; exact: with shadows, and antialiased."""

    config: WarpConfig
    image_size: int
    cameras: int
    stop_at_success: bool
    device: str
    exact: bool


def choose_warp(wanted: str) -> Choice:
    """The renderer 'warp'; UserError where MuJoCo Warp is missing."""
    from embodied_rl.sim.render import Choice
    from embodied_rl.sim.warp import install

    install.require()
    why = "asked for" if wanted == "warp" else "the simulator's own"
    return Choice("warp", f"{why}; MuJoCo Warp's ray tracer, whose pictures are not the official ones")


def open_warp(tasks: Sequence[MujocoTask], asked: WarpRequest, *, state: bool) -> VecEnv:
    """Worlds that MuJoCo Warp simulates; UserError where it is missing or lacks what is asked for."""
    _prepare()
    from embodied_rl.sim.render import make_renderer
    from embodied_rl.sim.warp.vec_env import WarpVecEnv

    config = asked.config
    if state:
        raise UserError("with the simulator warp observations have no state: choose simulator mujoco.")
    if not asked.cameras:
        renderer = None
    elif config.renderer in ("auto", "warp"):
        renderer = "warp"
    else:
        renderer = make_renderer(config.renderer, (), images=asked.exact)
    return WarpVecEnv(
        tasks,
        config.num_envs,
        device=asked.device,
        image_size=asked.image_size,
        cameras=asked.cameras,
        renderer=renderer,
        exact=asked.exact,
        stop_at_success=asked.stop_at_success,
        randomize=randomization(config),
        deterministic=config.deterministic,
    )


def drawn_by_warp(physics: MujocoVecEnv, cameras: int, device: str, config: SceneConfig, *, exact: bool) -> VecEnv:
    """`physics`, opened with cameras=0, with images by MuJoCo Warp; closed where it can't be drawn."""
    try:
        _prepare()
        from embodied_rl.sim.warp.drawn_env import WarpDrawnEnv

        return WarpDrawnEnv(physics, cameras=cameras, device=device, exact=exact, randomize=randomization(config))
    except BaseException:
        physics.close()
        raise


def randomization(config: SceneConfig) -> Randomization:
    """How worlds differ by episode; UserError for shares that are none."""
    from embodied_rl.sim.warp.randomize import Randomization

    by_warp = isinstance(config, WarpConfig)
    return Randomization(
        color=config.randomize_color,
        light=config.randomize_light,
        camera=config.randomize_camera,
        friction=config.randomize_friction if by_warp else 0.0,
        mass=config.randomize_mass if by_warp else 0.0,
    )


def _prepare() -> None:
    from embodied_rl.sim.warp import install

    install.require()
    if not install.is_compiled():
        tell_once("Compiling MuJoCo Warp's kernels, once for this machine: a few minutes.")
