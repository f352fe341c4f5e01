"""Parts of a bench, each in a process of its own: what breaks or hangs in one costs the others nothing.

A part is a generator of rows. Its process appends every row to a file as a line of JSON as soon as it is measured, so a
part that is killed keeps the rows that it has.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.errors import UserError, suggest

if TYPE_CHECKING:
    from rich.console import Console

Row = dict[str, Any]
Work = Callable[[bool], Iterator[Row]]
"""Measures a part; the argument is --quick."""


@dataclass(frozen=True, slots=True)
class Part:
    """seconds: after which its process is ended."""

    name: str
    seconds: float


def choose(only: str | None, parts: Sequence[Part]) -> list[Part]:
    """The parts of --only, a comma-separated list of names, in the bench's order; all for None. UserError otherwise."""
    if only is None:
        return list(parts)
    names = [name.strip() for name in only.split(",")]
    known = [part.name for part in parts]
    for name in names:
        if name not in known:
            raise UserError(f"--only: unknown part '{name}'.{suggest(name, known)} Parts: {', '.join(known)}.")
    return [part for part in parts if part.name in names]


def patient(parts: Sequence[Part]) -> list[Part]:
    """The parts with ten times as long: for machines without a GPU, which also compile what a GPU does without."""
    return [replace(part, seconds=10 * part.seconds) for part in parts]


def run_parts(
    module: str, parts: Sequence[Part], quick: bool, console: Console, save: Callable[[list[Row], Row], object]
) -> tuple[list[Row], Row]:
    """Run parts one after the other; the child process is `python -m MODULE PART FILE`, whose `__main__` calls `serve`.

    Args:
        save: gets all rows and failures so far after each part.

    Returns:
        Rows, each with its `part`, and failures: the last line of what a failed part said, by part.
    """
    rows: list[Row] = []
    failures: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            file, said = Path(folder) / f"{part.name}.jsonl", Path(folder) / f"{part.name}.txt"
            file.touch()
            began = time.perf_counter()
            console.print(f"{part.name} ...", highlight=False)
            failure = _run_one(module, part, file, said, quick)
            rows += [{"part": part.name} | json.loads(line) for line in file.read_text().splitlines()]
            text = said.read_text(errors="replace").strip()
            if failure:
                failures[part.name] = f"{failure}: {text.splitlines()[-1]}" if text else failure
                sys.stderr.write(f"{text}\nbench: part {part.name} failed: {failure}\n")
            console.print(f"{part.name}: {time.perf_counter() - began:.1f} s", highlight=False)
            save(rows, failures)
    return rows, failures


def _run_one(module: str, part: Part, file: Path, said: Path, quick: bool) -> str | None:
    """Why the part failed, None if it did not."""
    command = [sys.executable, "-m", module, part.name, str(file), *(["--quick"] if quick else [])]
    with said.open("wb") as err:
        try:
            code = subprocess.run(command, stderr=err, timeout=part.seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            return f"ended after {part.seconds:g} s"
    return f"exit code {code}" if code else None


def serve(argv: Sequence[str], works: Mapping[str, Work]) -> int:
    """PART FILE [--quick], in the child process: measure, write the rows and print them."""
    name, file, *options = argv
    try:
        with Path(file).open("a", encoding="utf-8") as out:
            for row in works[name]("--quick" in options):
                out.write(json.dumps(row) + "\n")
                out.flush()
                print("  " + line_of(row), flush=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except Exception:  # noqa: BLE001 - the parent reports it
        traceback.print_exc()
        return 1
    return 0


def line_of(row: Mapping[str, Any]) -> str:
    """A row in one line, as progress."""
    return ", ".join(
        f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in row.items() if value != ""
    )
