"""`embodied-rl bench libero`: the arithmetic of its ratios, its worker over a stand-in for the official packages, what
it says where something is missing. Nothing is timed, and no official package is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.benchmarks import libero, libero_official, libero_ours
from embodied_rl.benchmarks.floor import Profile
from embodied_rl.benchmarks.libero_figures import (
    OFFICIAL,
    OURS,
    PLAIN,
    PUBLISHED,
    Memory,
    TaskFigures,
    parts_of,
    ratios_of,
    row,
)
from embodied_rl.benchmarks.libero_official import OfficialEnvs, Timing
from embodied_rl.benchmarks.libero_ours import OurEnvs, slot_bytes
from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install import hub, kept
from embodied_rl.sim.libero.install.benchmarks import LIBERO
from embodied_rl.sim.libero.install.export import Official
from embodied_rl.sim.libero.install.kept import find_official
from embodied_rl.sim.libero.install.report import StepNames
from embodied_rl.sim.libero.install.sources import ASSET_FOLDERS
from embodied_rl.sim.libero.install.state import remove
from embodied_rl.sim.libero.tasks import load_task
from embodied_rl.sim.render import RaycastRenderer
from tests.benchmarks.official_stack import LOST, FakeEnvironment
from tests.sim.libero.exported_tasks import NAME, install_fake

STATES = np.arange(12.0).reshape(4, 3)
TASK: Any = SimpleNamespace(name="suite/short", approximate=(LOST,))


def profile(exact: float) -> Profile:
    return Profile("suite/short", 40, floor=2.0, halves=2.2, jacobian=0.1, seen=0.01, exact=exact, fast=2.1, calls=0.08)


def figures(scale: float) -> TaskFigures:
    """A task where the official stack is `scale` times as slow as in the one with scale 1."""
    times = {
        ("physics", OFFICIAL): (10, 6),
        ("physics", OURS): (2, 1),
        ("physics", PUBLISHED): (2 + scale / 2, 1),
        ("reset", OFFICIAL): (500, 300),
        ("reset", OURS): (0.25, 0.5),
        ("cameras", OFFICIAL): (160, 80),
        ("cameras", OURS): (8, 5),
        ("cameras", PLAIN): (20, 16),
    }
    rows = []
    for (of, contender), (cpu, wall) in times.items():
        factor = scale if contender == OFFICIAL else 1
        rows.append(row("t", of, contender, [Timing(wall * factor / 1e3, cpu * factor / 1e3)], 1))
    return TaskFigures(rows, Memory("t", ours=0.5, official=600 * scale), profile(2 + scale / 4), 0.0, 0)


def test_a_row_has_medians_and_extremes_of_one_step() -> None:
    timings = [Timing(wall=0.8, cpu=1.6), Timing(wall=0.4, cpu=2.4), Timing(wall=1.2, cpu=0.8)]
    found = row("t", "physics", OURS, timings, count=80)
    assert (found.cpu_ms, found.cpu_low, found.cpu_high) == pytest.approx((20, 10, 30))
    assert (found.wall_ms, found.wall_low, found.wall_high) == pytest.approx((10, 5, 15))
    assert found.repeats == 3


def test_ratios_are_medians_over_the_tasks_and_name_the_worst() -> None:
    ratios = ratios_of([figures(1), figures(4), figures(2)])
    expected = {
        "physics": 10,
        "physics_wall": 12,
        "physics_cpu": 10,
        "physics_cpu_low": 5,
        "physics_wall_low": 6,
        "reset": 4000,
        "reset_cpu": 4000,
        "reset_cpu_low": 2000,
        "reset_wall": 1200,
        "chunk8": 40,
        "chunk8_cpu": 40,
        "chunk8_wall": 32,
        "chunk8_wall_low": 16,
        "chunk8_plain_cpu": 16,
        "chunk8_plain_wall": 10,
        "memory": 2400,
        "memory_low": 1200,
        "floor": 1.25,
        "floor_high": 1.5,
        "published": 1.5,
        "published_high": 2,
    }
    assert {name: ratios[name] for name in expected} == pytest.approx(expected)


def test_without_the_old_library_no_ratio_speaks_of_it() -> None:
    one = figures(1)
    assert not any(
        "published" in name
        for name in ratios_of([replace(one, rows=[r for r in one.rows if r.contender != PUBLISHED])])
    )


def test_the_parts_of_a_step_sum_up() -> None:
    parts = parts_of(profile(2.6))
    whole = parts.pop("all")
    assert sum(parts.values()) == pytest.approx(whole)
    assert parts["entry, once a chunk"] == pytest.approx(0.01)
    assert whole == pytest.approx(2.61)


@pytest.fixture
def official(tmp_path: Path) -> Official:
    assets, scratch = tmp_path / "assets", tmp_path / "scratch"
    scratch.mkdir()
    assets.mkdir()
    environment = FakeEnvironment(tmp_path / "environment")
    environment.build()
    environment.add_task(TASK.name, STATES)
    environment.add_task("suite/broken", STATES, "broken")
    return Official(environment, assets, True, scratch)


@pytest.fixture
def envs(official: Official) -> Iterator[OfficialEnvs]:
    made = OfficialEnvs(official)
    yield made
    made.close()


@pytest.mark.process
@pytest.mark.parametrize("cameras", [False, True])
def test_the_worker_steps_the_official_stack(envs: OfficialEnvs, cameras: bool) -> None:
    envs.start(TASK, 2, cameras, 64)
    actions = np.full((3, 2, 7), 0.25, np.float32)
    actions[:, 1] = 0.5
    timing, states = envs.step(actions)
    assert np.array_equal(states, STATES[:2] + np.array([[0.75], [1.5]]))
    assert timing.wall >= 0
    assert timing.cpu >= 0
    envs.reset()
    assert np.array_equal(envs.step(actions[:1])[1], STATES[:2] + np.array([[0.25], [0.5]]))
    used = envs.memory()
    assert len(used) == 2
    assert min(used) > 1e6


@pytest.mark.process
def test_what_fails_in_the_worker_is_said(envs: OfficialEnvs) -> None:
    with pytest.raises(UserError, match=r"official environment failed: RuntimeError: no such problem; see .*bench.log"):
        envs.start(SimpleNamespace(name="suite/broken", approximate=(LOST,)), 1, False, 64)  # type: ignore[arg-type]
    envs.start(TASK, 1, False, 64)
    with pytest.raises(UserError, match="it ended with status 3"):
        envs.step(np.full((1, 1, 7), 9, np.float32))
    with pytest.raises(UserError, match="it ended with status 3"):
        envs.reset()


@pytest.mark.process
def test_other_assets_than_the_bundles_are_refused(envs: OfficialEnvs) -> None:
    whole: Any = SimpleNamespace(name=TASK.name, approximate=())
    with pytest.raises(UserError, match=f"was not exported from these assets: {LOST} is only in one.*--assets DIR"):
        envs.start(whole, 1, False, 64)


@pytest.mark.process
def test_a_worker_that_never_answers_is_ended(
    official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(libero_official, "WORKER", worker)
    monkeypatch.setattr(libero_official, "ANSWER_SECONDS", 0.1)
    envs = OfficialEnvs(official)
    with pytest.raises(UserError, match="no answer to 'reset'"):
        envs.reset()
    envs.close()
    assert envs._process.returncode == -9


def lay_out(root: Path, origin: str) -> None:
    """An installation of bundles that were made from `origin`."""
    install_fake(root, (NAME,))
    manifest = {"format": 1, "assets": origin, "suites": {}, "missing": {}}
    (root / "manifest.json").write_text(json.dumps(manifest))


def make_assets(folder: Path) -> Path:
    for name in ASSET_FOLDERS:
        (folder / name).mkdir(parents=True)
    return folder


def test_what_is_missing_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(libero, "choose", lambda *_: None)
    monkeypatch.setattr(kept, "Environment", FakeEnvironment)
    root = tmp_path / "libero"

    def said(*words: str) -> str:
        assert main(["bench", "libero", *words]) == 2
        return capsys.readouterr().err

    assert f"LIBERO is not installed in {root}; run: embodied-rl assets install libero" in said()
    lay_out(root, "/no/such/checkout")
    assert "no longer in '/no/such/checkout'; give a checkout" in said()
    assert "--assets DIR" in said()
    assert "neither LIBERO's assets folder nor a checkout" in said("--assets", str(tmp_path))
    full = tmp_path / "mine"
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    assert f"--environment {full} is not empty and holds no official packages" in said("--environment", str(full))
    assert (full / "thesis.tex").exists()
    assert main(["bench", "sim", "--environment", str(full)]) == 2
    assert "--environment belongs to bench libero only" in capsys.readouterr().err


def test_packages_that_cannot_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(libero, "choose", lambda *_: None)
    lay_out(tmp_path / "libero", str(make_assets(tmp_path / "assets")))

    def offline(_: object) -> None:
        raise UserError("pip could not install the official packages: no network")

    monkeypatch.setattr(kept.Environment, "build", offline)
    assert main(["bench", "libero"]) == 2
    assert "pip could not install the official packages: no network" in capsys.readouterr().err


def test_assets_of_the_hub_are_downloaded_again_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "libero"
    lay_out(root, f"https://hub.example/datasets/{hub.LIBERO_ASSETS}@abc")
    monkeypatch.setattr(kept, "Environment", FakeEnvironment)
    said: list[str] = []

    def bring(repository: str, folder: Path) -> str:
        assert repository == hub.LIBERO_ASSETS
        make_assets(folder)
        return "abc"

    monkeypatch.setattr(hub, "download", bring)
    found = find_official(root, None, None, StepNames(said.append))
    assert found.assets == (root / "official" / "hub").resolve()
    assert found.environment.folder == root / "official" / "environment"
    assert f"downloading {hub.LIBERO_ASSETS}" in said
    remove(root, LIBERO)  # an installation with these is removed as a whole
    assert not root.exists()


def test_ours_runs_every_step_and_tells_how_far_it_is_from_other_worlds(tmp_path: Path) -> None:
    install_fake(tmp_path, (NAME,))
    task = load_task(tmp_path, NAME)
    actions = np.random.default_rng(0).uniform(-0.5, 0.5, (10, 2, 7)).astype(np.float32)
    one, other = (OurEnvs(task, 2, 16) for _ in range(2))
    one.step(actions, 8)
    other.step(actions, 1)
    data = [other._envs.data(env_id) for env_id in range(2)]
    states = [[each.time, *each.qpos, *each.qvel] for each in data]
    assert one.distance(states) == 0  # chunks change nothing
    states[1][3] += 0.125
    assert one.distance(states) == pytest.approx(0.125)
    one.reset(3)
    assert one.distance([list(task.init_states[env_id]) for env_id in range(2)]) == 0
    ended = replace(task, max_episode_steps=4)
    with pytest.raises(ValueError, match="no running episode"):
        OurEnvs(ended, 2, 16).step(actions, 8)


@pytest.mark.process
@pytest.mark.parametrize("era", [True, False])
def test_quick_run_over_stand_ins(
    era: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it: the real worker, protocol, engine and memory; the ray caster draws, for OSMesa may be missing."""
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    root = tmp_path / "libero"
    lay_out(root, str(make_assets(tmp_path / "assets")))
    exported = root / "tasks" / f"{NAME}.json"
    exported.write_text(json.dumps(json.loads(exported.read_text()) | {"approximate": [LOST]}))
    task = load_task(root, NAME)
    FakeEnvironment(root / "official" / "environment").build()
    FakeEnvironment(root / "official" / "environment").add_task(NAME, task.init_states[:50])
    asked: list[bool] = []

    def draw(backend: str, *, images: bool) -> RaycastRenderer:
        assert backend == "osmesa"
        asked.append(images)
        return RaycastRenderer()

    monkeypatch.setattr(libero_ours, "GlRenderer", draw)
    monkeypatch.setattr(libero, "choose", lambda *_: None)
    if era:  # the real library is tested in tests/sim/mujoco/test_era.py
        monkeypatch.setattr(libero, "unavailable", lambda: None)
        monkeypatch.setattr(libero, "load_task", lambda root, name, era="current": load_task(root, name))
    monkeypatch.setattr(kept, "Environment", FakeEnvironment)
    monkeypatch.setattr(libero, "slot_bytes", lambda root, name, env_ids: 1e6)  # a process of its own, tested below
    file = tmp_path / "libero.json"
    assert main(["bench", "libero", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["quick"] is True
    assert found["setup"]["stand-ins for missing asset files"] == "yes"
    assert {(r["of"], r["contender"]) for r in found["rows"]} == {
        ("reset", OFFICIAL),
        ("reset", OURS),
        ("physics", OFFICIAL),
        ("physics", OURS),
        *([("physics", PUBLISHED)] if era else []),
        ("cameras", OFFICIAL),
        ("cameras", OURS),
        ("cameras", PLAIN),
    }
    assert set(asked) == {True, False}
    assert {"physics", "reset", "memory", "chunk8", "floor"} <= set(found["ratios"])
    assert all(np.isfinite(value) for value in found["ratios"].values())
    said = " ".join(capsys.readouterr().out.split())
    assert "chunk8_plain also draws without shadows" in said
    assert ("The published era is left out" in said) != era
    assert found["setup"]["eras"] == ("current, published" if era else "current")


@pytest.mark.process
def test_memory_of_a_slot_is_more_than_its_state(tmp_path: Path) -> None:
    install_fake(tmp_path, (NAME,))
    assert 5e4 < slot_bytes(tmp_path, NAME, 16) < 2e7
