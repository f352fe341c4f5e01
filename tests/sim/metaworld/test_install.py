"""Installing MetaWorld: from a folder, whole or not at all, and what `verify` finds."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from embodied_rl.cli.assets import main
from embodied_rl.errors import UserError
from embodied_rl.sim.metaworld import install


def write_wheel(folder: Path) -> Path:
    """A wheel of two files, with its record."""
    files = {"metaworld/__init__.py": b"", "metaworld/assets/scene.xml": b"<mujoco/>"}
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for name, data in files.items()
    }
    info = f"metaworld-{install.VERSION}.dist-info"
    record = "".join(f"{name},sha256={digest.decode()},1\n" for name, digest in digests.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / install.WHEEL, "w") as wheel:
        for name, data in {**files, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(name, data)
    return folder / install.WHEEL


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel, which is the pinned one; nothing is installed."""
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "wheels").mkdir()
    digest = hashlib.sha256(write_wheel(tmp_path / "wheels").read_bytes()).hexdigest()
    monkeypatch.setattr(install, "SHA256", digest)
    return tmp_path / "wheels"


def test_install_status_verify_and_remove(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "metaworld"]) == 0
    assert "not installed" in capsys.readouterr().out
    assert main(["install", "metaworld", "--from", str(source)]) == 0
    assert "MIT licence" in capsys.readouterr().out
    assert [path.name for path in install.root().iterdir()] == [install.VERSION]
    assert main(["install", "metaworld"]) == 0  # it is there: nothing is downloaded
    assert main(["verify", "metaworld"]) == 0
    folder = install.installed()
    assert folder is not None
    (folder / "metaworld/assets/scene.xml").write_text("<mujoco></mujoco>")
    (folder / "metaworld/__init__.py").unlink()
    assert main(["verify", "metaworld"]) == 1
    said = capsys.readouterr().out
    assert "scene.xml: missing or damaged" in said
    assert "__init__.py: missing or damaged" in said
    assert install.installed() is None
    assert main(["install", "metaworld", "--from", str(source)]) == 0
    assert main(["remove", "metaworld"]) == 0
    assert install.installed() is None
    with pytest.raises(UserError, match="MetaWorld is not installed; run: embodied-rl assets install metaworld"):
        main(["verify", "metaworld"])


def test_another_file_is_refused_and_nothing_stays(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"is not the pinned metaworld-.*its SHA-256 is another"):
        install.install(source)
    with pytest.raises(UserError, match="holds no metaworld-"):
        install.install(source.parent)
    assert list(install.root().iterdir()) == []


def test_options_of_other_benchmarks_are_refused(source: Path) -> None:
    with pytest.raises(UserError, match="knows one option: --from DIR"):
        main(["install", "metaworld", "--suites", "spatial"])
