"""run.json: what each session of a run was, a `RunInfo` for each, oldest first. A run may be resumed elsewhere."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.telemetry.info import VERSION, EarlierRunInfo, RunInfo, SessionEnd
from embodied_rl.utils.dataclass_io import read_dataclass
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.processes import peak_memory

RUN_INFO = "run.json"
_REMOVE = "remove it and resume; only what it says of earlier sessions is lost."

Session = RunInfo | EarlierRunInfo


def add_session(folder: Path, info: RunInfo, *, resume: bool) -> None:
    """Begin the file, or a further session in it; UserError when it is damaged."""
    earlier = _entries(folder) if resume and (folder / RUN_INFO).is_file() else []
    _write(folder, [*earlier, asdict(info)])


def end_session(
    folder: Path, began: float, *, finished: bool, score_before: float | None = None, score_after: float | None = None
) -> None:
    """Say how the newest session ended; a killed one has no end.

    Args:
        folder: of the run.
        began: `time.perf_counter()` when the session started.
        finished, score_before, score_after: as of `SessionEnd`.
    """
    *earlier, last = _entries(folder)
    end = SessionEnd(
        finished=finished,
        score_before=score_before,
        score_after=score_after,
        seconds=round(time.perf_counter() - began, 1),
        cpu_seconds=round(time.process_time(), 1),
        peak_memory_bytes=peak_memory(),
    )
    _write(folder, [*earlier, last | {"end": asdict(end)}])


def read_run_info(folder: Path) -> list[Session]:
    """The sessions of a run, oldest first; UserError when the file is damaged or of a later version."""
    return [_session(entry, str(folder / RUN_INFO)) for entry in _entries(folder)]


def is_finished(folder: Path) -> bool:
    """Whether the newest session came to the run's end."""
    if not (folder / RUN_INFO).is_file():
        return False
    end = read_run_info(folder)[-1].end
    return end is not None and end.finished


def check_bundles(folder: Path, suite: str, bundles: str) -> None:
    """UserError where the run in `folder` began on other bundles of LIBERO's tasks than are installed now.

    bundles: `factory.tasks.bundles_digest` of the tasks.
    """
    if (folder / RUN_INFO).is_file() and (read_run_info(folder)[0].bundles or bundles) != bundles:
        raise UserError(
            f"{folder} began on other bundles of {suite} than are installed now, so it can't go on as it was: "
            "begin a new run (--policy.checkpoint names this one's policy)."
        )


def _entries(folder: Path) -> list[dict[str, Any]]:
    path = folder / RUN_INFO
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): {_REMOVE}") from error
    if not (isinstance(entries, list) and entries and all(isinstance(entry, dict) for entry in entries)):
        raise UserError(f"{path} is damaged (no list of sessions): {_REMOVE}")
    return entries


def _session(entry: dict[str, Any], source: str) -> Session:
    version = entry.get("version", 1)
    if version == 1:
        return _earlier(entry)
    if version != VERSION:
        raise UserError(f"{source} is of version {version}, and this embodied-rl reads {VERSION}: use a newer one.")
    try:
        return read_dataclass(RunInfo, entry, where="session", source=source)
    except UserError as error:
        raise UserError(f"{source} is damaged ({error}): {_REMOVE}") from error


def _earlier(entry: dict[str, Any]) -> EarlierRunInfo:
    """A session of version 1: sentences by name, and a few plain values among them."""
    took = {name: entry.get(name) for name in ("seconds", "cpu_seconds", "peak_memory_bytes")}
    ended = "finished" in entry
    return EarlierRunInfo(
        words={name: str(value) for name, value in entry.items() if name not in (*took, "finished", "repeatable")},
        command=entry.get("command", ""),
        bundles=entry.get("bundles", ""),
        repeatable=entry.get("repeatable", True),
        end=SessionEnd(finished=entry["finished"], score_before=None, score_after=None, **took) if ended else None,
    )


def _write(folder: Path, entries: list[dict[str, Any]]) -> None:
    replace_text(folder / RUN_INFO, json.dumps(entries, indent=1))
