"""Which renderer draws: probes of this machine's GL, and the choice with its reason.

Order of `auto`: for scenes of primitives only, the CPU ray caster; else EGL on a GPU; else, for fast frames, the CPU
rasteriser; else OSMesa; else software EGL.
The ray caster stands first on purpose: a run then has the same pictures on a laptop and on a GPU server, it needs no
library beyond pip's, and it is faster than software GL and, with many cores, than a GPU where pictures are small
(`embodied-rl bench draw`; docs/benchmarks.md has its figures); all draw such scenes alike, which tests/sim/render
compares. The CPU rasteriser draws scenes with meshes many times faster than software GL; its frames are close to
MuJoCo's, not equal, so it never draws exact ones. OSMesa comes before software EGL because both run one rasteriser and
OSMesa needs no EGL driver. A renderer that is asked for by name is used, or refused with the reason, never replaced.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import mujoco

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.render.mesh import pack as mesh
from embodied_rl.sim.render.scene import unsupported

RendererName = Literal["egl", "osmesa", "raycast", "raster"]
RendererChoice = Literal["auto", "egl", "osmesa", "raycast", "raster"]
CHOICES = ("auto", "egl", "osmesa", "raycast", "raster")
PACKAGES = {"egl": "libegl1 libgl1-mesa-dri", "osmesa": "libosmesa6"}
"""Debian packages that provide a software driver of each kind; hardware EGL comes with the GPU's driver and libegl1."""
_PROBE_SECONDS = 60
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "software", "swr ")
# Each is written to stdout as one line, so that warnings of a driver cannot be mistaken for it.
_PROBE = """
from mujoco.rendering.classic.gl_context import GLContext
context = GLContext(16, 16)
context.make_current()
from OpenGL import GL
print("GL_RENDERER=" + GL.glGetString(GL.GL_RENDERER).decode(), flush=True)
print("GL_VERSION=" + GL.glGetString(GL.GL_VERSION).decode(), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """The renderer that was chosen and why, in words for a person; 'warp' draws batches, see embodied_rl.sim.warp."""

    name: RendererName | Literal["warp"]
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """State of a GL library here; device: GL_RENDERER, or the last line of the error; version: GL_VERSION."""

    state: Literal["hardware", "software", "missing"]
    device: str
    version: str = ""


@cache
def probe(backend: Literal["egl", "osmesa"]) -> Probe:
    """Open a GL context in a subprocess (a broken driver may crash there, not here); once a process, about 0.5 s."""
    environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probe("missing", f"the driver did not answer within {_PROBE_SECONDS} s")
    said = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("GL_"))
    if "GL_RENDERER" in said:
        device = said["GL_RENDERER"]
        software = backend == "osmesa" or any(word in device.lower() for word in _SOFTWARE)
        return Probe("software" if software else "hardware", device, said.get("GL_VERSION", ""))
    return Probe("missing", _explain(done.stderr, done.returncode))


def _explain(errors: str, status: int) -> str:
    """Why a probe failed, in a line. PyOpenGL reports a library that it cannot find as a missing attribute of None."""
    lines = errors.strip().splitlines()
    if not lines:
        return f"the driver crashed (exit status {status})"
    return "library not found" if "'NoneType' object has no attribute" in lines[-1] else lines[-1].strip()


def choose(choice: str, models: Iterable[mujoco.MjModel], *, fast: bool = False) -> Choice:
    """Resolve `choice` (one of CHOICES) for these scenes; UserError when it, or for 'auto' nothing, can draw them.

    No more of `models` are looked at than it takes to see that the ray caster cannot draw them. fast: frames without
    shadows and reflections will do, and need not equal MuJoCo's.
    """
    if choice not in CHOICES:
        raise UserError(f"unknown renderer '{choice}'.{suggest(choice, CHOICES)}")
    if choice == "raster" and not fast:
        raise UserError(
            "the renderer 'raster' draws fast frames only, and exact ones are wanted here: "
            "add --env.render-quality fast, or choose the renderer 'osmesa' or 'egl'"
        )
    hard = next((model for model in models if unsupported(model)), None)
    problem = unsupported(hard) if hard is not None else None
    if choice == "raster":
        if hard is not None and (why := mesh.unsupported(hard)):
            raise UserError(mesh.refusal(why))
        return Choice("raster", "asked for")
    if choice == "raycast":
        if problem:
            raise UserError(f"the ray caster cannot draw this scene: {problem}; choose the renderer 'egl' or 'osmesa'")
        return Choice("raycast", "asked for")
    if choice != "auto":
        found = probe(choice)
        if found.state == "missing":
            raise UserError(
                f"renderer '{choice}' does not work here ({found.device}); "
                f"install it (Debian: apt-get install {PACKAGES[choice]}) or choose another renderer"
            )
        return Choice(choice, f"asked for; {found.state}, {found.device}")
    return _choose_best(problem, fast and hard is not None and mesh.unsupported(hard) is None)


def _choose_best(problem: str | None, raster: bool) -> Choice:
    """problem: what the ray caster cannot draw, or None; raster: the rasteriser can, and may."""
    if problem is None:
        return Choice("raycast", "the scenes are primitives, which the CPU ray caster draws alike on every machine")
    egl = probe("egl")
    if egl.state == "hardware":
        return Choice("egl", f"EGL on a GPU ({egl.device})")
    if raster:
        return Choice("raster", f"fast frames without a GPU, and the ray caster cannot draw: {problem}")
    osmesa = probe("osmesa")
    if osmesa.state != "missing":
        return Choice("osmesa", f"no GPU for EGL, and the ray caster cannot draw: {problem}")
    if egl.state == "software":
        return Choice(
            "egl", f"software EGL ({egl.device}): no GPU, no OSMesa, and the ray caster cannot draw: {problem}"
        )
    raise UserError(
        f"no renderer can draw this scene ({problem}, so the ray caster cannot): "
        f"install OSMesa (Debian: apt-get install {PACKAGES['osmesa']})"
    )
