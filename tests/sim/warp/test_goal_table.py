"""Goals judged in torch against the CPU engine's compiled rules."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_predicates
from embodied_rl.sim.mujoco.task import In, JointRange, On, OnSite, Predicate, Stack, Up
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.warp.goal import GoalTable, Poses


def poses_of(env: Env) -> Poses:
    """What MuJoCo has now, as one world."""
    data, contact = env.data, env.data.contact

    def one(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.copy())[None]

    geoms = torch.from_numpy(np.concatenate([contact.geom, [[0, 1]] * 3]).astype(np.int32))  # three rows too many
    return Poses(
        one(data.qpos),
        one(data.xpos),
        one(data.site_xpos),
        one(data.site_xmat),
        geoms,
        torch.zeros(len(geoms), dtype=torch.int32),
        torch.tensor([data.ncon], dtype=torch.int32),
    )


@pytest.fixture(scope="module")
def goals() -> tuple[mujoco.MjModel, list[tuple[Predicate, ...]]]:
    """A model with a drawer and goals of every kind of predicate, of different lengths."""
    task = next(t for t in load_suite("tabletop_long") if "bowl_in_the_drawer" in t.name)
    model = task.build_physics()
    names = [model.body(i).name for i in range(model.nbody)]
    objects = [name for name in names if name.endswith("_main")]
    inside = next(p for p in task.goal if isinstance(p, In))
    joint = next(p for p in task.goal if isinstance(p, JointRange)).joints[0]
    geoms = {
        name: tuple(g.name for g in map(model.geom, range(model.ngeom)) if g.name and names[g.bodyid[0]] == name)
        for name in names
    }
    one, two = inside.body, next(name for name in objects if name != inside.body and geoms[name])
    others = tuple(g for name in names if name != one for g in geoms[name])
    site = inside.site
    return model, [
        (inside, JointRange((joint,), 0.05, above=True, need_all=False)),
        (On(one, two, geoms[one], geoms[two]),),
        (OnSite(one, site, geoms[one], others), JointRange((joint,), 0.08, above=False, need_all=True)),
        (Up(one),),
        (Stack(one, two, geoms[one], geoms[two], (0.1, 0.1, 0.2)), OnSite(one, site)),
        (JointRange((joint, "robot0_joint1"), 0.0, above=True, need_all=True, inclusive=True),),
        (JointRange(("robot0_joint1", "robot0_joint3"), 0.0, above=True, need_all=False, inclusive=True),),
    ]


def scattered(model: mujoco.MjModel, draws: np.random.Generator, goal: tuple[Predicate, ...]) -> np.ndarray:
    """A state in which a goal's object is near the edge of where its predicates turn true."""
    qpos = model.qpos0.copy()
    for j in range(model.njnt):
        at = model.jnt_qposadr[j]
        if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_SLIDE:
            qpos[at] = draws.uniform(*model.jnt_range[j])
        elif model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE:
            qpos[at] = draws.choice([0.0, draws.normal(0, 0.3)])
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    for predicate in goal:
        if isinstance(predicate, JointRange):
            continue
        at = model.jnt_qposadr[model.body(predicate.body).jntadr[0]]
        if isinstance(predicate, Up):
            target = np.array([0, 0, 1.0])
        elif isinstance(predicate, On | Stack):
            target = data.body(predicate.other).xpos
        else:
            site = model.site(predicate.site).id
            target = data.site_xpos[site] + [
                0,
                0,
                0.03 + model.site_size[site, 2] if isinstance(predicate, OnSite) else 0,
            ]
        qpos[at : at + 3] = target + draws.normal(0, 0.04, 3) * [1, 1, 0.7]
    return qpos


def test_every_predicate_as_the_native_engine(goals: tuple[mujoco.MjModel, list[tuple[Predicate, ...]]]) -> None:
    model, wanted = goals
    robot, draws = find_robot(model), np.random.default_rng(0)
    compiled = [compile_predicates(goal, model) for goal in wanted]
    table = GoalTable(compiled, "cpu")
    seen: list[list[tuple[bool, ...]]] = [[] for _ in wanted]
    for number, (goal, flat) in enumerate(zip(wanted, compiled, strict=True)):
        env = Env(model, robot, flat, "fast")
        for _ in range(250):
            env.set_state(np.concatenate([[0.0], scattered(model, draws, goal), np.zeros(model.nv)]))
            mujoco.mj_forward(model, env.data)
            expected = env.judge()
            ours = table.judge(poses_of(env), torch.tensor([number]))[0]
            assert ours[: len(goal)].tolist() == expected.tolist(), (goal, env.data.qpos)
            assert ours[len(goal) :].all()
            seen[number].append(tuple(expected.tolist()))
    for number, goal in enumerate(wanted):
        for g, predicate in enumerate(goal):
            values = {held[g] for held in seen[number]}
            assert values == {True, False}, predicate  # the states tried both sides


def test_contacts_of_other_worlds_and_spare_rows_do_not_count() -> None:
    task = load_suite("tabletop_spatial")[0]
    model = task.build_physics()
    on = task.goal[0]
    assert isinstance(on, On)
    table = GoalTable([compile_predicates(task.goal, model)], "cpu")
    body, other = model.body(on.body).id, model.body(on.other).id
    xpos = torch.zeros(2, model.nbody, 3)
    xpos[:, body, 2] = 0.1
    xpos[:, other, 2] = 0.05
    touch = [model.geom(on.body_geoms[0]).id, model.geom(on.other_geoms[0]).id]
    geoms = torch.tensor([[0, 1], touch, touch[::-1]], dtype=torch.int32)

    def held(world: list[int], count: int) -> list[bool]:
        sites = torch.zeros(2, model.nsite, 3), torch.zeros(2, model.nsite, 9)
        poses = Poses(torch.zeros(2, model.nq), xpos, *sites, geoms, torch.tensor(world), torch.tensor([count]))
        return table.judge(poses, torch.tensor([0, 0]))[:, 0].tolist()

    assert held([0, 1, 0], 1) == [False, False]
    assert held([0, 1, 0], 2) == [False, True]
    assert held([0, 1, 0], 3) == [True, True]
    assert held([0, 5, 0], 2) == [False, False]  # a world beyond those that are judged
