"""Where everything is when an episode starts: drawn from seeds, settled, stored in assets/tabletop.

    python -m embodied_rl.sim.tabletop.make_states     # draws all of them again and rewrites the files

Rows 0..49 are for training, 50..99 held out; the two come from different seeds. `fresh_states` draws as many more as
demonstrations need, from seeds of its own.
"""

from __future__ import annotations

import math
import zlib

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.rng import philox
from embodied_rl.sim.bddl import Problem, Region
from embodied_rl.sim.tabletop.fixtures import BoxRegion
from embodied_rl.sim.tabletop.goals import joint_name, jointed_fixture
from embodied_rl.sim.tabletop.panda import FINGER_HOME, HOME
from embodied_rl.sim.tabletop.scene import (
    TABLE,
    TABLE_HEIGHT,
    build_model,
    fixture_pose,
    fixture_type,
    object_type,
    place_of,
)
from embodied_rl.types import Array

TRAIN_STATES = range(50)
HELDOUT_STATES = range(50, 100)
_TRAIN_SEED, _HELDOUT_SEED, _FRESH_SEED = 20_260, 77_001, 505_000
_GRIPPER_ROOM = 0.035
_FIXTURE_ROOM = 0.008
"""Free space (m) beside another movable thing, so that a finger fits in, and beside a fixture."""
_SETTLE_STEPS = 250
_MAX_DRAWS = 2000


def draw_states(name: str, problem: Problem) -> Array:
    """All initial states of task `name`, float64 [100, 1 + nq + nv]: time, qpos, qvel."""
    seeds = [_TRAIN_SEED] * len(TRAIN_STATES) + [_HELDOUT_SEED] * len(HELDOUT_STATES)
    return _draw(name, problem, seeds)


def fresh_states(name: str, problem: Problem, count: int, seed: int) -> Array:
    """`count` further initial states of task `name`, in none of the stored rows: float64 [count, 1 + nq + nv].

    A small policy that has seen 50 layouts knows them by heart and finds nothing in the 51st, so demonstrations start
    from as many layouts as there are episodes. seed: in [0, 10_000).
    """
    if not 0 <= seed < 10_000:
        raise UserError(f"the seed of fresh initial states must lie in [0, 10000), got {seed}")
    return _draw(name, problem, [_FRESH_SEED + seed] * count)


def _draw(name: str, problem: Problem, seeds: list[int]) -> Array:
    """One settled state a seed; the draw depends on (seed, task, row)."""
    model = build_model(problem, visual=False)
    data = mujoco.MjData(model)
    key = zlib.crc32(name.encode())
    rows = []
    for row, seed in enumerate(seeds):
        _place(model, data, problem, philox(seed, key, row))
        settle(model, data)
        rows.append(np.concatenate([[0.0], data.qpos, np.zeros(model.nv)]))
    return np.array(rows)


def settle(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Let objects come to rest while the arm carries its own weight; then arm and gripper are exactly at home."""
    for _ in range(_SETTLE_STEPS):
        mujoco.mj_step1(model, data)
        data.ctrl[:7] = data.qfrc_bias[:7]
        data.ctrl[7:9] = FINGER_HOME
        mujoco.mj_step2(model, data)
    data.qpos[:9] = (*HOME, *FINGER_HOME)
    data.qvel[:] = 0.0
    data.time = 0.0
    mujoco.mj_forward(model, data)


def _place(model: mujoco.MjModel, data: mujoco.MjData, problem: Problem, rng: np.random.Generator) -> None:
    mujoco.mj_resetData(model, data)
    data.qpos[:9] = (*HOME, *FINGER_HOME)
    for fact in problem.init:
        if fact.predicate in ("open", "turnon"):
            fixture, kind = jointed_fixture(problem, fact.args[0])
            data.joint(joint_name(fixture, kind)).qpos[0] = kind.part_active
    mujoco.mj_forward(model, data)
    taken = [
        (*fixture_pose(problem, name)[:2], fixture_type(problem, name).radius + _FIXTURE_ROOM)
        for name in problem.fixtures
        if name != TABLE
    ]
    for name in problem.objects:
        region = place_of(problem, name)
        if region.target == TABLE:
            base = TABLE_HEIGHT
            x, y, yaw = _free_spot(problem, region, object_type(problem, name).radius, taken, rng)
        else:
            x, y, base, yaw = _spot_on_fixture(data, problem, region, rng)
        kind = object_type(problem, name)
        taken.append((x, y, kind.radius + _GRIPPER_ROOM))
        pose = (x, y, base + kind.bottom, math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
        data.joint(f"{name}_joint0").qpos[:] = pose
    mujoco.mj_forward(model, data)


def _free_spot(
    problem: Problem, region: Region, radius: float, taken: list[tuple[float, float, float]], rng: np.random.Generator
) -> tuple[float, float, float]:
    """A point of the region that keeps clear of `taken`: x, y and radius of what is there already."""
    if not region.ranges:
        raise UserError(f"{problem.name}: region '{region.full_name}' needs (:ranges ...)")
    for _ in range(_MAX_DRAWS):
        x0, y0, x1, y1 = region.ranges[int(rng.integers(len(region.ranges)))]
        x, y, yaw = rng.uniform(x0, x1), rng.uniform(y0, y1), _yaw(region, rng)
        if all(math.hypot(x - a, y - b) > radius + r for a, b, r in taken):
            return x, y, yaw
    raise UserError(f"{problem.name}: region '{region.full_name}' has no room left; make it larger")


def _spot_on_fixture(
    data: mujoco.MjData, problem: Problem, region: Region, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """x, y, height and yaw on the box site of a fixture; ranges are relative to the site's middle."""
    site = data.site(region.full_name)
    own = {r.name: r for r in fixture_type(problem, region.target).regions}
    box: BoxRegion = own[region.name]
    x0, y0, x1, y1 = region.ranges[0] if region.ranges else (0.0, 0.0, 0.0, 0.0)
    x, y = site.xpos[0] + rng.uniform(x0, x1), site.xpos[1] + rng.uniform(y0, y1)
    base = site.xpos[2] - (box.size[2] if box.on_part else 0.0)
    return float(x), float(y), float(base), _yaw(region, rng)


def _yaw(region: Region, rng: np.random.Generator) -> float:
    if not region.yaw:
        return 0.0
    low, high = region.yaw[0]
    return float(rng.uniform(low, high))
