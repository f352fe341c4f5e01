"""Downloads from a hub that this file serves itself, with broken connections, wrong bytes and resumption."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.assets import hub

REPOSITORY = "owner/assets"
FILES = {"scenes/a b.xml": b"<mujoco/>" * 50, "scenes/big.png": bytes(range(256)) * 2000, "textures/empty.txt": b""}
LARGE = "scenes/big.png"


class Hub:
    """A hub in this process. cut: file -> how many bytes the next replies send before the connection ends."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.sent = dict(FILES)
        """What is really sent; differs from `files` where the hub lies."""
        self.cut: dict[str, list[int]] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.ranges = True
        self.statuses: list[int] = []
        self.page = 2
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"type": "directory", "path": "scenes", "oid": "0", "size": 0}]
        for path, data in self.files.items():
            oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": oid}
            if path == LARGE:
                entry |= {"oid": "pointer", "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}}
            found.append(entry)
        return found

    def asked(self, path: str) -> list[str | None]:
        """The Range headers of all requests for a file."""
        return [value for asked, value in self.requests if asked == path]

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        hub_ = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                if hub_.statuses:
                    self.send_error(hub_.statuses.pop(0))
                    return
                path = self.path.replace("%20", " ")
                prefix = f"/datasets/{REPOSITORY}/resolve/c0ffee/"
                if path == f"/api/datasets/{REPOSITORY}/revision/main":
                    self._json({"sha": "c0ffee"})
                elif path.startswith(f"/api/datasets/{REPOSITORY}/tree/c0ffee?"):
                    self._page(int(path.partition("&at=")[2] or 0))
                elif path.startswith(prefix) and path.removeprefix(prefix) in hub_.files:
                    self._file(path.removeprefix(prefix))
                else:
                    self.send_error(404)

            def _page(self, at: int) -> None:
                entries, end = hub_.entries(), at + hub_.page
                more = f"{hub_.address}/api/datasets/{REPOSITORY}/tree/c0ffee?recursive=true&at={end}"
                self._json(entries[at:end], {"Link": f'<{more}>; rel="next"'} if end < len(entries) else {})

            def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                for key, text in {**(headers or {}), "Content-Length": str(len(data))}.items():
                    self.send_header(key, text)
                self.end_headers()
                self.wfile.write(data)

            def _file(self, path: str) -> None:
                wanted = self.headers.get("Range")
                hub_.requests.append((path, wanted))
                data = hub_.sent[path]
                first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and hub_.ranges else 0
                self.send_response(206 if first else 200)
                self.send_header("Content-Length", str(len(data) - first))
                self.end_headers()
                ends = hub_.cut.get(path)
                self.wfile.write(data[first:][: ends.pop(0)] if ends else data[first:])

        return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    made = Hub()
    monkeypatch.setenv("HF_ENDPOINT", made.address)
    monkeypatch.setattr(hub, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))
    yield made
    made.server.shutdown()
    made.server.server_close()


def fetch(folder: Path) -> str:
    return hub.download(REPOSITORY, folder, lambda done, total: None)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_files_arrive_with_progress_in_bytes(server: Hub, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert hub.download(REPOSITORY, tmp_path, lambda done, total: seen.append((done, total))) == "c0ffee"
    assert content(tmp_path) == FILES
    total = sum(len(data) for data in FILES.values())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_is_there_and_right_is_not_asked_for_again(server: Hub, tmp_path: Path) -> None:
    fetch(tmp_path)
    server.requests.clear()
    (tmp_path / "scenes" / "a b.xml").write_bytes(b"x" * len(FILES["scenes/a b.xml"]))
    fetch(tmp_path)
    assert content(tmp_path) == FILES
    assert server.requests == [("scenes/a b.xml", None)]


def test_a_broken_connection_is_continued_not_repeated(server: Hub, tmp_path: Path) -> None:
    server.cut[LARGE] = [1000, 70_000]
    fetch(tmp_path)
    assert content(tmp_path) == FILES
    assert server.asked(LARGE) == [None, "bytes=1000-", "bytes=71000-"]


def test_an_interrupted_download_leaves_a_part_that_the_next_call_continues(server: Hub, tmp_path: Path) -> None:
    server.cut[LARGE] = [1000, 0, 0, 0]
    with pytest.raises(
        UserError, match=r"can't download from http://127.*run the command again, it continues"
    ) as error:
        fetch(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / LARGE).exists()
    assert (tmp_path / (LARGE + ".part")).read_bytes() == FILES[LARGE][:1000]
    server.requests.clear()
    fetch(tmp_path)
    assert content(tmp_path) == FILES
    assert server.asked(LARGE) == ["bytes=1000-"]


def test_a_server_without_ranges_sends_everything_again(server: Hub, tmp_path: Path) -> None:
    server.ranges = False
    server.cut[LARGE] = [1000]
    fetch(tmp_path)
    assert content(tmp_path) == FILES


@pytest.mark.parametrize("path", [LARGE, "scenes/a b.xml"])
def test_wrong_bytes_are_never_kept(server: Hub, tmp_path: Path, path: str) -> None:
    server.sent[path] = b"?" + FILES[path][1:]
    with pytest.raises(UserError, match=f"the checksum of {path} is wrong"):
        fetch(tmp_path)
    assert path not in content(tmp_path)
    assert path + ".part" not in content(tmp_path)


def test_a_part_with_wrong_bytes_is_thrown_away(server: Hub, tmp_path: Path) -> None:
    (tmp_path / "scenes").mkdir()
    (tmp_path / (LARGE + ".part")).write_bytes(b"?" * 500)
    fetch(tmp_path)
    assert content(tmp_path) == FILES


def test_a_busy_hub_is_asked_again(server: Hub, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    fetch(tmp_path)
    assert content(tmp_path) == FILES


def test_a_refusal_is_final_and_said(server: Hub, tmp_path: Path) -> None:
    server.statuses = [401]
    with pytest.raises(UserError, match="the hub answers HTTP Error 401: Unauthorized for http://127"):
        fetch(tmp_path)
    assert content(tmp_path) == {}


def test_a_path_outside_the_folder_is_refused(server: Hub, tmp_path: Path) -> None:
    server.files["../evil"] = server.sent["../evil"] = b"x"
    with pytest.raises(UserError, match="outside its folder"):
        fetch(tmp_path / "inner")
    assert content(tmp_path) == {}


def test_no_network_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "_PAUSES_SECONDS", ())
    with pytest.raises(
        UserError, match=r"can't download from http://127.0.0.1:9 .*or use a local copy: --from DIR"
    ) as error:
        fetch(tmp_path)
    assert "\n" not in str(error.value)
    assert content(tmp_path) == {}
