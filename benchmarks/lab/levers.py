"""What learning options changed: runs with and without them, to one CSV, then to the table and picture of a page.

    python -m embodied_rl.benchmarks.lab.levers --runs "plain=runs/a,runs/b" --runs "half of the rows=runs/c,runs/d" \
        --csv docs/results/levers.csv
    python -m embodied_rl.benchmarks.lab.levers --csv docs/results/levers.csv --page docs/results/levers.md

Runs of one label differ in their seed. A label may begin with a part and a slash, as in 'pi0/plain': each part has a
table and a panel of its own. `--level`: reached once the training episodes of three updates succeed that often.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from embodied_rl.benchmarks.lab.curves import COLOURS, replace_tables
from embodied_rl.benchmarks.report import table
from embodied_rl.config.train import load_yaml
from embodied_rl.errors import UserError
from embodied_rl.telemetry.metrics import read_metrics

LEVEL = 0.7
"""Share of successful training episodes that counts as reached."""
EARLY = range(1, 11)
"""Updates whose control steps are counted."""
_WINDOW = 3
_PANELS = 3
"""Of the picture, side by side."""
_COLUMNS = {
    "episodes": "rollout/episodes",
    "env_steps": "rollout/env_steps",
    "rollout_success": "rollout/success",
    "update_cpu_s": "cpu/update",
    "success": "eval/success",
}
"""Columns of the CSV, and the metrics that they hold."""


@dataclass(frozen=True, slots=True)
class Row:
    """One update of one run; None where nothing was measured. worst_task: lowest held-out success of a task."""

    label: str
    seed: int
    update: int
    episodes: float | None
    env_steps: float | None
    rollout_success: float | None
    update_cpu_s: float | None
    success: float | None
    worst_task: float | None


Run = Sequence[Row]
"""The updates of one run, in order."""


def read_run(label: str, folder: Path) -> list[Row]:
    """Every update of the run in `folder`; UserError if it is not one."""
    if not (folder / "metrics.jsonl").is_file():
        raise UserError(f"{folder} is not the folder of a training run.")
    seed = load_yaml(folder / "config.yaml").seed
    merged: dict[int, dict[str, Any]] = {}
    for row in read_metrics(folder / "metrics.jsonl"):  # an update and its evaluation may stand in two lines
        merged.setdefault(int(row["step"]), {}).update(row)
    rows = []
    for update, row in merged.items():
        tasks = [value for name, value in row.items() if name.startswith("eval/success/")]
        values = {column: row.get(name) for column, name in _COLUMNS.items()}
        rows.append(Row(label, seed, update, **values, worst_task=min(tasks) if tasks else None))
    return rows


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write `rows`, with five digits that count."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            values = asdict(row).items()
            writer.writerow({name: f"{value:.5g}" if isinstance(value, float) else value for name, value in values})


def read_csv(path: Path) -> dict[str, list[Run]]:
    """The runs by label, as `write_csv` wrote them; UserError if the columns are others."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    names = [field.name for field in fields(Row)]
    if not lines or list(lines[0]) != names:
        raise UserError(f"{path} has not the columns {', '.join(names)}.")
    runs: dict[str, dict[int, list[Row]]] = {}
    for line in lines:
        values: dict[str, Any] = {name: float(text) if text else None for name, text in line.items() if name != "label"}
        row = Row(line["label"], **values | {"seed": int(line["seed"]), "update": int(line["update"])})
        runs.setdefault(row.label, {}).setdefault(row.seed, []).append(row)
    return {label: list(seeds.values()) for label, seeds in runs.items()}


def final_success(run: Run) -> float | None:
    """Held-out success after training."""
    return _last(row.success for row in run)


def worst_task(run: Run) -> float | None:
    """Held-out success after training of the task that has the least."""
    return _last(row.worst_task for row in run)


def steps_per_success(run: Run) -> float | None:
    """Control steps simulated for each success in the updates `EARLY`."""
    rows = [row for row in run if row.update in EARLY and row.episodes and row.env_steps is not None]
    wins = sum((row.rollout_success or 0.0) * (row.episodes or 0.0) for row in rows)
    return sum(row.env_steps or 0.0 for row in rows) / wins if wins else None


def update_seconds(run: Run) -> float | None:
    """CPU seconds of one update, on average."""
    return _mean(row.update_cpu_s for row in run)


