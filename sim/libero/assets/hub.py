"""Downloads a data set from the Hugging Face hub: resumable, every file checked against the hub's own checksum."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

from embodied_rl.errors import UserError

LIBERO_ASSETS = "lerobot/libero-assets"
_PIECE = 1 << 20
_THREADS = 8
_TIMEOUT_SECONDS = 60
_PAUSES_SECONDS = (1.0, 4.0, 10.0)
"""Between the tries of one request."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. digest: SHA-256 of a large (LFS) file, else Git's SHA-1 of a blob."""

    path: str
    size: int
    digest: str
    large: bool

    def matches(self, path: Path) -> bool:
        """Whether the file at `path` is this one."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        digest = hashlib.sha256() if self.large else hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        with open(path, "rb") as source:
            while piece := source.read(_PIECE):
                digest.update(piece)
        return digest.hexdigest() == self.digest


def endpoint() -> str:
    """The hub's address: $HF_ENDPOINT, else the public one."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def download(repository: str, folder: Path, progress: Callable[[int, int], None]) -> str:
    """Bring all files of data set `repository` into `folder`; returns the commit that they are from.

    Files that are there and right are kept, a half one (its name ends in .part) is continued. progress(done, total) is
    called in bytes. UserError when the hub cannot be reached or sends something else than it promised.
    """
    info, _ = _ask(f"{endpoint()}/api/datasets/{repository}/revision/main")
    commit = str(info["sha"])
    files = _listing(repository, commit)
    total, done = sum(file.size for file in files), 0

    def bring(file: HubFile) -> int:
        _bring(f"{endpoint()}/datasets/{repository}/resolve/{commit}/{quote(file.path)}", file, folder / file.path)
        return file.size

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for size in pool.map(bring, files):
                done += size
                progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return commit


def _listing(repository: str, commit: str) -> list[HubFile]:
    found: list[HubFile] = []
    page: str | None = f"{endpoint()}/api/datasets/{repository}/tree/{commit}?recursive=true"
    while page:
        entries, page = _ask(page)
        for entry in entries:
            if entry["type"] != "file":
                continue
            path = PurePosixPath(entry["path"])
            if path.is_absolute() or ".." in path.parts:
                raise UserError(f"the hub lists a file outside its folder ({path}); nothing was downloaded")
            large = entry.get("lfs")
            digest = large["oid"] if large else entry["oid"]
            found.append(HubFile(str(path), int(entry["size"]), digest, bool(large)))
    return found


def _ask(address: str) -> tuple[Any, str | None]:
    """The JSON at an address, and the address of the next page."""

    def once() -> tuple[Any, str | None]:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as reply:
            link = reply.headers.get("Link") or ""
            following = link[link.index("<") + 1 : link.index(">")] if 'rel="next"' in link else None
            return json.load(reply), following

    return _insist(once, address)


def _insist(job: Callable[[], T], address: str) -> T:
    """Do `job`; when the network fails, again after a pause. UserError when it fails for good."""
    for pause in (*_PAUSES_SECONDS, None):
        try:
            return job()
        except (OSError, http.client.HTTPException, ValueError) as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if final:
                raise UserError(f"the hub answers {error} for {address}") from None
            if pause is None:
                reason = getattr(error, "reason", error)
                raise UserError(
                    f"can't download from {endpoint()} ({reason}); check the network and run the command again, it "
                    "continues where it stopped; or use a local copy: --from DIR"
                ) from None
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _bring(address: str, file: HubFile, target: Path) -> None:
    """Put `file` at `target`, which has it whole or not at all."""
    if file.matches(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")

    def once() -> None:
        _append(address, file, part)
        if not file.matches(part):
            part.unlink()
            raise OSError(f"the checksum of {file.path} is wrong")

    _insist(once, address)
    os.replace(part, target)


def _append(address: str, file: HubFile, part: Path) -> None:
    """Add to `part` what it lacks. OSError when the connection ends early."""
    have = part.stat().st_size if part.is_file() else 0
    if have >= file.size > 0:
        return  # a whole one is right or wrong as a whole: the caller's checksum decides
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    with ExitStack() as stack:
        reply = stack.enter_context(urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS))
        # a server that ignores Range sends everything again
        out = stack.enter_context(open(part, "ab" if reply.status == http.HTTPStatus.PARTIAL_CONTENT else "wb"))
        while piece := reply.read(_PIECE):
            out.write(piece)
    if part.stat().st_size < file.size:
        raise OSError(f"the connection ended inside {file.path}")
