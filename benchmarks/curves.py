"""Learning curves from CSV files: finished runs to one CSV, and a CSV to the tables and the picture of a results page.

    python -m embodied_rl.benchmarks.curves runs/a runs/b ... --csv docs/results/tabletop.csv
    python -m embodied_rl.benchmarks.curves --csv docs/results/tabletop.csv --page docs/results/tabletop.md \
        --figure docs/images/learning_curve.png

The first command reads the folders of finished training runs; the second needs the CSV only. The page's text between
`<!-- tables -->` and `<!-- end of tables -->` is replaced, the rest is left alone.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from embodied_rl.benchmarks.page import table
from embodied_rl.config.train import kind_of, load_yaml
from embodied_rl.errors import UserError
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.telemetry.metrics import read_metrics

ALL_TASKS = "all"
COLOURS = ("#1f6feb", "#d9730d", "#2a9d5c", "#a13dbd", "#b3261e", "#5f6b7a")


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation or one update of one run; `success` is None where nothing was evaluated.

    label: policy, algorithm and scheduler; rows of one label and different seeds belong together. task: 'all', or one
    task of an evaluation. episodes: training episodes so far. success, low, high: on held-out initial states, with
    the Wilson 95 % interval. rollout_success: of the training episodes of the last update. cpu_minutes: of the whole
    run, on its last line only.
    """

    label: str
    seed: int
    update: int
    episodes: int
    task: str
    success: float | None
    low: float | None
    high: float | None
    rollout_success: float | None
    cpu_minutes: float | None


def read_run(folder: Path) -> list[Point]:
    """Every point of a finished run; UserError if `folder` is not one."""
    if not (folder / "metrics.jsonl").is_file() or not (folder / "run.json").is_file():
        raise UserError(f"{folder} is not the folder of a training run.")
    config = load_yaml(folder / "config.yaml")
    scheduler = config.scheduler
    how = scheduler.mode if isinstance(scheduler, PipelinedConfig) else kind_of("scheduler", scheduler)
    label = f"{kind_of('policy', config.policy)} {kind_of('algorithm', config.algorithm)} {how}"
    return points_of(folder, label, config.seed)


def points_of(folder: Path, label: str, seed: int) -> list[Point]:
    """Every point of the run in `folder`."""
    rows = read_metrics(folder / "metrics.jsonl")
    times = [session.get("cpu_seconds") for session in json.loads((folder / "run.json").read_text(encoding="utf-8"))]
    cpu = sum(times) / 60 if all(seconds is not None for seconds in times) else None
    episodes, points = 0.0, []
    for number, row in enumerate(rows):
        if (count := row.get("rollout/episodes")) is not None:
            episodes += count
        last = cpu if number == len(rows) - 1 else None
        at = (label, seed, int(row["step"]), round(episodes))
        low, high = (row.get(f"eval/success_ci_{end}") for end in ("low", "high"))
        points.append(Point(*at, ALL_TASKS, row.get("eval/success"), low, high, row.get("rollout/success"), last))
        tasks = {name.removeprefix("eval/success/"): rate for name, rate in row.items() if name[:13] == "eval/success/"}
        points += [Point(*at, task, rate, None, None, None, None) for task, rate in tasks.items()]
    return points


def write_csv(path: Path, points: Sequence[Point]) -> None:
    """Write `points`, rates with four digits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)], lineterminator="\n")
        writer.writeheader()
        for point in points:
            values = asdict(point).items()
            writer.writerow({name: f"{value:.4f}" if isinstance(value, float) else value for name, value in values})


def read_csv(path: Path) -> list[Point]:
    """Read what `write_csv` wrote; UserError if the columns are others."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [field.name for field in fields(Point)]
    if not rows or list(rows[0]) != names:
        raise UserError(f"{path} has not the columns {', '.join(names)}.")
    return [Point(**{name: _value(name, text) for name, text in row.items()}) for row in rows]


def _value(name: str, text: str) -> Any:
    if name in ("label", "task"):
        return text
    if name in ("seed", "update", "episodes"):
        return int(text)
    return float(text) if text else None


def evaluations(points: Sequence[Point], task: str = ALL_TASKS) -> dict[str, dict[int, list[Point]]]:
    """The evaluated points of `task` by label and seed, in the order of updates."""
    found: dict[str, dict[int, list[Point]]] = {}
    for point in points:
        if point.task == task and point.success is not None:
            found.setdefault(point.label, {}).setdefault(point.seed, []).append(point)
    return found


