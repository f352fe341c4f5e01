"""What MetaWorld's cameras see, drawn from the poses of its bodies."""

from __future__ import annotations

import threading
from pathlib import Path

import mujoco
import numpy as np

from embodied_rl.sim.metaworld.load import make
from embodied_rl.sim.metaworld.world import World
from embodied_rl.sim.render import Choice, RendererChoice, choose, make_renderer
from embodied_rl.types import Array

CAMERAS = ("corner2", "gripperPOV")
"""The view from a corner, moved as is usual and the right way up, and that of the hand."""
_CORNER2_POS = (0.75, 0.075, 0.7)
_HALF_TURN = np.array([0.0, 0.0, 0.0, 1.0])


class Pictures:
    """Draws worlds; a task's scene is made when it is first drawn.

    Args:
        renderer: one that draws meshes.
        ladders: see `make_renderer`.
    """

    def __init__(self, renderer: RendererChoice, ladders: Path | None = None) -> None:
        self._renderer = make_renderer(renderer, (), ladders=ladders)
        self.name = self._renderer.name
        self._scenes: dict[str, int] = {}
        self._lock = threading.Lock()

    def draw(self, world: World, cameras: tuple[str, ...], out: Array) -> None:
        """Draw these cameras into `out`, uint8 [V, H, W, 3]."""
        name = world.task.env_id
        with self._lock:
            if name not in self._scenes:
                self._scenes[name] = self._renderer.add_scene(visual_model(world.env.model_name))
        self._renderer.render(self._scenes[name], *world.poses(), cameras, out)


def choose_renderer(wanted: str, env_id: str) -> Choice:
    """What will draw MetaWorld's scenes, and why; UserError if nothing can. env_id: a task to try it with."""
    return choose(wanted, [visual_model(make(env_id).model_name)], fast=True)


def visual_model(path: str) -> mujoco.MjModel:
    """The model of an MJCF file in which every site is a body of its own, after those that there are.

    Episodes move sites, which MetaWorld shows: goals. A renderer takes poses of bodies only.
    """
    plain = mujoco.MjModel.from_xml_path(path)
    spec = mujoco.MjSpec.from_file(path)
    for number in range(plain.nsite):
        body = spec.worldbody.add_body(name=f"site {number}")
        body.add_geom(
            type=mujoco.mjtGeom(int(plain.site_type[number])),
            size=plain.site_size[number],
            rgba=_colour(plain, number),
            group=int(plain.site_group[number]),
            contype=0,
            conaffinity=0,
        )
    model = spec.compile()
    corner = model.camera(CAMERAS[0]).id
    model.cam_pos[corner] = _CORNER2_POS
    upright = np.empty(4)
    mujoco.mju_mulQuat(upright, model.cam_quat[corner], _HALF_TURN)
    model.cam_quat[corner] = upright
    return model


def _colour(model: mujoco.MjModel, site: int) -> Array:
    """A site's colour, or that of its material."""
    material = model.site_matid[site]
    return model.site_rgba[site] if material < 0 else model.mat_rgba[material]
