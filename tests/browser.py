"""A page in headless Chromium, for tests that look at it and use it as a person does.

`python -m tests.browser ADDRESS FILE.jpg` writes a picture of one that draws with WebGL, after some seconds.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
_SOFTWARE_GL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")


class Tab:
    """A page in a browser, over Chromium's DevTools protocol."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._count = 0
        self.errors: list[str] = []

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=900))
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(str(message["params"]))
            if message.get("id") == self._count:
                return message["result"]

    def value(self, code: str) -> Any:
        return self.ask("Runtime.evaluate", expression=code, returnByValue=True)["result"].get("value")

    def picture(self, kind: Literal["png", "jpeg"] = "png") -> bytes:
        """What it shows, as a file."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format=kind)["data"])

    def press(self, key: str) -> None:
        """'Tab', 'Enter', or a digit."""
        code = {"Tab": 9, "Enter": 13}.get(key) or ord(key)
        text = {"text": "\r"} if key == "Enter" else {"text": key} if key.isdigit() else {}
        name = f"Digit{key}" if key.isdigit() else key
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=name, windowsVirtualKeyCode=code, **more)


def until(asked: Callable[[], Any]) -> Any:
    """The first answer that is something; the number of questions is there only so that nothing hangs for ever."""
    for _ in range(12_000):
        if answer := asked():
            return answer
        time.sleep(0.05)
    raise AssertionError("the browser does not answer")


@contextmanager
def opened(address: str, profile: Path, *, gl: bool = False) -> Iterator[Tab]:
    """The page at `address`; gl: it draws with WebGL, which is done in software."""
    from websockets.sync.client import connect

    flags = ["--headless=new", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    flags += ["--window-size=1200,900"]
    flags += _SOFTWARE_GL if gl else ["--disable-gpu"]
    browser = subprocess.Popen([BROWSER, *flags, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        file = profile / "DevToolsActivePort"
        until(lambda: file.is_file() and "\n" in file.read_text())
        port = file.read_text().split()[0]
        (found,) = until(lambda: _pages(port))
        with connect(found, max_size=None, proxy=None) as socket:
            tab = Tab(socket)
            for domain in ("Runtime", "Log", "Page"):
                tab.ask(f"{domain}.enable")
            tab.ask("Page.reload")
            yield tab
    finally:
        browser.kill()
        browser.wait()


def _pages(port: str) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
        return [page["webSocketDebuggerUrl"] for page in json.load(answer) if page["type"] == "page"]


def main(address: str, file: str) -> None:
    with tempfile.TemporaryDirectory() as profile, opened(address, Path(profile), gl=True) as tab:
        time.sleep(20)
        tab.value("document.querySelector('[class*=Notification] button')?.click()")  # that it is drawn in software
        time.sleep(2)
        Path(file).write_bytes(tab.picture("jpeg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
