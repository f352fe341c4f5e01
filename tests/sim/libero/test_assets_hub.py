"""Downloads from a stand-in for the hub: every file is checked, whatever was sent."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import RepoFile, RepoFolder
from huggingface_hub.errors import HfHubHTTPError

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install.hub import download

REPOSITORY = "owner/assets"
FILES = {"scenes/a b.xml": b"<mujoco/>" * 50, "scenes/big.png": bytes(range(256)) * 2000, "textures/empty.txt": b""}
LARGE = "scenes/big.png"


class Hub:
    """Stands in for HfApi and snapshot_download. sent: what really arrives; error: what the download raises."""

    endpoint = "https://hub.example"

    def __init__(self) -> None:
        self.files, self.sent = dict(FILES), dict(FILES)
        self.error: Exception | None = None
        self.downloads = 0

    def dataset_info(self, repository: str) -> Any:
        assert repository == REPOSITORY
        if self.error is not None and isinstance(self.error, HfHubHTTPError.__bases__[0]):
            raise self.error
        return type("Info", (), {"sha": "c0ffee"})

    def list_repo_tree(self, repository: str, *, recursive: bool, revision: str, repo_type: str) -> list[Any]:
        assert (repository, recursive, revision, repo_type) == (REPOSITORY, True, "c0ffee", "dataset")
        found: list[Any] = [RepoFolder(path="scenes", oid="0")]
        for path, data in self.files.items():
            oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            large = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1}
            lfs = {"oid": "pointer", "lfs": large} if path == LARGE else {"oid": oid}
            found.append(RepoFile(path=path, size=len(data), **lfs))
        return found

    def snapshot_download(self, repository: str, *, repo_type: str, revision: str, local_dir: Path) -> str:
        assert (repository, repo_type, revision) == (REPOSITORY, "dataset", "c0ffee")
        self.downloads += 1
        for path, data in self.sent.items():
            (local_dir / path).parent.mkdir(parents=True, exist_ok=True)
            (local_dir / path).write_bytes(data)
        if self.error is not None:
            raise self.error
        return str(local_dir)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: made)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    return made


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_files_arrive(hub: Hub, tmp_path: Path) -> None:
    assert download(REPOSITORY, tmp_path) == "https://hub.example/datasets/owner/assets@c0ffee"
    assert content(tmp_path) == FILES


@pytest.mark.parametrize("path", list(FILES))
@pytest.mark.parametrize("fault", ["changed", "longer", "absent"])
def test_wrong_bytes_are_never_kept(hub: Hub, tmp_path: Path, path: str, fault: str) -> None:
    if fault == "absent":
        del hub.sent[path]
    else:
        hub.sent[path] = b"?" + FILES[path][1:] if fault == "changed" else FILES[path] + b"?"
    with pytest.raises(UserError, match=f"the checksum of {path} is wrong; run the command again"):
        download(REPOSITORY, tmp_path)
    assert path not in content(tmp_path)
    hub.sent = dict(FILES)
    download(REPOSITORY, tmp_path)
    assert content(tmp_path) == FILES


@pytest.mark.parametrize("error", [OSError("no\nroute"), HfHubHTTPError.__bases__[0]("no\nroute")])
def test_no_network_is_one_line(hub: Hub, tmp_path: Path, error: Exception) -> None:
    hub.error = error
    with pytest.raises(UserError, match=r"^can't download owner/assets from https://hub.example \(no route\)") as said:
        download(REPOSITORY, tmp_path)
    assert "or use a local copy: --from DIR" in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("path", ["../evil", "/evil", "scenes/../../evil"])
def test_a_path_outside_the_folder_is_refused_before_anything_is_written(hub: Hub, tmp_path: Path, path: str) -> None:
    hub.files[path] = b"x"
    with pytest.raises(UserError, match="outside its folder"):
        download(REPOSITORY, tmp_path / "inner")
    assert hub.downloads == 0
    assert content(tmp_path) == {}
