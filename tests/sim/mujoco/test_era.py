"""Boxes that collide as in MuJoCo 3.3.2 and 2.3.7, beside models that don't, in one process."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.config.env import MujocoConfig
from embodied_rl.errors import UserError
from embodied_rl.sim.eras import CURRENT, Era, EraChoice, choose_era
from embodied_rl.sim.mujoco import era
from embodied_rl.sim.mujoco.era_collider import MUJOCO_3_3_2, MUJOCO_4_0, NewLayout, OldLayout
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import Array, EpisodeSpec
from tests import era_library

OLD: tuple[Era, ...] = ("mujoco-3.3", "mujoco-2.3.7")
_SHARED = Path(os.environ.get("EMBODIED_RL_SHARED", Path(__file__).resolve().parents[3].parent / "shared"))
_SETTLED = json.loads(Path(__file__).with_name("era_settled.json").read_text())


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache that holds the old library."""
    if reason := era_library.missing():
        pytest.skip(reason)
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(era_library.CACHE))
    return era.library_path()


@pytest.fixture
def unhooked(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """MuJoCo's table as it is before anything is marked; put back afterwards as it was found."""
    era.install()
    table, entry = era._table()
    before = table[entry]
    table[entry] = era._in_use[0]
    monkeypatch.setattr(era, "_in_use", [])
    yield library
    table[entry] = before


def test_old_contacts_are_those_that_the_old_versions_find(library: Path) -> None:
    era.install()
    current = era.probe_contacts(CURRENT)
    for name in OLD:
        found = era.probe_contacts(name)
        for probe, rows, now in zip(era.probes(), found, current, strict=True):
            assert rows.shape == probe.contacts[name].shape
            np.testing.assert_allclose(rows, probe.contacts[name], rtol=0, atol=1e-9)
            assert not np.array_equal(rows, now), "the running version finds the same: the probe says nothing"


def test_the_two_old_eras_differ(library: Path) -> None:
    era.install()
    pairs = zip(era.probe_contacts("mujoco-3.3"), era.probe_contacts("mujoco-2.3.7"), strict=True)
    assert sum(a.shape != b.shape for a, b in pairs) >= 3


def _dropped(name: str, chosen: Era) -> dict[str, Array]:
    """Where a golden scene's objects are 0.2 s after they were lifted by 15 mm and set spinning."""
    path = _SHARED / "golden" / "given" / name
    model = era.mark(mujoco.MjModel.from_xml_path(f"{path}.xml"), chosen)
    data = mujoco.MjData(model)
    with np.load(f"{path}.npz", allow_pickle=False) as arrays:
        state = arrays["ep0_init_state"]
    data.time, data.qpos[:], data.qvel[:] = state[0], state[1 : 1 + model.nq], state[1 + model.nq :]
    for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
        data.qpos[model.jnt_qposadr[joint] + 2] += 0.015
        first = model.jnt_dofadr[joint] + 3
        data.qvel[first : first + 3] = 2.0, 1.0, 0.5
    arm = [int(model.joint(f"robot0_joint{i}").dofadr[0]) for i in range(1, 8)]
    motors = [model.actuator(f"robot0_torq_j{i}").id for i in range(1, 8)]
    for _ in range(100):
        mujoco.mj_step1(model, data)
        data.ctrl[motors] = data.qfrc_bias[arm]
        mujoco.mj_step2(model, data)
    return {model.body(i).name: data.xpos[i].copy() for i in range(model.nbody)}


@pytest.mark.parametrize("name", _SETTLED)
def test_objects_of_official_scenes_come_to_lie_as_on_the_old_versions(library: Path, name: str) -> None:
    """era_settled.json was recorded with mujoco 3.3.2 and 2.3.7."""
    if not (_SHARED / "golden").is_dir():
        pytest.skip(f"no golden scenes in {_SHARED}; set EMBODIED_RL_SHARED")

    def worst(chosen: Era, recorded: str) -> float:
        found = _dropped(name, chosen)
        return 1e3 * max(float(np.linalg.norm(found[body] - pos)) for body, pos in _SETTLED[name][recorded].items())

    for chosen in OLD:
        assert worst(chosen, chosen) < 0.05
    assert worst(CURRENT, "mujoco-3.3") > 0.5


def _published(task: MujocoTask) -> MujocoTask:
    return replace(
        task,
        name=f"{task.name}_old",
        era="mujoco-3.3",
        build_physics=lambda: era.mark(task.build_physics(), "mujoco-3.3"),
    )


def _run(tasks: list[MujocoTask], threads: int) -> list[Array]:
    """Final states of an episode of each task, all at once."""
    env = MujocoVecEnv(tasks, len(tasks), threads=threads)
    ids = list(range(len(tasks)))
    env.reset(ids, [EpisodeSpec(i, task.name, 0, 0) for i, task in enumerate(tasks)])
    actions = np.random.default_rng(0).uniform(-1, 1, (1, 30, 7)).astype(np.float32)
    env.step(ids, torch.from_numpy(np.repeat(actions, len(tasks), 0)))
    found = [np.concatenate([env.data(i).qpos, env.data(i).qvel]) for i in ids]
    env.close()
    return found


def test_other_models_of_the_process_keep_every_bit(unhooked: Path) -> None:
    plain = [
        task for task in load_suite("tabletop_spatial") if "_ramekin_and_" in task.name or "_on_the_red_" in task.name
    ]
    before = _run(plain, threads=1)
    mixed = [task for pair in zip(plain, map(_published, plain), strict=True) for task in pair]
    together = _run(mixed, threads=4)
    assert era._in_use, "nothing was marked"
    for a, b in zip(before, together[::2], strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(before, together[1::2], strict=True)), "the mark does nothing"
    for a, b in zip(_run(mixed, threads=1), together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_mark_goes_with_copies_and_can_be_taken_away(library: Path) -> None:
    model = era.mark(load_suite("tabletop_object")[0].build_physics(), "mujoco-2.3.7")
    flags = model.opt.disableflags
    assert era.era_of(copy.copy(model)) == era.era_of(model) == "mujoco-2.3.7"
    assert era.era_of(era.mark(model, CURRENT)) == CURRENT
    assert model.opt.disableflags != flags


@pytest.mark.process
def test_a_marked_model_that_another_process_made_works(library: Path, tmp_path: Path) -> None:
    """A pickled model keeps its mark; the first env of the new process puts the collider in place."""
    code = """
import pickle, sys
from embodied_rl.sim.mujoco import era
from embodied_rl.sim.mujoco.env import Env, find_robot
model = pickle.load(open(sys.argv[1], "rb"))
assert era.era_of(model) == "mujoco-3.3" and not era._in_use
Env(model, find_robot(model), None, "fast")
assert era._in_use
"""
    file = tmp_path / "model.pickle"
    file.write_bytes(pickle.dumps(era.mark(load_suite("tabletop_object")[0].build_physics(), "mujoco-3.3")))
    subprocess.run([sys.executable, "-c", code, str(file)], check=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OldLayout(MUJOCO_3_3_2.geom_size + 8, MUJOCO_3_3_2.geom_xpos, MUJOCO_3_3_2.contact), MUJOCO_4_0),
        (OldLayout(MUJOCO_3_3_2.geom_size, MUJOCO_3_3_2.geom_xpos - 8, MUJOCO_3_3_2.contact), MUJOCO_4_0),
        (OldLayout(MUJOCO_3_3_2.geom_size, MUJOCO_3_3_2.geom_xpos + 8, MUJOCO_3_3_2.contact), MUJOCO_4_0),
        (OldLayout(MUJOCO_3_3_2.geom_size, MUJOCO_3_3_2.geom_xpos, MUJOCO_3_3_2.contact - 8), MUJOCO_4_0),
        (MUJOCO_3_3_2, MUJOCO_4_0._replace(geom_size=MUJOCO_4_0.geom_size + 8)),
        (MUJOCO_3_3_2, MUJOCO_4_0._replace(geom_xpos=MUJOCO_4_0.geom_xpos - 8)),
        (MUJOCO_3_3_2, MUJOCO_4_0._replace(geom_xmat=MUJOCO_4_0.geom_xmat + 8)),
        (MUJOCO_3_3_2, MUJOCO_4_0._replace(disableflags=MUJOCO_4_0.disableflags + 4)),
    ],
)
def test_a_wrong_offset_is_refused_and_leaves_the_table_alone(unhooked: Path, old: OldLayout, new: NewLayout) -> None:
    table, entry = era._table()
    before = table[entry]
    with pytest.raises(UserError, match=r"--env\.physics-version current"):
        era._put_in_place(unhooked, old, new)
    assert table[entry] == before


