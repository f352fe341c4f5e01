"""Installing, with a stand-in for the official code: resumption, missing files, crashes; status, verify and remove."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import BlobStore, exported_path, installed, is_whole, read_exported
from embodied_rl.sim.libero.install import environment as environment_module
from embodied_rl.sim.libero.install import export, hub
from embodied_rl.sim.libero.install import pip as pip_module
from embodied_rl.sim.libero.install.benchmarks import LIBERO
from embodied_rl.sim.libero.install.environment import Environment, packages
from embodied_rl.sim.libero.install.folder import alone
from embodied_rl.sim.libero.install.sources import ASSET_FOLDERS, find_assets
from embodied_rl.sim.libero.install.state import missing_assets, status, verify
from embodied_rl.sim.libero.tasks import load_task
from tests.sim.libero.exported_tasks import NAME, OTHER, install_fake
from tests.sim.libero.stage import SHORT, Silent, Stage


def _delete_blob(root: Path) -> None:
    own = set(_blobs(root, NAME)) - set(_blobs(root, OTHER))
    BlobStore(root).path(min(own)).unlink()


def _blobs(root: Path, name: str) -> list[str]:
    exported = read_exported(root, name)
    return [*exported["physics"], *exported["visual"], exported["init_states"]["blob"]]


@pytest.mark.process
def test_everything_is_exported_once(stage: Stage) -> None:
    report = Silent()
    assert stage.install(report=report) == 2
    assert report.steps == ["building the isolated environment", "exporting tasks"]
    assert report.seen == [(1, 2), (2, 2)]
    assert installed(stage.root) == sorted([NAME, OTHER])
    assert load_task(stage.root, OTHER).index == 1
    assert load_task(stage.root, NAME).bddl_language == "Do it"
    assert sorted(path.name for path in stage.root.iterdir()) == [
        ".lock",
        "blobs",
        "licenses",
        "manifest.json",
        "tasks",
    ]
    assert (stage.root / "licenses" / "robosuite.txt").read_text() == "MIT"
    assert stage.asked() == sorted(SHORT)
    assert stage.install() == 0
    assert stage.asked() == []


def test_another_suite_is_not_touched(stage: Stage) -> None:
    assert stage.install(wanted=("libero_spatial",)) == 0
    assert stage.asked() == []
    with pytest.raises(UserError, match=r"unknown LIBERO suite 'libero_gaol'. Did you mean 'libero_goal'"):
        stage.install(wanted=("libero_gaol",))


@pytest.mark.process
def test_an_interrupted_installation_continues(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = export.convert

    def stop(folder: Path, root: Path) -> None:
        if folder.name == SHORT[1]:
            raise KeyboardInterrupt
        convert(folder, root)

    with monkeypatch.context() as patched:
        patched.setattr(export, "convert", stop)
        with pytest.raises(KeyboardInterrupt):
            stage.install()
    assert installed(stage.root) == [NAME]
    assert is_whole(stage.root, NAME)
    stage.asked()
    assert stage.install() == 1
    assert stage.asked() == [SHORT[1]]
    assert not (stage.root / "work").exists()


@pytest.mark.process
@pytest.mark.parametrize("spoil", [lambda root: exported_path(root, NAME).write_text("{"), _delete_blob])
def test_a_spoilt_bundle_is_made_again(stage: Stage, spoil: Callable[[Path], None]) -> None:
    stage.install()
    stage.asked()
    spoil(stage.root)
    assert stage.install() == 1
    assert stage.asked() == [SHORT[0]]
    load_task(stage.root, NAME).build_physics()


@pytest.mark.process
def test_another_mujoco_version_exports_again(stage: Stage) -> None:
    stage.install()
    stage.asked()
    path = exported_path(stage.root, NAME)
    path.write_text(json.dumps({**json.loads(path.read_text()), "mujoco": "3.9.0"}))
    assert [row.stale for row in status(stage.root, LIBERO) if row.suite == "libero_goal"] == [1]
    assert stage.install() == 1
    assert stage.asked() == [SHORT[0]]


@pytest.mark.process
def test_what_a_killed_installation_left_is_swept(stage: Stage) -> None:
    leftover = stage.root / "blobs" / "ab" / "abc.1.2.tmp"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    stage.install()
    assert not leftover.exists()


@pytest.mark.process
def test_several_processes_make_the_same_bundles(stage: Stage) -> None:
    stage.install(jobs=1)
    one = {path.relative_to(stage.root): path.read_bytes() for path in stage.root.rglob("*") if path.is_file()}
    shutil.rmtree(stage.root)
    stage.install(jobs=2)
    assert one == {path.relative_to(stage.root): path.read_bytes() for path in stage.root.rglob("*") if path.is_file()}


@pytest.mark.process
def test_missing_files_are_named_and_the_rest_is_kept(stage: Stage) -> None:
    lacking = {"missing": [f"scenes/{letter}.png" for letter in "abcd"]}
    stage.plan({SHORT[0]: {"answer": lacking}})
    with pytest.raises(UserError) as error:
        stage.install()
    text = str(error.value)
    assert "1 of 2 tasks were left out because" in text
    assert "lacks 4 files: scenes/a.png, scenes/b.png, scenes/c.png and 1 more" in text
    assert "--fill-missing" in text
    assert "\n" not in text
    assert installed(stage.root) == [OTHER]
    assert missing_assets(stage.root, LIBERO) == lacking["missing"]
    stage.asked()

    assert stage.install(fill_missing=True) == 1
    assert stage.asked() == [SHORT[0]]
    assert list(load_task(stage.root, NAME).approximate) == lacking["missing"]
    assert [row.approximate for row in status(stage.root, LIBERO) if row.suite == "libero_goal"] == [1]
    assert stage.install(fill_missing=True) == 0

    stage.asked()
    stage.plan({})  # whole assets are there now: the approximate exported task is replaced, the exact one is not
    assert stage.install() == 1
    assert stage.asked() == [SHORT[0]]
    assert load_task(stage.root, NAME).approximate == ()


@pytest.mark.process
def test_a_failing_task_stops_no_other_and_is_named(stage: Stage) -> None:
    stage.plan({SHORT[0]: {"answer": {"error": "ValueError: odd"}}})
    with pytest.raises(
        UserError, match=f"1 of 2 tasks failed, the first was {NAME}: ValueError: odd; see .*export.log"
    ):
        stage.install()
    assert installed(stage.root) == [OTHER]


@pytest.mark.process
def test_a_dying_exporter_is_replaced(stage: Stage) -> None:
    stage.plan({SHORT[0]: {"die": True}})
    with pytest.raises(UserError, match=r"the exporting process ended with status 9 \(out of memory\? try --jobs 1\)"):
        stage.install()
    assert installed(stage.root) == [OTHER]


@pytest.mark.process
def test_an_export_that_does_not_fit_together_makes_no_bundle(stage: Stage) -> None:
    np.savez(stage.exporter / "ready" / SHORT[0] / "arrays.npz", init_states=np.zeros((50, 3)))
    with pytest.raises(UserError, match="initial states have 3 numbers, the scene"):
        stage.install()
    assert installed(stage.root) == [OTHER]


def test_two_installations_at_once_are_refused(stage: Stage) -> None:
    with alone(stage.root), pytest.raises(UserError, match="another installation is working in"):
        stage.install()


def test_a_full_disk_is_said_before_anything_is_done(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=int(1e9)))
    with pytest.raises(UserError, match=r"has 1.0 GB free, installing needs 5 GB; make room"):
        stage.install()
    assert stage.asked() == []


@pytest.mark.process
def test_the_hub_is_asked_where_it_is_named_and_the_download_goes_afterwards(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repository: str, folder: Path) -> str:
        assert repository == "lerobot/libero-assets"
        shutil.copytree(stage.assets, folder)
        return f"https://hub.example/datasets/{repository}@c0ffee"

    monkeypatch.setattr(hub, "download", download)
    assert stage.install(source="hub") == 2
    assert not (stage.root / "work").exists()
    manifest = json.loads((stage.root / "manifest.json").read_text())
    assert manifest["assets"] == "https://hub.example/datasets/lerobot/libero-assets@c0ffee"
    assert manifest["packages"]["robosuite"] == "1.4.0"
    assert "do not pass them on" in manifest["licences"]["meshes and textures"]


@pytest.mark.parametrize("inside", ["", "assets", "libero/assets", "libero/libero/assets"])
def test_assets_are_found_in_a_checkout(tmp_path: Path, inside: str) -> None:
    for name in ASSET_FOLDERS:
        (tmp_path / inside / name).mkdir(parents=True)
    assert find_assets(tmp_path) == (tmp_path / inside).resolve()
    (tmp_path / inside / "scenes").rmdir()
    with pytest.raises(UserError, match="is neither LIBERO's assets folder nor a checkout of its repository"):
        find_assets(tmp_path)


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        (
            "WARNING: Retrying after '[Errno -3] Temporary failure in name resolution'\n"
            "ERROR: No matching distribution",
            "the package index cannot be reached; check the network",
        ),
        ("note\nERROR: No matching distribution found for robosuite==1.4.0\n", "No matching distribution"),
        ("", "it gave no reason"),
    ],
)
def test_pips_complaints_become_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, message: str
) -> None:
    monkeypatch.setattr(environment_module.venv.EnvBuilder, "create", lambda self, folder: Path(folder).mkdir())
    failed = SimpleNamespace(returncode=1, communicate=lambda timeout: ("", stderr))
    monkeypatch.setattr(pip_module.subprocess, "Popen", lambda *a, **k: failed)
    environment = Environment(tmp_path / "environment")
    with pytest.raises(UserError, match=f"pip could not install the official packages: {message}") as error:
        environment.build()
    assert "\n" not in str(error.value)
    assert not (environment.folder / "ready.json").exists()


def test_a_complete_environment_is_used_and_a_half_one_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(environment_module.venv.EnvBuilder, "create", lambda self, folder: Path(folder).mkdir())
    monkeypatch.setattr(Environment, "_install", lambda self, *words: calls.extend(words))
    environment = Environment(tmp_path / "environment")
    environment.folder.mkdir()
    (environment.folder / "half").touch()
    environment.build()
    assert not (environment.folder / "half").exists()
    assert {"--no-deps", "--require-hashes", f"mujoco=={packages()['mujoco']}"} <= set(calls)
    assert "robosuite==1.4.0 --hash=sha256:" in (environment.folder / "official.txt").read_text()
    calls.clear()
    environment.build()
    assert calls == []


@pytest.mark.process
def test_verify_finds_deletes_and_install_repairs(stage: Stage) -> None:
    stage.install()
    assert verify(stage.root, LIBERO, lambda done, total: None) == []
    lost, damaged = (BlobStore(stage.root).path(blob) for blob in sorted(set(_blobs(stage.root, NAME)))[:2])
    lost.unlink()
    damaged.write_bytes(b"x")
    found = verify(stage.root, LIBERO, lambda done, total: None)
    assert {(problem.path, problem.what) for problem in found} == {(lost, "missing"), (damaged, "damaged, deleted")}
    assert stage.install() >= 1
    assert verify(stage.root, LIBERO, lambda done, total: None) == []


@pytest.mark.process
def test_the_commands(stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(stage.root))
    root = stage.root / "libero"
    assert main(["assets", "status", "libero"]) == 0
    assert "not installed in" in capsys.readouterr().out
    assert main(["assets", "install", "libero", "--from", str(stage.assets)]) == 0
    said = capsys.readouterr().out
    assert "2 tasks exported to" in said
    assert "exporting tasks: 50 %\nexporting tasks: 100 %\n" in said, "a log has lines where a terminal has bars"
    assert main(["assets", "status", "libero"]) == 0
    (alone,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith(f" in {root}")]
    (root / "official").mkdir()
    (root / "official" / "package").write_bytes(bytes(20_000_000))
    assert main(["assets", "status"]) == 0
    said = capsys.readouterr().out
    assert alone in said, "what only bench libero uses is counted apart"
    assert "and 20.0 MB that only bench libero and comparisons use" in said
    assert "LIBERO: embodied-rl assets status libero" in said
    assert "LIBERO-PRO: embodied-rl assets status libero-pro" in said
    assert len(list((root / "premises").rglob("*.json"))) == 2, "the last step has judged the initial states"
    assert main(["assets", "install", "libero", "--from", str(stage.assets)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["assets", "verify", "libero"]) == 0
    assert "every file is intact" in capsys.readouterr().out
    BlobStore(root).path(_blobs(root, NAME)[0]).write_bytes(b"")
    assert main(["assets", "verify", "libero"]) == 1
    assert "damaged, deleted" in capsys.readouterr().out
    (root / "mine.txt").touch()
    assert main(["assets", "remove", "libero"]) == 2
    assert "also holds mine.txt, which no installation wrote" in capsys.readouterr().err
    (root / "mine.txt").unlink()
    assert main(["assets", "remove", "libero"]) == 0
    assert not root.exists()
    assert main(["assets", "remove", "libero"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("assets", "the following arguments are required: ACTION"),
        ("assets install", "assets install what? One of libero, libero-pro, libero-plus, metaworld, aloha, era"),
        ("assets instal libero", "unknown action 'instal'. Did you mean 'install'?"),
        ("assets install libreo", "no assets for 'libreo'. Did you mean 'libero'?"),
        ("assets install libero --form x", "unknown option '--form'. Did you mean '--from'?"),
        ("assets install libero --jobs 0", "--jobs must be at least 1"),
        ("assets install libero --jobs many", "argument --jobs: invalid int value: 'many'"),
        ("assets install libero --from /no/such", "/no/such is neither LIBERO's assets folder nor a checkout"),
        ("assets install libero --suites libero_gaol", "unknown LIBERO suite 'libero_gaol'"),
        ("assets install libero-pro --suites goal", "unknown LIBERO-PRO suite 'libero_goal'"),
        ("assets install libero --suites goal_swap", "unknown LIBERO suite 'libero_goal_swap'"),
        ("assets verify libero", "LIBERO is not installed in"),
        ("assets remove libero", "LIBERO is not installed in"),
        ("assets status libero --jobs 2", "assets status takes no options"),
    ],
)
def test_bad_commands_are_one_line(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("embodied-rl: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.rglob("*.json")) == []


def test_an_unreadable_bundle_stops_neither_status_nor_verify(tmp_path: Path) -> None:
    install_fake(tmp_path)
    exported_path(tmp_path, NAME).write_text("{")
    (row,) = [row for row in status(tmp_path, LIBERO) if row.suite == "libero_goal"]
    assert (row.installed, row.stale) == (1, 1)
    assert missing_assets(tmp_path, LIBERO) == []
    assert [problem.path for problem in verify(tmp_path, LIBERO, lambda done, total: None)] == [
        exported_path(tmp_path, NAME)
    ]


def test_only_install_offers_the_library_of_the_eras(capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("verify", "remove"):
        assert main(["assets", action]) == 2
        said = capsys.readouterr().err.strip()
        assert said.endswith(f"assets {action} what? One of libero, libero-pro, libero-plus, metaworld, aloha")
