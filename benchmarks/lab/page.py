"""Bench figures (JSON) into a Markdown page, between its own marks; nothing else on the page changes.

python -m embodied_rl.benchmarks.lab.page docs/benchmarks.md sim.json loop.json libero.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.benchmarks.backends import COLUMNS as BACKEND_COLUMNS
from embodied_rl.benchmarks.few_episodes import report
from embodied_rl.benchmarks.few_episodes_arms import Result
from embodied_rl.benchmarks.gpu import TABLES as GPU_TABLES
from embodied_rl.benchmarks.pipeline import pipeline_cells
from embodied_rl.benchmarks.report import cell, machine_line, table

Figures = Mapping[str, Any]


def sim_table(figures: Figures) -> list[str]:
    """A row a contender, mode and number of envs."""
    head = ["contender", "mode", "envs", "steps/s", "lowest to highest", "CPU ms a step"]
    rows = [
        [
            row["contender"],
            row["mode"],
            str(row["num_envs"]),
            f"{row['steps_per_s']:.0f}",
            f"{row['low']:.0f} to {row['high']:.0f}",
            f"{row['cpu_ms']:.2f}",
        ]
        for row in sorted(figures["rows"], key=lambda row: (row["mode"], row["num_envs"]))
    ]
    return table(head, rows)


def loop_table(figures: Figures) -> list[str]:
    """A row a stage, and one for all."""
    head = ["stage", "wall ms a decision", "share", "CPU ms a decision"]
    rows = [
        [row["stage"], f"{row['wall_ms']:.2f}", f"{100 * row['share']:.0f} %", f"{row['cpu_ms']:.2f}"]
        for row in figures["rows"]
    ]
    return table(head, rows)


def libero_table(figures: Figures) -> list[str]:
    """A row a task, what is timed, and contender; then memory; then where a control step of ours goes."""
    head = ["task, of one env", "contender", "CPU ms", "lowest to highest", "wall ms", "lowest to highest"]
    rows = [
        [
            f"{_suite(row['task'])}: {'control step, ' if row['of'] != 'reset' else ''}{row['of']}",
            row["contender"],
            *(
                text
                for kind in ("cpu", "wall")
                for text in (f"{row[f'{kind}_ms']:.3g}", f"{row[f'{kind}_low']:.3g} to {row[f'{kind}_high']:.3g}")
            ),
        ]
        for row in figures["rows"]
    ]
    memory = [[_suite(row["task"]), f"{row['official']:.0f}", f"{row['ours']:.2f}"] for row in figures["memory"]]
    tasks = [_suite(row["task"]) for row in figures["memory"]]
    parts = [
        [task, *(f"{value:.3f}" for value in row.values())] for task, row in zip(tasks, figures["parts"], strict=True)
    ]
    return [
        *table(head, rows),
        "",
        *table(["one more env, without cameras", "official, MB", "ours, MB"], memory),
        "",
        *table(["CPU ms of our control step", *figures["parts"][0]], parts),
    ]


def _suite(task: str) -> str:
    return task.partition("/")[0]


def policy_table(figures: Figures) -> list[str]:
    """A row a contender of every comparison."""
    rows = [
        [
            f"{row['network']}, {row['tokens']} tokens" if "network" in row else row["task"],
            row["contender"],
            f"{row['cpu_ms']:.1f}",
            f"{row['low']:.1f} to {row['high']:.1f}",
        ]
        for row in figures["rows"]
    ]
    return table(["what", "contender", "CPU ms a decision", "lowest to highest"], rows)


def pipeline_table(figures: Figures) -> list[str]:
    """A row a profile and scheduler; then, where the real part ran, a row a turn with each scheduler's speed."""
    rows = [[row["profile"], row["mode"], *pipeline_cells(row)] for row in figures["rows"]]
    head = ["stages that only wait", "scheduler", "env groups", "groups ahead", "micro-batch", "ms a decision"]
    head += ["of the bound", "of its own bound"]
    lines = table(head, rows) if rows else []
    if figures["real"]:
        names = list(dict.fromkeys(row["scheduler"] for row in sorted(figures["real"], key=lambda row: row["turn"])))
        speed = {(row["turn"], row["scheduler"]): row["decisions_per_s"] for row in figures["real"]}
        turns = sorted({turn for turn, _ in speed})
        real = [[str(turn + 1), *(f"{speed[turn, name]:.1f}" for name in names)] for turn in turns]
        lines += [*([""] if lines else []), *table(["really: turn, decisions/s", *names], real)]
    return lines


def vla_table(figures: Figures) -> list[str]:
    """A row a part and number of rows; memory where it was measured."""
    head = ["part", "rows", "ms a row", "lowest to highest", "planned, GiB", "allocated", "reserved"]
    memory = ("planned_gib", "allocated_gib", "reserved_gib")
    rows = [
        [
            row["part"],
            str(row["rows"]),
            f"{row['ms']:.1f}",
            f"{row['low']:.1f} to {row['high']:.1f}",
            *("" if row[name] is None else f"{row[name]:.2f}" for name in memory),
        ]
        for row in figures["rows"]
    ]
    return table(head, rows)


