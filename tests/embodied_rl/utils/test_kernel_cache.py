"""An installation and a home that cannot be written still start, and say where the kernels go."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from embodied_rl.utils import kernel_cache
from embodied_rl.utils.kernel_cache import folder_of_cache, use_writable_cache


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Only the temporary folder, which is returned, can be written. (Root can write anywhere, so this is pretended.)"""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_can_write", lambda folder: tmp_path in (folder, *folder.parents))
    return tmp_path


def test_a_folder_that_can_be_written_is_left_alone() -> None:
    environ = {"NUMBA_CACHE_DIR": tempfile.gettempdir()}
    assert use_writable_cache(environ) is None
    assert environ == {"NUMBA_CACHE_DIR": tempfile.gettempdir()}


def test_nothing_can_be_written_but_the_temporary_folder(locked: Path) -> None:
    environ: dict[str, str] = {}
    line = use_writable_cache(environ)
    folder = Path(environ["NUMBA_CACHE_DIR"])
    assert line is not None
    assert str(folder) in line
    assert folder.parent == locked
    assert folder.stat().st_mode & 0o077 == 0
    assert folder_of_cache(environ) == (folder, False)
    assert use_writable_cache(environ) is None


def test_a_folder_that_others_prepared_is_not_trusted(locked: Path) -> None:
    """numba unpickles what lies there."""
    bait = locked / f"embodied-rl-kernels-{os.getuid()}"
    bait.mkdir()
    bait.chmod(0o777)
    environ: dict[str, str] = {}
    assert use_writable_cache(environ)
    assert Path(environ["NUMBA_CACHE_DIR"]) != bait
