"""Downloads a data set from the Hugging Face hub, and checks every file against the hub's own checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from embodied_rl.errors import UserError

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

LIBERO_ASSETS = "lerobot/libero-assets"


def download(repository: str, folder: Path) -> str:
    """Bring all files of data set `repository` into `folder`; a download that was interrupted is continued.

    Returns:
        Where the files are from: the address of the data set, @ and its commit.

    Raises:
        UserError: the hub cannot be reached, or a file is not what the hub promised; such a file is removed.
    """
    from huggingface_hub import HfApi, RepoFile, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    # HfHubHTTPError derives from OSError and from the base of all errors of the HTTP library that the client uses
    failures = cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__)
    api = HfApi()
    try:
        commit = api.dataset_info(repository).sha
        entries = api.list_repo_tree(repository, recursive=True, revision=commit, repo_type="dataset")
        files = [entry for entry in entries if isinstance(entry, RepoFile)]
        for file in files:
            path = PurePosixPath(file.path)
            if path.is_absolute() or ".." in path.parts:
                raise UserError(f"the hub lists a file outside its folder ({path}); nothing was downloaded")
        snapshot_download(repository, repo_type="dataset", revision=commit, local_dir=folder)
    except failures as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"can't download {repository} from {api.endpoint} ({reason}); check the network and run the command "
            "again, it continues where it stopped; or use a local copy: --from DIR"
        ) from None
    for file in files:
        if not _is_intact(file, folder / file.path):
            (folder / file.path).unlink(missing_ok=True)
            raise UserError(f"the checksum of {file.path} is wrong; run the command again")
    return f"{api.endpoint}/datasets/{repository}@{commit}"


def _is_intact(file: RepoFile, path: Path) -> bool:
    """Whether `path` holds `file`: by the SHA-256 of a large (LFS) file, else by Git's SHA-1 of a blob."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    digest = hashlib.sha256() if file.lfs else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with open(path, "rb") as source:
        while piece := source.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest() == (file.lfs.sha256 if file.lfs else file.blob_id)