def gpu_table(figures: Figures) -> list[str]:
    """A table for policies, one for renderers and one for schedulers, of the parts that were measured."""
    lines: list[str] = []
    for _, parts, columns in GPU_TABLES:
        if rows := [row for row in figures["rows"] if row["part"] in parts]:
            cells = [[cell(row.get(name)) for name in columns.values()] for row in rows]
            lines += [*([""] if lines else []), *table(list(columns), cells)]
    failed = [f"- part {name} failed: {reason}" for name, reason in figures["failures"].items()]
    return [*lines, *([""] if failed else []), *failed]


def backends_table(figures: Figures) -> list[str]:
    """A row a backend, number of envs, mode and size; then what is not installed, and what failed."""
    rows = [[cell(row[name] or None) for name in BACKEND_COLUMNS.values()] for row in figures["rows"]]
    notes = [f"- {name}: not measured, {reason}" for name, reason in figures["missing"].items()]
    notes += [f"- {name} failed: {reason}" for name, reason in figures["failures"].items()]
    return [*table(list(BACKEND_COLUMNS), rows), *([""] if notes else []), *notes]


def few_episodes_table(figures: Figures) -> list[str]:
    """A table a start, a row an arm; and one of the detectors."""
    return report([Result(**row) for row in figures["rows"]])[:-1]


TABLES: dict[str, Callable[[Figures], list[str]]] = {
    "sim": sim_table,
    "loop": loop_table,
    "libero": libero_table,
    "policy": policy_table,
    "pipeline": pipeline_table,
    "vla": vla_table,
    "few-episodes": few_episodes_table,
    "gpu": gpu_table,
    "backends": backends_table,
}


def section(figures: Figures) -> str:
    """What stands between the marks: command, machine, set-up, rows, ratios."""
    machine = figures["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in machine if name not in ("cpu", "cores", "load_before"))
    lines = [f"`{figures['command']}` on {machine_line(machine)}; {versions}."]
    if figures["quick"]:
        lines.append("**Made with `--quick`: not to be quoted.**")
    if "setup" in figures:
        lines.append("; ".join(f"{name} {value}" for name, value in figures["setup"].items()) + ".")
    bench = figures["bench"].split()[0]
    lines = [" ".join(lines), "", *TABLES[bench](figures)]
    if bench not in ("backends", "few-episodes"):  # whose ratios are the rows again
        values = [[f"`{name}`", f"{value:.4g}"] for name, value in figures["ratios"].items()]
        lines += ["", *table(["ratio", "value"], values)]
    return "\n".join(lines)


_GPU_SECTIONS = {"gpu policies": ("act", "update"), "gpu loop": ("render", "pictures", "nano", "loaded")}
"""Sections of `bench gpu` on the page, and the parts whose figures are in each."""


def _gpu_parts(figures: Figures) -> list[Figures]:
    found: list[Figures] = []
    for bench, parts in _GPU_SECTIONS.items():
        rows = [row for row in figures["rows"] if row["part"] in parts]
        failures = {name: reason for name, reason in figures["failures"].items() if name in parts}
        starts = tuple("draw." if part == "render" else f"{part}." for part in parts)
        ratios = {name: value for name, value in figures["ratios"].items() if name.startswith(starts)}
        if rows or failures:
            found.append({**figures, "bench": bench, "rows": rows, "failures": failures, "ratios": ratios})
    return found


def parts_of(figures: Figures) -> list[Figures]:
    """The sections that a file has figures of.

    Whole runs of bench pipeline and bench gpu have two; bench backends has one on a GPU and one on a CPU.
    """
    if figures["bench"] == "gpu":
        return _gpu_parts(figures)
    if figures["bench"] == "backends" and "gpu" not in figures["machine"]:
        return [{**figures, "bench": "backends cpu"}]
    if figures["bench"] != "pipeline":
        return [figures]
    real = {name: value for name, value in figures["ratios"].items() if name.startswith("real.")}
    timed = {name: value for name, value in figures["ratios"].items() if name not in real}
    parts: list[Figures] = [{**figures, "bench": "pipeline timed", "real": [], "ratios": timed}]
    if figures["real"]:
        parts.append({**figures, "bench": "pipeline real", "rows": [], "ratios": real})
    return parts


def fill(page: str, figures: Figures) -> str:
    """`page` with the sections of this file replaced; ValueError if it has no marks for one."""
    for part in parts_of(figures):
        page = _fill(page, part)
    return page


def _fill(page: str, figures: Figures) -> str:
    start, end = (f"<!-- {word} of {figures['bench']} -->" for word in ("figures", "end"))
    head, found, rest = page.partition(start)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no lines '{start}' and '{end}'")
    return f"{head}{start}\n{section(figures)}\n{end}{tail}"


def main(argv: Sequence[str]) -> int:
    """PAGE JSON...: fill the page in place."""
    if len(argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    path = Path(argv[0])
    page = path.read_text(encoding="utf-8")
    for name in argv[1:]:
        page = fill(page, json.loads(Path(name).read_text(encoding="utf-8")))
    path.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
