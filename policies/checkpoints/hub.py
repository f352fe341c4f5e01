"""Policies and data sets on the Hugging Face hub: named as folders are, downloaded once, uploaded in one go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, cast

from embodied_rl.errors import UserError

CARD = "README.md"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
# what says what it is first; then weights, tokenizer and settings; no Python: code of a repository is never run
_WANTED = {
    "model": ("*.json", "*.safetensors", "*.pt", "*.model", "*.jinja", "*.txt"),
    "dataset": ("meta/*", "data/*", "videos/*"),
}
Kind = Literal["model", "dataset"]


def is_repository(source: str) -> bool:
    """Whether `source` names a repository of the hub and not a path, right or mistyped, into a folder that exists.

    A run of `runs/`, where runs are usually written, is none either: in another folder than its own it would be sought
    on the hub.
    """
    path = Path(source)
    if path.exists() or path.parent.is_dir() or path.parts[:1] == ("runs",):
        return False
    return bool(_HUB_ID.fullmatch(source))


def repository_of(source: str) -> str | None:
    """OWNER/NAME of what `source_name` wrote; None of a folder."""
    return source.partition("@")[0] if _HUB_ID.fullmatch(source) else None


def resolve(source: str, kind: Kind = "model", *, weights: bool = True) -> Path:
    """The folder of a policy or a data set: a path as it stands, or OWNER/NAME[@REVISION] on the hub, downloaded.

    Args:
        source: a path need not exist: its reader says what is wrong with it.
        kind: of the repository.
        weights: False brings only a model's JSON files, which say what it was made for.

    Raises:
        UserError: there is no such repository, or it cannot be downloaded. One in the hub's cache needs no network.
    """
    if not is_repository(source):
        return Path(source)
    from huggingface_hub import snapshot_download

    name, _, revision = source.partition("@")
    wanted = list(_WANTED[kind] if weights else _WANTED[kind][:1])
    with _one_line(
        f"{source} is no folder here and cannot be had from the Hugging Face hub",
        "check the name and the network, log in for a private repository, or download it and name its folder",
    ):
        return Path(snapshot_download(name, repo_type=kind, revision=revision or None, allow_patterns=wanted))


def source_name(folder: Path) -> str:
    """What `resolve` turns into `folder` again on this or, for a repository in the hub's cache, any machine."""
    folder = folder.resolve()
    kind, _, name = folder.parent.parent.name.partition("--")
    if folder.parent.name == "snapshots" and kind in ("models", "datasets"):
        return f"{name.replace('--', '/')}@{folder.name}"
    return str(folder)


def check_push(repository: str) -> None:
    """Ask the hub whom it knows us as, before the work.

    Raises:
        UserError: `repository` is not OWNER/NAME, or there is no token that the hub knows, or no network.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import LocalTokenNotFoundError
    from huggingface_hub.utils import validate_repo_id

    login = "log in with `hf auth login`, or set HF_TOKEN"
    with _one_line(f"--push {repository} is no name on the Hugging Face hub", "give OWNER/NAME"):
        validate_repo_id(repository)
        if "/" not in repository:
            raise ValueError("no owner")
    with _one_line("--push: the Hugging Face hub does not answer as it should", f"check the network, or {login}"):
        try:
            HfApi().whoami()
        except LocalTokenNotFoundError as error:
            raise UserError(f"--push needs a token of the Hugging Face hub that may write: {login}.") from error


def push(folder: Path, repository: str, kind: Kind, *, private: bool = False, tag: str = "") -> str:
    """Make `repository` hold what `folder` holds, with its card; return its address.

    What an earlier upload left and a loader would read is deleted there.

    Args:
        folder: everything in it is uploaded of a model; of a data set its own three folders and its card.
        repository: OWNER/NAME; it is made where it is new.
        kind: of the repository.
        private: a new repository is shown to its owner alone; one that everybody sees is refused.
        tag: put on what is uploaded; '' for none. LeRobot asks for a data set by the version of its layout.

    Raises:
        UserError: there is no network, or the hub refuses. `folder` stays as it is.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError

    api, loaded = HfApi(), list(_WANTED[kind])
    with _one_line(
        f"{folder} is whole, but {repository} on the Hugging Face hub does not hold it",
        "check the network, and that your token may write there",
    ):
        address = str(api.create_repo(repository, repo_type=kind, private=private or None, exist_ok=True))
        if private and not api.repo_info(repository, repo_type=kind).private:
            raise UserError(f"--private: everybody sees {address} already; name another repository, or leave it out.")
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            repo_type=kind,
            allow_patterns=None if kind == "model" else [*loaded, CARD],
            delete_patterns=loaded,
        )
        if tag:
            with suppress(RevisionNotFoundError):  # an earlier upload may have it
                api.delete_tag(repository, tag=tag, repo_type=kind)
            api.create_tag(repository, tag=tag, repo_type=kind)
    return address


@contextmanager
def _one_line(what: str, advice: str) -> Iterator[None]:
    """Turn what the hub's client raises into one UserError line: what failed, why, what to do."""
    from huggingface_hub.errors import HfHubHTTPError

    no_network = cast("type[Exception]", HfHubHTTPError.__bases__[0])  # of the HTTP library that this version uses
    try:
        yield
    except (no_network, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{what} ({' '.join(str(error).split())[:200]}): {advice}.") from error
