"""Exported tasks: what is written comes back to the bit, and whatever is not whole is refused with one line."""

from __future__ import annotations

import json
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import (
    BlobStore,
    blobs_of,
    exported_path,
    installed,
    is_whole,
    pack_array,
    pack_model,
    read_exported,
    unpack_array,
    unpack_model,
    write_exported,
)
from embodied_rl.sim.libero.tasks import Indicator, load_suite, load_task, suites, tasks, tasks_fingerprint
from embodied_rl.sim.mujoco.task import JointRange
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.types import EpisodeSpec
from tests.sim.libero.exported_tasks import (
    KNOB,
    NAME,
    OTHER,
    SITE,
    START_ROW,
    binary,
    contents,
    install_fake,
    model_task,
    saved,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    install_fake(tmp_path)
    return tmp_path


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_any_cut_of_any_bytes_joins_again(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[int]
) -> None:
    store = BlobStore(tmp_path_factory.getbasetemp() / "cuts")
    pieces = pack_model(store, data, [cut for cut in cuts if cut <= len(data)])
    assert unpack_model(store, pieces) == data


def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    assert store.put(b"same" * 100) == store.put(b"same" * 100)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_arrays_come_back_to_the_bit(tmp_path: Path) -> None:
    values = np.array([[np.pi, -0.0, np.nan], [5e-324, np.inf, 1e308]])
    back = unpack_array(BlobStore(tmp_path), pack_array(BlobStore(tmp_path), values))
    assert back.tobytes() == values.tobytes()
    assert back.shape == (2, 3)


def test_a_task_comes_back_whole(root: Path) -> None:
    task, made_of = load_task(root, NAME), model_task("turn_on_the_stove")
    assert (task.name, task.suite, task.instruction, task.goal) == (
        NAME,
        "libero_goal",
        made_of.instruction,
        made_of.goal,
    )
    assert np.array_equal(task.init_states, made_of.init_states)
    assert (task.heldout_states, task.train_states) == (range(50), range(50, 100))
    assert task.fixtures["stove"].pos == (0.0, 0.2, 0.9)
    assert task.cameras["agentview"].fovy == 45.0
    assert task.indicators == (Indicator(SITE, JointRange((KNOB,), 0.5, True, False, True)),)
    assert task.start is not None
    assert np.array_equal(task.start["ctl_initial_joint"], made_of.init_states[START_ROW][1:8])
    assert task.approximate == ()


def test_a_task_can_be_sent_to_another_process(root: Path) -> None:
    """As watched processes of worlds need it."""
    task = load_task(root, NAME)
    sent = pickle.loads(pickle.dumps(task))
    assert saved(sent.build_physics()) == saved(task.build_physics())
    assert np.array_equal(sent.init_states, task.init_states)
    assert sent.indicators == task.indicators


def test_models_come_back_to_the_bit_and_collision_shapes_are_hidden(root: Path) -> None:
    task = load_task(root, NAME)
    assert saved(task.build_physics()) == binary("turn_on_the_stove", False)
    visual, full = task.build_visual(), model_task("turn_on_the_stove").build_visual()
    assert not (visual.geom_group == 0).any()
    assert np.array_equal(visual.geom_group == 3, full.geom_group == 0)
    site = visual.site(SITE)
    assert (site.group[0], site.rgba[3]) == (3, 1.0)
    assert (visual.site_group == 3).sum() == 1 + (full.site_group == 3).sum()
    visual.geom_group[:], visual.site_group[:] = full.geom_group, full.site_group
    visual.site_rgba[:] = full.site_rgba
    assert saved(visual) == binary("turn_on_the_stove", True)


def test_the_engine_runs_it_like_the_task_that_it_was_made_of(root: Path) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (1, 20, 7)).astype(np.float32)
    ends = []
    for task in (load_task(root, NAME), model_task("turn_on_the_stove")):
        env = MujocoVecEnv([task], 1, threads=1, controller="fast")
        env.reset([0], [EpisodeSpec(0, task.name, START_ROW, 0)])
        env.step([0], torch.from_numpy(actions))
        ends.append(env.data(0).qpos.copy())
        env.close()
    assert np.array_equal(*ends)


def test_suites_and_tasks_keep_the_benchmarks_order(root: Path) -> None:
    assert suites() == ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
    assert installed(root) == sorted([NAME, OTHER])
    assert tasks(root, "libero_goal") == [NAME, OTHER]
    assert [task.index for task in load_suite(root, "libero_goal")] == [0, 1]


def change_text(saved: dict[str, Any]) -> None:
    saved["instruction"] += "."


def change_state(saved: dict[str, Any]) -> None:
    saved["init_states"]["blob"] = saved["start"]["ctrl0"]["blob"]


