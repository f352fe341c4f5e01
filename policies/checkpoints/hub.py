"""Where a checkpoint or a data set is: a local folder, or a repository of the Hugging Face hub, downloaded once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from embodied_rl.errors import UserError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
# weights, tokenizer and settings; no Python: code of a repository is never run
_WANTED = {
    "model": ("*.json", "*.safetensors", "*.pt", "*.model", "*.jinja", "*.txt"),
    "dataset": ("meta/*", "data/*", "videos/*"),
}
Kind = Literal["model", "dataset"]


def is_repository(source: str) -> bool:
    """Whether `source` names a repository of the hub and not a path, right or mistyped, into a folder that exists."""
    path = Path(source)
    return bool(_HUB_ID.fullmatch(source)) and not path.exists() and not path.parent.is_dir()


def resolve(source: str, kind: Kind = "model") -> Path:
    """The folder of `source`: a path, or OWNER/NAME or OWNER/NAME@REVISION on the hub.

    A repository that is in the hub's cache already is used without a network. UserError when there is no such folder
    or repository, or it cannot be downloaded.
    """
    if Path(source).is_dir():
        return Path(source)
    if not is_repository(source):
        raise UserError(
            f"no checkpoint at {source}: name the folder of a checkpoint or run, or OWNER/NAME on the Hugging Face hub."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name, _, revision = source.partition("@")
    try:
        wanted = list(_WANTED[kind])
        return Path(snapshot_download(name, repo_type=kind, revision=revision or None, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{source} is no folder here and cannot be had from the Hugging Face hub ({reason}): check the name and "
            "the network, log in for a private repository, or download it and name its folder."
        ) from error


def source_name(folder: Path) -> str:
    """What `resolve` turns into `folder` again on this or, for a repository in the hub's cache, any machine."""
    folder = folder.resolve()
    kind, _, name = folder.parent.parent.name.partition("--")
    if folder.parent.name == "snapshots" and kind in ("models", "datasets"):
        return f"{name.replace('--', '/')}@{folder.name}"
    return str(folder)
