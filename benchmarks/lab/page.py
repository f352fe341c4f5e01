"""Bench figures (JSON) into the tables of a Markdown page, between its own marks; nothing else on the page changes.

python -m embodied_rl.benchmarks.lab.page docs/benchmarks.md docs/results/bench/*.json

A table holds what a reader compares; every figure stays in its JSON file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from embodied_rl.benchmarks.few_episodes import report
from embodied_rl.benchmarks.few_episodes_arms import Result
from embodied_rl.benchmarks.report import cell, machine_line, table

Figures = Mapping[str, Any]
COMPARED_AT = 8
"""Envs at which the contenders of bench sim are compared."""


def _spread(row: Mapping[str, Any], name: str, digits: int = 0, low: str = "low", high: str = "high") -> str:
    """A figure with its lowest and highest repeat."""
    return f"{row[name]:.{digits}f} ({row[low]:.{digits}f} to {row[high]:.{digits}f})"


def _range(values: Iterable[float], digits: int) -> str:
    """The median, with the lowest and the highest."""
    each = sorted(values)
    return f"{median(each):.{digits}f} ({each[0]:.{digits}f} to {each[-1]:.{digits}f})"


def _times(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sim_table(figures: Figures) -> list[str]:
    """A row a contender: control steps a second without and with cameras, and ours over it."""
    found = {(row["contender"], row["mode"]): row for row in figures["rows"] if row["num_envs"] == COMPARED_AT}
    rows = []
    for name in dict.fromkeys(contender for contender, _ in found):
        rows.append([name])
        for mode in ("physics", "cameras"):
            row, ours = found[name, mode], found["ours", mode]
            rows[-1] += [_spread(row, "steps_per_s"), f"{ours['steps_per_s'] / row['steps_per_s']:.1f}"]
    return table(["contender", "steps/s, physics", "ours / it", "steps/s, cameras", "ours / it"], rows)


def loop_table(figures: Figures) -> list[str]:
    """A row a stage, and the speed of all."""
    rows = [
        [row["stage"], f"{row['wall_ms']:.2f}", f"{100 * row['share']:.0f} %", f"{row['cpu_ms']:.2f}"]
        for row in figures["rows"]
    ]
    ratios = figures["ratios"]
    low, high = (f"{ratios[f'decisions_per_s_{end}']:.0f}" for end in ("low", "high"))
    return [
        *table(["stage", "wall ms a decision", "share", "CPU ms a decision"], rows),
        "",
        f"{ratios['decisions_per_s']:.0f} decisions a second ({low} to {high}).",
    ]


LIBERO = {
    "physics": "control step without cameras",
    "chunk8": "control step in chunks of 8, both cameras in the official pixels",
    "chunk8_plain": "the same with `--env.render-quality fast`",
    "reset": "reset of an env",
}
POLICY = {
    "act_vs_generate": "OpenVLA nano, a batch of 8 with 56 tokens each, over transformers' `generate` one by one",
    "act_vs_generate_7_tokens": "the same with 7 tokens each",
    "act_vs_generate_tiny": "OpenVLA tiny, 7 tokens each",
    "prefix_reuse": "pi0 tiny acts: one prefix for 10 denoising steps, over a prefix a step",
    "shared_prefix_update": "the same in an update over 4 recorded steps",
    "kept_prefix_update": "update with prefixes kept from the rollout (`--policy.prefix-cache-gib`)",
    "drop_layers": "pi0 tiny without 1 of 4 layers",
    "visual_tokens": "pi0 tiny with 128 of 512 visual tokens",
    "denoise_reuse": "pi0 tiny, action expert in 5 of 10 denoising steps",
    "all_three": "all three",
    "drop_layers_oft": "OpenVLA-OFT tiny without 1 of 4 layers",
    "visual_tokens_oft": "OpenVLA-OFT tiny with 128 of 512 visual tokens",
}


def libero_table(figures: Figures) -> list[str]:
    """How many times cheaper than the official stack: median over the tasks and the worst task, CPU and wall time."""
    ratios = figures["ratios"]
    names = ("_cpu", "_cpu_low", "_wall", "_wall_low")
    rows = [[words, *(_times(ratios[name + end]) for end in names)] for name, words in LIBERO.items()]
    rows.append(["memory of one more env", _times(ratios["memory"]), _times(ratios["memory_low"]), "", ""])
    return table(["official / ours", "CPU time", "worst task", "wall time", "worst task"], rows)


def policy_table(figures: Figures) -> list[str]:
    """A row a comparison: how many times faster."""
    return table(
        ["what", "times as fast"], [[words, f"{figures['ratios'][name]:.3g}"] for name, words in POLICY.items()]
    )


def pipeline_table(figures: Figures) -> list[str]:
    """A row a profile and scheduler; or, of the real part, a row a scheduler with its speed and what it brings."""
    lines: list[str] = []
    if figures["rows"]:
        serial = {row["profile"]: row["ms_per_decision"] for row in figures["rows"] if row["mode"] == "serial"}
        rows = []
        for row in figures["rows"]:
            faster = serial[row["profile"]] / row["ms_per_decision"]
            rows.append([row["profile"], row["mode"], f"{row['ms_per_decision']:.1f}", f"{faster:.2f}"])
            rows[-1].append(f"{row['of_bound']:.0%}")
        lines = table(["stages that only wait", "scheduler", "ms a decision", "over serial", "of the bound"], rows)
    if figures["real"]:
        speeds: dict[str, dict[int, float]] = {}
        for row in sorted(figures["real"], key=lambda row: row["turn"]):
            speeds.setdefault(row["scheduler"], {})[row["turn"]] = row["decisions_per_s"]
        rows = [
            [name, _range(each.values(), 0), _range([each[turn] / speeds["serial"][turn] for turn in each], 2)]
            for name, each in speeds.items()
        ]
        lines += [*([""] if lines else []), *table(["scheduler", "decisions/s", "over serial"], rows)]
    return lines


def vla_table(figures: Figures) -> list[str]:
    """A row a part and number of rows; memory where it was measured."""
    memory = ("planned_gib", "allocated_gib", "reserved_gib")
    rows = [
        [row["part"], str(row["rows"]), _spread(row, "ms", 1)]
        + ["" if row[name] is None else f"{row[name]:.1f}" for name in memory]
        for row in figures["rows"]
    ]
    return table(["part", "rows", "ms a row", "GiB planned", "allocated", "reserved"], rows)


def gpu_table(figures: Figures) -> list[str]:
    """A table for policies, one for renderers and one for schedulers, of the parts that were measured."""
    rows = figures["rows"]
    tables = {
        ("part", "network", "rows", "ms a row", "GPU busy", "kernels"): [
            [row["part"], row["network"], str(row["rows"]), _spread(row, "ms", 2)]
            + ([f"{row['gpu_busy']:.0%}", str(row["kernels"])] if row.get("gpu_busy") else ["", ""])
            for row in rows
            if row["part"] in ("act", "update")
        ],
        ("renderer", "pixels", "threads", "observations/s"): [
            [row["renderer"], str(row["size"]), str(row["at_once"]), f"{row['per_s']:.0f}"]
            for row in rows
            if row["part"] == "render"
        ],
        ("policy", "scheduler", "decisions/s", "rows of an act call", "its ms"): [
            [
                row["part"],
                row["scheduler"],
                _spread(row, "decisions_per_s"),
                cell(row["act_rows"]),
                f"{row['act_ms']:.0f}",
            ]
            for row in rows
            if row["part"] in ("nano", "compiled", "loaded")
        ],
    }
    lines = [line for head, body in tables.items() if body for line in (*table(list(head), body), "")]
    failed = [f"- part {name} failed: {reason}" for name, reason in figures["failures"].items()]
    return [*lines, *failed] if failed else lines[:-1]


def backends_table(figures: Figures) -> list[str]:
    """A row a backend and number of envs; then what is not installed, and what failed."""
    rows = []
    for (part, envs), each in groupby(figures["rows"], key=lambda row: (row["part"], row["num_envs"])):
        by = {(row["mode"], row["size"] or 0): row for row in each}
        speeds = [by.get(at, {}).get("env_steps_per_s") for at in (("physics", 0), ("both", 64), ("both", 128))]
        drawn = [by.get(("frames", size), {}).get("frames_per_s") for size in (64, 128)]
        task = next(iter(by.values()))["task"]
        rows.append([part, task, str(envs), *(f"{value:,.0f}" if value else "" for value in (*speeds, *drawn))])
    head = ["backend", "task", "envs", "steps/s, physics", "with images, 64 px", "128 px", "images/s, 64 px", "128 px"]
    notes = [f"- {name}: not measured, {reason}" for name, reason in figures["missing"].items()]
    notes += [f"- {name} failed: {reason}" for name, reason in figures["failures"].items()]
    return [*table(head, rows), *([""] if notes else []), *notes]


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
    """What stands between the marks: command and machine, and the table."""
    lines = [f"`{figures['command']}` on {machine_line(figures['machine'])}."]
    if figures["quick"]:
        lines.append("**Made with `--quick`: not to be quoted.**")
    return "\n".join([" ".join(lines), "", *TABLES[figures["bench"].split()[0]](figures)])


_GPU_SECTIONS = {"gpu policies": ("act", "update"), "gpu loop": ("render", "pictures", "nano", "compiled", "loaded")}
"""Sections of `bench gpu` on the page, and the parts whose figures are in each."""


def _gpu_parts(figures: Figures) -> Iterable[Figures]:
    for bench, parts in _GPU_SECTIONS.items():
        rows = [row for row in figures["rows"] if row["part"] in parts]
        failures = {name: reason for name, reason in figures["failures"].items() if name in parts}
        if rows or failures:
            yield {**figures, "bench": bench, "rows": rows, "failures": failures}


def parts_of(figures: Figures) -> list[Figures]:
    """The sections that a file has figures of.

    Whole runs of bench pipeline and bench gpu have two; bench backends has one on a GPU and one on a CPU.
    """
    if figures["bench"] == "gpu":
        return list(_gpu_parts(figures))
    if figures["bench"] == "backends" and "gpu" not in figures["machine"]:
        return [{**figures, "bench": "backends cpu"}]
    if figures["bench"] != "pipeline":
        return [figures]
    parts: list[Figures] = [{**figures, "bench": "pipeline timed", "real": []}]
    if figures["real"]:
        parts.append({**figures, "bench": "pipeline real", "rows": []})
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
    return f"{head}{start}\n{section(figures)}\n\n{end}{tail}"


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
