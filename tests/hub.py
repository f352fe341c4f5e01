"""A stand-in for the Hugging Face hub's HTTP API, on this machine: huggingface_hub's own code asks it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

TOKEN = "hf_of_lab"
_LFS = (".safetensors", ".parquet", ".mp4")


@dataclass
class Repository:
    """Files of the newest commit; every earlier one is forgotten. tags: the commit that each is on."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def sha(self) -> str:
        return hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(self.files.items()))).hexdigest()


@dataclass
class Hub:
    """What the hub holds and was asked.

    repositories: by their path, such as datasets/lab/demos or models/lab/policy. asked: method and path. refuse: a part
    of a path, by method and path, that is answered with 403. large: contents that LFS holds.
    """

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refuse: str = ""
    large: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, folder: Path) -> Repository:
        """Put a folder there, under a path such as models/lab/policy."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.repositories.setdefault(name, Repository(files=files))


class _Refused(Exception):
    """The answer is this status."""

    def __init__(self, status: int, code: str = "", body: object = None) -> None:
        super().__init__(f"refused with {status}")
        self.status, self.code, self.body = status, code, body


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        line = f"{self.command} {self.path.partition('?')[0]}"
        self.hub.asked.append(line)
        try:
            if self.hub.refuse and self.hub.refuse in line:
                raise _Refused(403)
            content, headers = self._answer(line, body)
            status = 200
        except _Refused as error:
            status, content = error.status, json.dumps(error.body or {}).encode()
            headers = {"X-Error-Code": error.code, "X-Error-Message": "refused"}
        except KeyError:
            status, content, headers = 404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no such repo"}
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _answer(self, line: str, body: bytes) -> tuple[bytes, dict[str, str]]:
        writes = self.command in ("POST", "DELETE") or "whoami" in line
        if writes and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refused(401)
        if self.command == "PUT":
            self.hub.large[hashlib.sha256(body).hexdigest()] = body
            return b"", {"ETag": '"x"'}
        if "/resolve/" in line:
            return self._file(line)
        said = json.loads(body) if body and "/commit/" not in line else {}
        return json.dumps(self._json(line, said, body)).encode(), {"Content-Type": "application/json"}

    def _file(self, line: str) -> tuple[bytes, dict[str, str]]:
        found = re.fullmatch(r"\w+ /(datasets/)?(\w+/[\w.-]+)/resolve/[^/]+/(.+)", line)
        assert found, line
        repository = self.hub.repositories[f"{found[1] or 'models/'}{found[2]}"]
        content = repository.files[found[3]]
        return content, {"X-Repo-Commit": repository.sha, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}

    def _json(self, line: str, said: Any, body: bytes) -> Any:
        if "whoami" in line:
            return {"name": "lab", "type": "user", "orgs": []}
        if "validate-yaml" in line:
            assert said["content"].startswith("---\n"), "the hub wants front matter at the very start"
            return {"errors": [], "warnings": []}
        if line.endswith("/repos/create"):
            name = f"{said['type']}s/{said['organization']}/{said['name']}"
            answer = {"url": f"{self.hub.address}/{name.removeprefix('models/')}"}
            if name in self.hub.repositories:
                raise _Refused(409, body=answer)
            self.hub.repositories[name] = Repository(
                private=said.get("visibility") == "private" or bool(said.get("private"))
            )
            return answer
        if "/info/lfs/" in line:
            put = {"upload": {"href": f"{self.hub.address}/put"}}
            return {"transfer": "basic", "objects": [item | {"actions": put} for item in said["objects"]]}
        found = re.fullmatch(r"(\w+) /api/(\w+/\w+/[\w.-]+)(?:/(\w+)/([^/]+))?", line)
        if found is None:  # what else a client may ask for
            raise KeyError(line)
        repository = self.hub.repositories[found[2]]
        return self._of(repository, found[2].partition("/")[2], found[3], found[4], said, body)

    def _of(self, there: Repository, name: str, what: str, which: str, said: Any, body: bytes) -> Any:
        if what == "tree":
            return [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in there.files.items()
            ]
        if what == "preupload":
            modes = {item["path"]: "lfs" if item["path"].endswith(_LFS) else "regular" for item in said["files"]}
            return {"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]}
        if what == "commit":
            self._commit(there, body)
            return {
                "success": True,
                "commitOid": there.sha,
                "commitUrl": f"{self.hub.address}/{name}/commit/{there.sha}",
            }
        if what == "tag" and self.command == "DELETE":
            if which not in there.tags:
                raise _Refused(404, "RevisionNotFound")
            del there.tags[which]
        elif what == "tag":
            if said["tag"] in there.tags:
                raise _Refused(409)
            there.tags[said["tag"]] = there.sha
        elif what == "revision" and which not in ("main", there.sha, *there.tags):
            raise _Refused(404, "RevisionNotFound")
        siblings = [{"rfilename": path} for path in there.files]
        return {"id": name, "sha": there.sha, "private": there.private, "siblings": siblings}

    def _commit(self, there: Repository, body: bytes) -> None:
        for item in map(json.loads, body.splitlines()):
            value = item["value"]
            if item["key"] == "file":
                there.files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                there.files[value["path"]] = self.hub.large[value["oid"]]
            elif item["key"] == "deletedFile":
                del there.files[value["path"]]
        there.commits += 1

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def opened(cache: Path) -> Iterator[Hub]:
    """The stand-in, asked in place of the hub by this process, with an empty cache and its owner logged in."""
    from huggingface_hub import constants

    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, pytest.MonkeyPatch.context() as patch:
        Thread(target=server.serve_forever, daemon=True).start()
        hub.address = f"http://127.0.0.1:{server.server_port}"
        patch.setattr(constants, "ENDPOINT", hub.address)
        patch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # which speaks to a service of its own
        patch.setattr("huggingface_hub.hf_api.api.endpoint", hub.address)
        patch.setenv("HF_TOKEN", TOKEN)
        yield hub
        server.shutdown()