def reached(run: Run, level: float) -> float | None:
    """Training episodes until their success was `level` over three updates; None: never."""
    rows, episodes = [row for row in run if row.episodes], 0.0
    for number, row in enumerate(rows, 1):
        episodes += row.episodes or 0.0
        last = rows[max(0, number - _WINDOW) : number]
        if len(last) == _WINDOW and fmean(one.rollout_success or 0.0 for one in last) >= level:
            return episodes
    return None


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _last(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return known[-1] if known else None


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def figures(level: float) -> dict[str, tuple[Callable[[Run], float | None], Callable[[float], str]]]:
    """The columns of the table: what each measures, and how it is written."""

    return {
        "updates": (lambda run: float(run[-1].update), "{:.0f}".format),
        "held-out success": (final_success, _percent),
        "worst task": (worst_task, _percent),
        f"control steps a success, updates {EARLY[0]} to {EARLY[-1]}": (steps_per_success, "{:.0f}".format),
        "CPU s an update": (update_seconds, "{:.2f}".format),
        f"episodes to {100 * level:.0f} %": (lambda run: reached(run, level), "{:.0f}".format),
    }


def part_of(label: str) -> str:
    """What is compared with what: 'pi0' of 'pi0/plain'."""
    return label.partition("/")[0] if "/" in label else ""


def make_tables(runs: Mapping[str, Sequence[Run]], level: float) -> list[str]:
    """Markdown: a table a part, a row a seed, then the mean of each label; columns that nothing fills are left out."""
    lines: list[str] = []
    for part in dict.fromkeys(part_of(label) for label in runs):
        own = {label: found for label, found in runs.items() if part_of(label) == part}
        columns = {
            name: how
            for name, how in figures(level).items()
            if any(how[0](run) is not None for found in own.values() for run in found)
        }
        rows = []
        for label, found in own.items():
            name = label.removeprefix(f"{part}/")
            values = [[measure(run) for measure, _ in columns.values()] for run in found]
            written = [write for _, write in columns.values()]
            for run, line in zip(found, values, strict=True):
                rows.append([name, str(run[0].seed), *map(_cell, line, written)])
            means = [_mean(column) if None not in column else None for column in zip(*values, strict=True)]
            rows.append([f"**{name}**", "mean", *map(_cell, means, written)])
        title = [f"### {part}", ""] if part else []
        lines += [*([""] if lines else []), *title, *table(["runs", "seed", *columns], rows)]
    return lines


def _cell(value: float | None, write: Callable[[float], str]) -> str:
    return "" if value is None else write(value)


def draw(runs: Mapping[str, Sequence[Run]]) -> bytes:
    """PNG, a panel a part: points are held-out success, mean of the seeds; thin lines each seed's training episodes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parts = list(dict.fromkeys(part_of(label) for label in runs))
    across = min(len(parts), _PANELS)
    down = math.ceil(len(parts) / across)
    figure = Figure(figsize=(4.8 * across, 3.6 * down), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for unused in panels[len(parts) :]:
        unused.axis("off")
    for part, axes in zip(parts, panels, strict=False):
        own = {label: found for label, found in runs.items() if part_of(label) == part}
        for colour, (label, found) in zip(COLOURS, own.items(), strict=False):
            for run in found:
                axes.plot(*_curve(run, "rollout_success"), color=colour, lw=0.6, alpha=0.4)
            measured = [_curve(run, "success") for run in found]
            shared = sorted(set.intersection(*(set(at) for at, _ in measured)))
            mean = [fmean(success[at.index(place)] for at, success in measured) for place in shared]
            axes.plot(shared, mean, color=colour, lw=2, marker="o", ms=4, label=label.removeprefix(f"{part}/"))
        axes.set(xlabel="training episodes", ylabel="success", ylim=(-0.02, 1.02), title=part)
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right", frameon=False, fontsize="small")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()


def _curve(run: Run, column: str) -> tuple[list[float], list[float]]:
    """Training episodes so far, and `column`, where it was measured."""
    episodes, at, values = 0.0, [], []
    for row in run:
        episodes += row.episodes or 0.0
        if (value := getattr(row, column)) is not None:
            at.append(episodes)
            values.append(value)
    return at, values


def _parse_runs(text: str) -> tuple[str, list[Path]]:
    label, found, folders = text.partition("=")
    if not (label and found and folders):
        raise UserError(f"--runs takes LABEL=FOLDER,FOLDER, got {text!r}.")
    return label, [Path(folder) for folder in folders.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program: 0, or 2 and one line on stderr for input that does not fit."""
    parser = argparse.ArgumentParser(
        prog="python -m embodied_rl.benchmarks.lab.levers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", action="append", default=[], metavar="LABEL=RUN,RUN", help="to write the CSV")
    parser.add_argument("--csv", required=True, type=Path)
    parser.add_argument("--level", type=float, default=LEVEL, help=f"success that counts as reached ({LEVEL})")
    parser.add_argument("--page", type=Path, help="Markdown page whose tables are replaced")
    parser.add_argument("--figure", type=Path, help="the picture, PNG")
    given = parser.parse_args(argv)
    try:
        if given.runs:
            pairs = [_parse_runs(text) for text in given.runs]
            write_csv(given.csv, [row for label, runs in pairs for run in runs for row in read_run(label, run)])
        runs = read_csv(given.csv)
        lines = make_tables(runs, given.level)
        if given.page:
            replace_tables(given.page, lines)
        else:
            print("\n".join(lines))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.figure:
        given.figure.write_bytes(draw(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
