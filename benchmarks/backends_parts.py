"""The parts of `bench backends`: `python -m embodied_rl.benchmarks.backends_parts PART FILE [--quick]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec

from embodied_rl.benchmarks.backends_measure import Mode, RandomEpisodes, measure
from embodied_rl.benchmarks.parts import Part, Row, Work, serve
from embodied_rl.config.env import MujocoConfig, SceneConfig, WarpConfig, as_simulator
from embodied_rl.config.suites import STATE_SUITES, SUITES
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.tasks import libero_bundles
from embodied_rl.factory.view import View
from embodied_rl.utils.machine import pick_device

SUITE = "tabletop_object"
LIBERO_SUITE = "libero_spatial"
SIZES = (64, 128)
SECONDS = 1.0
NEEDS: dict[str, tuple[str, ...]] = {
    "warp": ("warp", "mujoco_warp"),
    "warp_deterministic": ("warp", "mujoco_warp"),
    "warp_renderer": ("warp", "mujoco_warp"),
    "libero_warp_renderer": ("warp", "mujoco_warp"),
    "metaworld": ("envpool",),
    "fetch": ("envpool",),
    "playground": ("envpool",),
    "dm_control": ("envpool",),
    "maniskill": ("mani_skill",),
}
"""Modules of the packages that a backend needs, where they are optional."""


def native(quick: bool) -> Iterator[Row]:
    """MuJoCo on the CPU's cores, drawn by what `--env.renderer auto` takes."""
    yield from images(MujocoConfig(), (8,) if quick else (32, 256), quick)


def warp(quick: bool) -> Iterator[Row]:
    """MuJoCo Warp steps and draws all envs in one batch, on a GPU if there is one."""
    yield from images(WarpConfig(renderer="warp"), _many(quick), quick)


def warp_deterministic(quick: bool) -> Iterator[Row]:
    """The same with exact repetition, which costs a GPU much and a CPU nothing."""
    yield from images(WarpConfig(renderer="warp", deterministic=True), _many(quick), quick)


def warp_renderer(quick: bool) -> Iterator[Row]:
    """Physics on the CPU's cores, images of all envs in one batch by MuJoCo Warp."""
    yield from images(MujocoConfig(renderer="warp"), _many(quick), quick)


def libero_warp_renderer(quick: bool) -> Iterator[Row]:
    """A task of LIBERO, stepped on the CPU's cores, its meshes and textures drawn in one batch."""
    counts = (2 if quick else 4,) if pick_device("auto") == "cpu" else (64,) if quick else (128, 512)
    yield from images(MujocoConfig(renderer="warp", physics_version="current"), counts, quick, LIBERO_SUITE)


def _many(quick: bool) -> tuple[int, ...]:
    if pick_device("auto") == "cpu":
        return (4,)
    return (64,) if quick else (256, 1024, 4096)


def images(config: SceneConfig, counts: Sequence[int], quick: bool, suite: str = SUITE) -> Iterator[Row]:
    """A simulator with cameras: the suite's first task for every number of envs and size."""
    tasks, device = load(suite, load(suite, (), config).names[:1], config), pick_device("auto")
    for count in counts:
        for size in SIZES[:1] if quick else SIZES:
            now = replace(config, num_envs=count)
            with open_tasks(tasks, now, View(image_size=size, device=device)) as env:
                episodes = RandomEpisodes(env, list(env.train_states))
                modes: tuple[Mode, ...] = ("physics", "frames", "both") if size == SIZES[0] else ("frames", "both")
                for mode in modes:
                    yield _row(episodes, mode, quick)


def state(suite: str, quick: bool) -> Iterator[Row]:
    """A suite of tasks with a state: its example task, with a state and no pictures."""
    for count in (2,) if quick else (32, 256):
        config = as_simulator(MujocoConfig(num_envs=count), SUITES[suite].simulators[0])
        with open_tasks(load(suite, SUITES[suite].example, config), config) as env:
            yield _row(RandomEpisodes(env, list(env.train_states)), "physics", quick)


def _row(episodes: RandomEpisodes, mode: Mode, quick: bool) -> Row:
    info, speed = episodes.env.info, measure(episodes, mode, 0.1 if quick else SECONDS, 1 if quick else 2)
    return {
        "simulator": info.simulator,
        "renderer": info.renderer if mode != "physics" else None,
        "device": info.device,
        "task": info.suite,
        "num_envs": episodes.env.num_envs,
        "size": info.image_shape[0] if mode != "physics" else None,
        "mode": mode,
    } | asdict(speed)


WORKS: dict[str, Work] = {
    "native": native,
    "warp": warp,
    "warp_deterministic": warp_deterministic,
    "warp_renderer": warp_renderer,
    "libero_warp_renderer": libero_warp_renderer,
} | {suite: partial(state, suite) for suite in STATE_SUITES}
PARTS = tuple(Part(name, 120) for name in WORKS)


def missing(part: str) -> str | None:
    """Why a backend can't be measured here, None if it can."""
    absent = [name for name in NEEDS.get(part, ()) if find_spec(name) is None]
    if part == "warp_deterministic" and not absent and pick_device("auto") == "cpu":
        return "without a GPU it is the same as warp"
    if part == "libero_warp_renderer" and not absent and libero_bundles() is None:
        return "LIBERO's tasks are not installed; run: embodied-rl assets install libero"
    return f"{', '.join(absent)} not installed" if absent else None


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], WORKS))
