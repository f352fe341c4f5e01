"""Drawing for `bench gpu`: the CPU ray caster and EGL, by threads, and MuJoCo Warp's renderer, by envs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from embodied_rl.benchmarks.draw import Scenes, measure
from embodied_rl.sim.render import make_renderer, probe
from embodied_rl.sim.render.choose import RendererName
from embodied_rl.utils.machine import cpu_count

SIZES = (64, 128)
SECONDS = 1.0


def render(quick: bool) -> Iterator[dict[str, Any]]:
    """Observations (two cameras) a second; at_once: threads, or envs that are drawn together."""
    scenes = Scenes()
    names: tuple[RendererName, ...] = ("raycast", "egl") if probe("egl").state != "missing" else ("raycast",)
    for name in names:
        renderer = make_renderer(name, ())
        for size in SIZES[:1] if quick else SIZES:
            for threads in sorted({1, cpu_count()}):
                row = measure(scenes, renderer, size, threads, 0.05 if quick else SECONDS)
                yield {"renderer": name, "size": size, "at_once": threads, "per_s": row.per_s, "cpu_ms": row.cpu_ms}