def test_contacts_that_differ_once_in_place_are_refused(unhooked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a MuJoCo would whose caller reads the contacts otherwise."""
    monkeypatch.setattr(era, "_agree", lambda found, name: name == "mujoco-3.3")
    table, entry = era._table()
    before = table[entry]
    with pytest.raises(UserError, match="recorded contacts"):
        era.install()
    assert table[entry] == before
    assert not era._in_use


def test_a_missing_or_another_library_is_refused(
    tmp_path: Path, unhooked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    model = load_suite("tabletop_object")[0].build_physics()
    with pytest.raises(UserError, match="embodied-rl assets install era"):
        era.mark(model, "mujoco-3.3")
    assert era.era_of(model) == CURRENT
    (tmp_path / "era").mkdir()
    (tmp_path / "era" / era.LIBRARY).write_bytes(unhooked.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"not the library of MuJoCo 3\.3\.2's official wheel"):
        era.mark(model, "mujoco-3.3")


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")])
def test_other_platforms_are_refused_in_a_line(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(UserError, match=r"use --env\.physics-version current"):
        era.require()


def test_the_names_of_eras() -> None:
    assert choose_era("auto", "libero_goal", official=True) == choose_era("published", "libero_goal", official=True)
    assert choose_era("published", "libero_goal", official=True) == "mujoco-3.3"
    assert choose_era("auto", "tabletop_goal", official=False) == choose_era("current", "tabletop_goal", official=False)
    for wanted in ("published", "mujoco-3.3", "mujoco-2.3.7"):
        with pytest.raises(UserError, match="tabletop_goal was made for this MuJoCo"):
            choose_era(wanted, "tabletop_goal", official=False)
    with pytest.raises(UserError, match=r"unknown era 'mujoco-3.2'.*mujoco-3.3"):
        choose_era("mujoco-3.2", "libero_goal", official=True)
    assert get_type_hints(MujocoConfig)["physics_version"] == EraChoice