@pytest.mark.parametrize("change", [change_text, change_state])
def test_the_fingerprint_sees_every_change_and_no_order(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    before = tasks_fingerprint(root, [NAME, OTHER])
    assert tasks_fingerprint(root, [OTHER, NAME]) == before
    assert tasks_fingerprint(root, [NAME]) != before
    path = exported_path(root, NAME)
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))
    assert tasks_fingerprint(root, [NAME, OTHER]) != before


def test_a_write_that_stops_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = contents(tmp_path, NAME)
    before = sorted(tmp_path.rglob("*"))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, stop)
            with pytest.raises(KeyboardInterrupt):
                write_exported(tmp_path, exported)
            with pytest.raises(KeyboardInterrupt):
                BlobStore(tmp_path).put(b"new bytes")
        assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [p for p in before if p.is_file()]
    assert installed(tmp_path) == []


def test_unknown_names_get_a_suggestion(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'libero_goal/turn_on_the_stove'") as error:
        load_task(root, "libero_goal/turn_on_the_stoev")
    one_line(error)
    with pytest.raises(UserError, match=r"unknown LIBERO suite 'libero_gaol'. Did you mean 'libero_goal'"):
        tasks(root, "libero_gaol")
    with pytest.raises(UserError, match=r"'libero_10' is not installed in .*run: embodied-rl assets install libero"):
        tasks(root, "libero_10")
    with pytest.raises(UserError, match=r"no LIBERO task 'libero_10/x' in .*Run: embodied-rl assets install libero"):
        load_task(tmp_path / "empty", "libero_10/x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "can't read"),
        ("[]", "is not the exported task"),
        ('{"name": "libero_goal/other", "format": 1}', "is not the exported task"),
        (json.dumps({"name": NAME, "format": 99}), "has format 99, this version reads 1"),
        (json.dumps({"name": NAME, "format": 1, "mujoco": mujoco.__version__}), "is damaged"),
    ],
)
def test_a_bad_file_is_one_line(root: Path, text: str, message: str) -> None:
    exported_path(root, NAME).write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load_task(root, NAME)
    assert "embodied-rl assets install libero" in one_line(error)
    assert not is_whole(root, NAME)


def test_a_missing_field_is_named(root: Path) -> None:
    exported = read_exported(root, NAME)
    for field in exported:
        if field in ("format", "name", "suite"):  # the first two are checked before, the last is for readers
            continue
        write_exported(root, {key: value for key, value in exported.items() if key != field})
        with pytest.raises(UserError, match=f"is damaged .KeyError.'{field}'"):
            load_task(root, NAME)


def test_another_mujoco_version_is_refused(root: Path) -> None:
    write_exported(root, {**read_exported(root, NAME), "mujoco": "3.2.7"})
    with pytest.raises(
        UserError, match=r"was exported with mujoco 3.2.7, this is 4.*run: embodied-rl assets install"
    ) as e:
        load_task(root, NAME)
    one_line(e)


def test_a_missing_blob_is_named_and_the_bundle_not_whole(root: Path) -> None:
    path = BlobStore(root).path(read_exported(root, NAME)["physics"][0])
    path.unlink()
    assert not is_whole(root, NAME)
    with pytest.raises(UserError, match=f"{path} is missing; run: embodied-rl assets install libero"):
        load_task(root, NAME).build_physics()


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: b"", lambda data: zlib.compress(b"other")])
def test_a_damaged_blob_is_refused(root: Path, damage: Callable[[bytes], bytes]) -> None:
    path = BlobStore(root).path(read_exported(root, NAME)["visual"][-1])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=f"{path} is damaged; run: embodied-rl assets verify libero"):
        load_task(root, NAME).build_visual()


def test_a_model_that_mujoco_cannot_read_is_one_line(root: Path) -> None:
    piece = BlobStore(root).put(binary("turn_on_the_stove", False)[:-100])
    write_exported(root, {**read_exported(root, NAME), "physics": [piece]})
    with pytest.raises(
        UserError, match=r"MuJoCo 4.* can't read a model in .*run: embodied-rl assets install libero"
    ) as e:
        load_task(root, NAME).build_physics()
    one_line(e)


def test_every_blob_is_listed(root: Path) -> None:
    needed = {digest for name in (NAME, OTHER) for digest in blobs_of(read_exported(root, name))}
    there = {path.name for path in (root / "blobs").rglob("*") if path.is_file()}
    assert needed == there


def test_a_task_without_its_official_states_is_refused(root: Path) -> None:
    store, exported = BlobStore(root), read_exported(root, NAME)
    short = pack_array(store, unpack_array(store, exported["init_states"])[:49])
    write_exported(root, {**exported, "init_states": short})
    with pytest.raises(UserError, match="49 initial states"):
        load_task(root, NAME)
