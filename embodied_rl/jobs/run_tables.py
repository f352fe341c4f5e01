"""What `runs list`, `runs show` and `runs export` say of training runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.jobs.describe import memory_words, run_words
from embodied_rl.jobs.reference_runs import reference_for, reference_line
from embodied_rl.jobs.run_records import RunRecord, find_runs, read_record
from embodied_rl.telemetry.tables import NOT_REPEATABLE
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted, time_spent

_SHOWN = (
    *("suite", "policy", "weights", "algorithm", "scheduler"),
    *("simulator", "renderer", "device", "machine", "versions"),
)
"""Of `run_words`, in this order."""


_HEADS = ("run", "what", "seed", "updates", "held-out", "CPU time", "state")


def list_lines(root: Path, width: int | None = None) -> list[str]:
    """The runs in a folder, each on one line; a run that cannot be read says why.

    width: columns of a terminal; where a line is longer, each run has its name on one line and the rest below. None:
        nobody reads it on a terminal.
    """
    rows, broken = [], []
    for folder in find_runs(root):
        name = str(folder.relative_to(root))
        try:
            rows.append((name, *_listed(read_record(folder))))
        except UserError as error:
            broken.append(f"{name}: {error}")
    sizes = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    if width is not None and sum(sizes) + 2 * len(sizes) > width:
        lines = []
        for name, what, seed, updates, held_out, cpu, state in rows:
            parts = (what, f"seed {seed}", f"{updates} updates", held_out, f"{cpu} of CPU time" if cpu else "", state)
            lines += [name, f"  {', '.join(filter(None, parts))}"]
        return lines + broken
    table = [_HEADS, *rows] if rows else []
    return [
        "  ".join(text.ljust(size) for text, size in zip(row, sizes, strict=True)).rstrip() for row in table
    ] + broken


def _listed(record: RunRecord) -> tuple[str, ...]:
    """The columns of a run after its name."""
    ends = " -> ".join(filter(None, record.ends()))
    by_success = any("eval/success" in row for row in record.metrics)
    return (
        f"{record.config.suite} {record.title}",
        str(record.config.seed),
        f"{record.updates}/{record.config.iterations}",
        f"{'success' if by_success else 'return'} {ends}" if ends else "not evaluated",
        time_spent(seconds) if (seconds := record.cpu_seconds) is not None else "",
        "finished" if record.finished else "not finished",
    )


def show_lines(record: RunRecord) -> list[str]:
    """Everything that a reader asks first."""
    words = run_words(record.sessions[-1], record.config)
    rows = {name: words[name] for name in _SHOWN if name in words}
    rows["command"] = record.sessions[-1].command
    rows["sessions"] = counted(len(record.sessions), "session")
    seconds = record.cpu_seconds
    rows["CPU time"] = "not known: a session says it when it ends" if seconds is None else time_spent(seconds)
    if seconds is not None and any(session.end is None for session in record.sessions):
        rows["CPU time"] += ", killed ones apart"
    if (peak := record.peak_memory_bytes) is not None:
        rows["memory"] = memory_words(peak)
    rows["updates"] = f"{record.updates} of {record.config.iterations}"
    if not record.repeatable:
        rows["repeats"] = NOT_REPEATABLE
    before, after = record.ends()
    rows["held-out"] = " -> ".join(part for part in (before, after) if part) or "not evaluated yet"
    lines = [f"  {name:<12}{value}" for name, value in rows.items()]
    reference = reference_for(record.config)
    if reference is not None:
        lines.append(f"  {'reference':<12}{reference_line(reference)}")
    return lines + extrapolation_lines(record)


def extrapolation_lines(record: RunRecord) -> list[str]:
    """Where an unfinished run will end."""
    if record.finished or (said := record.extrapolate()) is None:
        return []
    share = record.updates / record.config.iterations
    interval = f"{said.low:.1%} to {said.high:.1%}"
    return [f"  {'at the end':<12}{said.expected:.1%} ({interval}), extrapolated from {share:.0%} of the run"]


def export_runs(records: Sequence[RunRecord], out: Path) -> None:
    """Write runs.json (all but the metrics) and metrics.parquet (run, step, name, value) into the folder `out`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / "runs.json", json.dumps([record.to_json() for record in records], indent=1) + "\n")
    columns: dict[str, list[Any]] = {"run": [], "step": [], "name": [], "value": []}
    for record in records:
        for row in record.metrics:
            for name, value in row.items():
                if name != "step":
                    for key, item in zip(columns, (str(record.folder), row["step"], name, value), strict=True):
                        columns[key].append(item)
    schema = pa.schema([("run", pa.string()), ("step", pa.int64()), ("name", pa.string()), ("value", pa.float64())])
    pq.write_table(pa.table(columns, schema=schema), out / "metrics.parquet")
