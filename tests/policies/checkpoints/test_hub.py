"""The Hugging Face hub, asked over HTTP in a stand-in: what one uploads another downloads; each refusal is one line."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.hub import check_push, push, repository_of, resolve, source_name
from tests.hub import Hub, Repository, opened

FILES = {
    "config.json": "{}",
    "model.safetensors": "weights",
    "README.md": "---\nlicense: mit\n---\n",
    "film.gif": "GIF",
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with opened(tmp_path / "cache") as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def _files(repository: Repository) -> dict[str, str]:
    return {name: content.decode() for name, content in repository.files.items()}


def test_what_one_uploads_another_downloads(hub: Hub, folder: Path) -> None:
    check_push("lab/policy")
    assert push(folder, "lab/policy", "model", private=True) == f"{hub.address}/lab/policy"
    there = hub.repositories["models/lab/policy"]
    assert (_files(there), there.commits, there.private) == (FILES, 1, True)
    assert there.sha in str(found := resolve("lab/policy"))
    assert {path.name: path.read_text() for path in found.iterdir()} == {
        name: text for name, text in FILES.items() if name not in ("README.md", "film.gif")
    }
    assert source_name(found) == f"lab/policy@{there.sha}"
    assert repository_of(source_name(found)) == "lab/policy"
    assert repository_of(str(folder)) is None


def test_what_a_policy_was_made_for_is_known_without_its_weights(hub: Hub, folder: Path) -> None:
    hub.add("models/lab/policy", folder)
    assert [path.name for path in resolve("lab/policy", weights=False).iterdir()] == ["config.json"]
    assert not [line for line in hub.asked if "safetensors" in line]
    assert (resolve("lab/policy") / "model.safetensors").read_text() == "weights"


def test_a_second_upload_leaves_nothing_that_a_loader_would_read(hub: Hub, folder: Path) -> None:
    push(folder, "lab/policy", "model")
    hub.repositories["models/lab/policy"].files["figure.png"] = b"by hand"
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    push(folder, "lab/policy", "model")
    there = hub.repositories["models/lab/policy"]
    assert set(there.files) == {*FILES, "other.safetensors", "figure.png"} - {"model.safetensors"}
    assert there.commits == 2


def test_of_a_data_set_its_folders_and_card_go_and_the_tag_moves_along(hub: Hub, folder: Path) -> None:
    (folder / "meta").mkdir()
    (folder / "meta" / "info.json").write_text("{}")
    (folder / ".secret.json").write_text("mine")
    for text in ("one", "two"):
        (folder / "meta" / "info.json").write_text(text)
        assert push(folder, "lab/demos", "dataset", tag="v3.0") == f"{hub.address}/datasets/lab/demos"
        there = hub.repositories["datasets/lab/demos"]
        assert set(there.files) == {"README.md", "meta/info.json"}
        assert there.tags == {"v3.0": there.sha}
    assert (resolve("lab/demos@v3.0", "dataset") / "meta" / "info.json").read_text() == "two"


def _no_network(patch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        patch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")


def _no_token(patch: pytest.MonkeyPatch) -> None:
    patch.delenv("HF_TOKEN")
    patch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/no/such/file")


@pytest.mark.parametrize(
    ("name", "broken", "problem"),
    [
        ("policy", None, "is no name on the Hugging Face hub (no owner): give OWNER/NAME."),
        ("lab/a--b", None, "is no name on the Hugging Face hub (Cannot have -- or .."),
        ("lab/policy@main", None, "is no name on the Hugging Face hub"),
        ("lab/policy", _no_token, "needs a token of the Hugging Face hub that may write: log in with `hf auth login`"),
        ("lab/policy", lambda patch: patch.setenv("HF_TOKEN", "hf_old"), "(Invalid user token."),
        ("lab/policy", _no_network, "check the network"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_cannot_be_uploaded_is_refused_before_the_work(
    name: str, broken: Callable[[pytest.MonkeyPatch], None] | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken is not None:
        broken(monkeypatch)
    with pytest.raises(UserError) as error:
        check_push(name)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("refused", ["/repos/create", "/preupload/", "/info/lfs/", "PUT /put", "/commit/", "/tree/"])
def test_a_refusal_is_one_line_and_leaves_nothing_half_made(refused: str, hub: Hub, folder: Path) -> None:
    hub.refuse = refused
    with pytest.raises(UserError) as error:
        push(folder, "lab/policy", "model")
    assert f"{folder} is whole, but lab/policy on the Hugging Face hub does not hold it (" in str(error.value)
    assert "\n" not in str(error.value)
    assert all(not there.files for there in hub.repositories.values())
    assert {path.name: path.read_text() for path in folder.iterdir()} == FILES


def test_private_files_do_not_go_where_everybody_looks(hub: Hub, folder: Path) -> None:
    hub.repositories["models/lab/policy"] = Repository()
    with pytest.raises(UserError, match=r"--private: everybody sees http.*/lab/policy already"):
        push(folder, "lab/policy", "model", private=True)
    assert not hub.repositories["models/lab/policy"].files


@pytest.mark.parametrize("name", ["lab/none", "lab/policy@none", "lab/a--b"])
def test_what_is_not_there_is_one_line(name: str, hub: Hub, folder: Path) -> None:
    hub.add("models/lab/policy", folder)
    with pytest.raises(UserError) as error:
        resolve(name)
    assert f"{name} is no folder here and cannot be had from the Hugging Face hub (" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_way_of_uploading_that_the_client_takes_where_it_can(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hf_xet, in batches; the stand-in has no store for large files."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    (folder / "model.safetensors").unlink()
    hub.repositories["models/lab/policy"] = Repository(files={"model.safetensors": b"old"})
    push(folder, "lab/policy", "model")
    assert set(hub.repositories["models/lab/policy"].files) == set(FILES) - {"model.safetensors"}
    hub.refuse = "/commit/"
    (folder / "config.json").write_text('{"new": 1}')
    with pytest.raises(UserError, match="is whole, but lab/policy"):
        push(folder, "lab/policy", "model")
