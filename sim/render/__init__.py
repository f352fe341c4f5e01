"""Renderers behind one interface: GL (EGL, OSMesa), a CPU ray caster for primitives, a CPU rasteriser for meshes.

A frame is drawn from body poses alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import mujoco

from embodied_rl.sim.render.choose import CHOICES, PACKAGES, Choice, Probe, RendererChoice, choose, probe
from embodied_rl.sim.render.mesh.renderer import RasterRenderer
from embodied_rl.sim.render.raycast import RaycastRenderer
from embodied_rl.types import Array

__all__ = ["CHOICES", "PACKAGES", "Choice", "Probe", "Renderer", "RendererChoice", "choose", "make_renderer", "probe"]

_IMAGE_SAMPLES = 2


class Renderer(Protocol):
    """Draws cameras of visual models. Safe from several threads; what is drawn does not depend on the thread.

    Geom groups 0 to 2 are drawn, as mujoco.Renderer does; sites, which are markers, only where `render` is told.
    """

    name: str

    def add_scene(self, visual_model: mujoco.MjModel) -> int:
        """Prepare a model; its number is the `scene` of `render`. UserError for what this renderer cannot draw."""
        ...

    def remove_scene(self, scene: int) -> None:
        """Forget a model; its number is not used again."""
        ...

    def render(
        self,
        scene: int,
        xpos: Array,
        xmat: Array,
        cameras: tuple[str, ...],
        out: Array,
        site_groups: tuple[int, ...] = (),
    ) -> None:
        """Draw `cameras` into out, uint8 [V, H, W, 3] RGB, row 0 at the top.

        xpos: float64 [nbody, 3], metres; xmat: float64 [nbody, 9], row-major rotations: the bodies' world poses, as in
        MjData. The physics model and the visual model must number their bodies alike. site_groups: of the sites to
        draw; UserError where the renderer cannot.
        """
        ...


def make_renderer(
    choice: RendererChoice, models: Sequence[mujoco.MjModel], *, images: bool = False, ladders: Path | None = None
) -> Renderer:
    """Return the renderer for these scenes (see `choose`).

    pictures: for people, not for a policy: antialiased, and with GL also shadows and reflections; several times slower.
    ladders: folder where the rasteriser keeps decimated meshes; None: in memory only.
    """
    name = choose(choice, models, fast=not images).name
    assert name != "warp", "sim.warp draws by itself"
    if name == "raycast":
        return RaycastRenderer(samples=_IMAGE_SAMPLES if images else 1)
    if name == "raster":
        return RasterRenderer(ladders=ladders)
    # importing GL fixes MUJOCO_GL for the process
    if name == "egl" and probe("egl").state == "hardware":
        from embodied_rl.sim.render.gl_shared import SharedGlRenderer

        return SharedGlRenderer(name, images=images)
    from embodied_rl.sim.render.gl import GlRenderer

    return GlRenderer(name, images=images)