def make_tables(points: Sequence[Point]) -> list[str]:
    """Markdown: success before and after by seed, then by task."""
    rows = []
    for label, seeds in evaluations(points).items():
        cpu = {point.seed: point.cpu_minutes for point in points if point.label == label and point.cpu_minutes}
        for seed, run in seeds.items():
            first, last = run[0], run[-1]
            minutes = f"{cpu[seed]:.1f}" if seed in cpu else "not recorded"
            rows.append([label, str(seed), *_ends(first, last), str(last.update), str(last.episodes), minutes])
        before, after = (fmean(_rate(run[at]) for run in seeds.values()) for at in (0, -1))
        rows.append([f"**{label}**", "mean", _percent(before), "", f"**{_percent(after)}**", "", "", "", ""])
    head = ["run", "seed", "before", "interval", "after", "interval", "updates", "episodes", "CPU minutes"]
    return [*table(head, rows), "", "By task, mean over seeds:", "", *_task_table(points)]


def _task_table(points: Sequence[Point]) -> list[str]:
    labels = list(evaluations(points))
    tasks = dict.fromkeys(point.task for point in points if point.task != ALL_TASKS)
    rows = []
    for task in tasks:
        found = evaluations(points, task)
        if not found:
            continue
        runs = [list(found.get(label, {}).values()) for label in labels]
        known = [run for group in runs for run in group]
        before = fmean(_rate(run[0]) for run in known)
        after = [_percent(fmean(_rate(run[-1]) for run in group)) if group else "" for group in runs]
        rows.append([task.rpartition("/")[2].replace("_", " "), _percent(before), *after])
    return table(["task", "before", *(f"after, {label}" for label in labels)], rows)


def _ends(first: Point, last: Point) -> list[str]:
    return [_percent(_rate(first)), _interval(first), _percent(_rate(last)), _interval(last)]


def _rate(point: Point) -> float:
    assert point.success is not None, "`evaluations` keeps only points with a success"
    return point.success


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def _interval(point: Point) -> str:
    return "" if point.low is None or point.high is None else f"{100 * point.low:.1f} to {100 * point.high:.1f} %"


def draw(points: Sequence[Point]) -> bytes:
    """A panel a label, a curve a seed: held-out success with its Wilson band against training episodes. PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = evaluations(points)
    figure = Figure(figsize=(4.6 * len(groups), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (label, seeds) in zip(panels, groups.items(), strict=True):
        for colour, (seed, run) in zip(COLOURS, seeds.items(), strict=False):
            at = [point.episodes for point in run]
            axes.fill_between(at, [p.low for p in run], [p.high for p in run], color=colour, alpha=0.14, linewidth=0)
            axes.plot(at, [p.success for p in run], "o-", color=colour, label=f"seed {seed}")
        axes.set(xlabel="training episodes", ylim=(-0.02, 1.02))
        axes.set_title(label, fontsize="medium", parse_math=False)
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right", frameon=False)
    panels[0].set_ylabel("success on held-out states")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program: 0, or 2 and one line on stderr for input that does not fit."""
    parser = argparse.ArgumentParser(prog="python -m embodied_rl.benchmarks.curves", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of finished runs, to write the CSV")
    parser.add_argument("--csv", required=True, type=Path)
    parser.add_argument("--page", type=Path, help="Markdown page whose tables are replaced")
    parser.add_argument("--figure", type=Path, help="the picture, PNG")
    given = parser.parse_args(argv)
    try:
        if given.runs:
            write_csv(given.csv, [point for run in given.runs for point in read_run(run)])
        points = read_csv(given.csv)
        if given.page:
            _replace_tables(given.page, make_tables(points))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.figure:
        given.figure.write_bytes(draw(points))
    return 0


def _replace_tables(page: Path, lines: Sequence[str]) -> None:
    text = page.read_text(encoding="utf-8")
    new, count = re.subn(
        r"(<!-- tables -->\n).*?(<!-- end of tables -->)",
        lambda found: f"{found[1]}\n" + "\n".join(lines) + f"\n\n{found[2]}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise UserError(f"{page} has no part between <!-- tables --> and <!-- end of tables -->.")
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
