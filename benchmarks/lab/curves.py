"""Learning curves from CSV files: finished runs to one CSV, and a CSV to the tables and the picture of a results page.

    python -m embodied_rl.benchmarks.lab.curves runs/a runs/b ... --csv docs/results/tabletop.csv
    python -m embodied_rl.benchmarks.lab.curves --csv docs/results/tabletop.csv --page docs/results/tabletop.md \
        --figure docs/images/learning_curve.png

The first command reads the folders of finished training runs; the second needs the CSV only. The page's text between
`<!-- tables -->` and `<!-- end of tables -->` is replaced, the rest is left alone.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from embodied_rl.benchmarks.report import table
from embodied_rl.config.suites import STATE_SUITES
from embodied_rl.config.train import kind_of, load_yaml
from embodied_rl.errors import UserError
from embodied_rl.jobs.run_info import is_finished, read_run_info
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.telemetry.metrics import read_metrics

ALL_TASKS = "all"
_COLUMNS = 3
_BEFORE_AND_AFTER = 2
COLOURS = ("#1f6feb", "#d9730d", "#2a9d5c", "#a13dbd", "#b3261e", "#5f6b7a")


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation or one update of one run; `success` and `mean_return` are None where nothing was evaluated.

    label: policy, algorithm and scheduler, or the tasks of a state policy; rows of one label and different seeds belong
    together. task: 'all', or one task of an evaluation. episodes: training episodes so far. success, low, high: on
    held-out initial states, with the Wilson 95 % interval; None where the tasks have no success flag, and then the mean
    return counts, with its normal 95 % interval. rollout_*: of the training episodes of the last update. cpu_minutes:
    of the whole run, on its last line only.
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
    mean_return: float | None = None
    return_low: float | None = None
    return_high: float | None = None
    rollout_return: float | None = None

    @property
    def value(self) -> float | None:
        """What counts on the task: success, or the mean return."""
        return self.mean_return if self.success is None else self.success

    @property
    def interval(self) -> tuple[float, float] | None:
        """That of `value`."""
        ends = (self.return_low, self.return_high) if self.success is None else (self.low, self.high)
        return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])


_RETURNS = ("mean_return", "return_low", "return_high", "rollout_return")
"""Columns that a CSV may lack."""


def read_run(folder: Path) -> list[Point]:
    """Every point of a finished run; UserError if `folder` is not one."""
    if not (folder / "metrics.jsonl").is_file() or not (folder / "run.json").is_file():
        raise UserError(f"{folder} is not the folder of a training run.")
    if not is_finished(folder):
        raise UserError(f"{folder} is a run that has not finished; embodied-rl train --resume {folder} goes on.")
    config = load_yaml(folder / "config.yaml")
    scheduler = config.scheduler
    how = scheduler.mode if isinstance(scheduler, PipelinedConfig) else kind_of("scheduler", scheduler)
    label = f"{kind_of('policy', config.policy)} {kind_of('algorithm', config.algorithm)} {how}"
    if config.suite in STATE_SUITES:
        seen = "" if config.policy.observes == "state" else f", {kind_of('policy', config.policy)}"
        label = f"{config.suite} {', '.join(config.tasks)}{seen}"
    return points_of(folder, label, config.seed)


def read_runs(folders: Sequence[Path]) -> list[Point]:
    """Every point of finished runs; UserError where two of one label have the same seed or different suites."""
    points: list[Point] = []
    found: dict[tuple[str, int], Path] = {}
    suites: dict[str, str] = {}
    for folder in folders:
        try:
            run = read_run(folder)
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(f"{folder} is a damaged run ({error!r}).") from None
        if not run:
            raise UserError(f"{folder} has no metrics.")
        label, seed, suite = run[0].label, run[0].seed, load_yaml(folder / "config.yaml").suite
        if (other := suites.setdefault(label, suite)) != suite:
            raise UserError(f"runs of '{label}' are of {other} and of {suite}; write a CSV of each.")
        if (twin := found.setdefault((label, seed), folder)) is not folder:
            raise UserError(f"{twin} and {folder} are both '{label}' of seed {seed}; write a CSV of each.")
        points += run
    return points


def points_of(folder: Path, label: str, seed: int) -> list[Point]:
    """Every point of the run in `folder`."""
    rows = read_metrics(folder / "metrics.jsonl")
    times = [session.end.cpu_seconds if session.end else None for session in read_run_info(folder)]
    cpu = None if None in times else sum(seconds or 0.0 for seconds in times) / 60
    episodes, points = 0.0, []
    for number, row in enumerate(rows):
        if (count := row.get("rollout/episodes")) is not None:
            episodes += count
        last = cpu if number == len(rows) - 1 else None
        at = (label, seed, int(row["step"]), round(episodes))
        low, high = (row.get(f"eval/success_ci_{end}") for end in ("low", "high"))
        names = ("eval/return", "eval/return_ci_low", "eval/return_ci_high", "rollout/reward")
        returns = {column: row.get(name) for column, name in zip(_RETURNS, names, strict=True)}
        success = (row.get("eval/success"), low, high, row.get("rollout/success"))
        points.append(Point(*at, ALL_TASKS, *success, last, **returns))
        rates, means = (_by_task(row, f"eval/{what}/") for what in ("success", "return"))
        points += [
            Point(*at, task, rates.get(task), None, None, None, None, means.get(task))
            for task in dict.fromkeys((*rates, *means))
        ]
    return points


def _by_task(row: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def write_csv(path: Path, points: Sequence[Point]) -> None:
    """Write `points`, numbers with six decimals, so that the tables' one is rounded once."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)], lineterminator="\n")
        writer.writeheader()
        for point in points:
            values = asdict(point).items()
            writer.writerow({name: f"{value:.6f}" if isinstance(value, float) else value for name, value in values})


def read_csv(path: Path) -> list[Point]:
    """Read what `write_csv` wrote; UserError if the columns are others."""
    names = [field.name for field in fields(Point)]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), list(reader.fieldnames or ())
        if columns not in (names, [name for name in names if name not in _RETURNS]):
            raise UserError(f"{path} has not the columns {', '.join(names)}.")
        return [_point(row) for row in rows]
    except (ValueError, TypeError, csv.Error) as error:  # a row that is too short has None, one that is too long a list
        raise UserError(f"{path} is no CSV of points: {error}.") from None


def _point(row: Mapping[str, str]) -> Point:
    """ValueError or TypeError where the row is not one of points."""
    point = Point(**{name: _value(name, text) for name, text in row.items()})
    if point.value is not None and point.interval is not None:
        low, high = point.interval
        if not low <= point.value <= high:
            raise ValueError(f"{point.value} is outside its interval, {low} to {high}")
    return point


def _value(name: str, text: str) -> Any:
    if name in ("label", "task"):
        return text
    if name in ("seed", "update", "episodes"):
        return int(text)
    if not text:
        return None
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {text}")
    return number


def evaluations(points: Sequence[Point], task: str = ALL_TASKS) -> dict[str, dict[int, list[Point]]]:
    """The evaluated points of `task` by label and seed, in the order of updates."""
    found: dict[str, dict[int, list[Point]]] = {}
    for point in points:
        if point.task == task and point.value is not None:
            found.setdefault(point.label, {}).setdefault(point.seed, []).append(point)
    for seeds in found.values():
        for run in seeds.values():
            run.sort(key=lambda point: point.update)
    return found


def make_tables(points: Sequence[Point]) -> list[str]:
    """Markdown: success, or the mean return, before and after by seed, then by task where there are several."""
    rows = []
    for label, seeds in evaluations(points).items():
        cpu = {point.seed: point.cpu_minutes for point in points if point.label == label and point.cpu_minutes}
        for seed, run in seeds.items():
            first, last = run[0], run[-1]
            minutes = f"{cpu[seed]:.1f}" if seed in cpu else "not recorded"
            rows.append([label, str(seed), *_ends(first, last), str(last.update), str(last.episodes), minutes])
        before, after = (_mean([run[at] for run in seeds.values()]) for at in (0, -1))
        rows.append([f"**{label}**", "mean", before, "", f"**{after}**", "", "", "", ""])
    head = ["run", "seed", "before", "interval", "after", "interval", "updates", "episodes", "CPU minutes"]
    lines = table(head, rows)
    if all(_is_its_only_task(points, label) for label in evaluations(points)):
        return lines
    return [*lines, "", "By task, mean over seeds:", "", *_task_table(points)]


def _is_its_only_task(points: Sequence[Point], label: str) -> bool:
    """Whether the label names the only task, as those of state policies do: 'gymnasium Pendulum-v1'."""
    return {point.task for point in points if point.label == label} <= {ALL_TASKS, label.replace(" ", "/", 1)}


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
        before = _mean([run[0] for run in known])
        after = [_mean([run[-1] for run in group]) if group else "" for group in runs]
        rows.append([task.rpartition("/")[2].replace("_", " "), before, *after])
    return table(["task", "before", *(f"after, {label}" for label in labels)], rows)


def _ends(first: Point, last: Point) -> list[str]:
    return [_mean([first]), _interval(first), _mean([last]), _interval(last)]


def _value_of(point: Point) -> float:
    assert point.value is not None, "`evaluations` keeps only points with a value"
    return point.value


def _mean(points: Sequence[Point]) -> str:
    """'96.0 %', or '-153.2' where the mean return counts."""
    mean = fmean(_value_of(point) for point in points)
    return f"{mean:.1f}" if points[0].success is None else f"{100 * mean:.1f} %"


def _interval(point: Point) -> str:
    if point.interval is None:
        return ""
    low, high = point.interval
    return f"{low:.1f} to {high:.1f}" if point.success is None else f"{100 * low:.1f} to {100 * high:.1f} %"


def draw(points: Sequence[Point]) -> bytes:
    """A panel a label, a colour a seed, against training episodes.

    Points are held-out success or mean return, with 95 % intervals; thin lines are the success of each update's own
    episodes, whose actions are sampled.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = evaluations(points)
    by_return = any(run[0].success is None for seeds in groups.values() for run in seeds.values())
    columns = min(_COLUMNS, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.6 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, sharey=not by_return, squeeze=False).flat
    for (label, seeds), axes in zip(groups.items(), panels, strict=False):
        _panel(axes, label, seeds, [p for p in points if p.label == label and p.rollout_success is not None])
    for axes in panels:  # of the last line
        axes.set_axis_off()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()


def _panel(axes: Any, label: str, seeds: Mapping[int, Sequence[Point]], rollouts: Sequence[Point]) -> None:
    for colour, (seed, run) in zip(cycle(COLOURS), seeds.items(), strict=False):
        own = [(point.episodes, point.rollout_success) for point in rollouts if point.seed == seed]
        if own:
            axes.plot(*zip(*own, strict=True), color=colour, lw=0.8, alpha=0.6)
        values = [_value_of(point) for point in run]
        ends = [point.interval or (_value_of(point),) * 2 for point in run]
        spans = [[value - low, high - value] for value, (low, high) in zip(values, ends, strict=True)]
        style = "o-" if len(run) > _BEFORE_AND_AFTER else "o"
        at = [point.episodes for point in run]
        axes.errorbar(at, values, list(zip(*spans, strict=True)), fmt=style, color=colour, label=f"seed {seed}")
    if rollouts:
        axes.plot([], [], color="grey", lw=0.8, label="its training episodes")
    axes.set(xlabel="training episodes")
    if next(iter(seeds.values()))[0].success is None:
        axes.set_ylabel("mean return on held-out states")
    else:
        axes.set(ylabel="success on held-out states", ylim=(-0.02, 1.02))
    axes.set_title(label, fontsize="medium", parse_math=False)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program: 0, or 2 and one line on stderr for input that does not fit."""
    parser = argparse.ArgumentParser(prog="python -m embodied_rl.benchmarks.lab.curves", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of finished runs, to write the CSV")
    parser.add_argument("--csv", required=True, type=Path)
    parser.add_argument("--page", type=Path, help="Markdown page whose tables are replaced")
    parser.add_argument("--figure", type=Path, help="the picture, PNG")
    given = parser.parse_args(argv)
    try:
        if given.runs:
            write_csv(given.csv, read_runs(given.runs))
        points = read_csv(given.csv)
        if (given.page or given.figure) and not evaluations(points):
            raise UserError(f"{given.csv} has no evaluation to show.")
        if given.page:
            replace_tables(given.page, make_tables(points))
        if given.figure:
            given.figure.write_bytes(draw(points))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def replace_tables(page: Path, lines: Sequence[str]) -> None:
    """Put `lines` between the page's marks; UserError if it has none."""
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{page} is no text.") from None
    new, count = re.subn(
        r"(<!-- tables -->\n).*?(<!-- end of tables -->)",
        lambda found: f"{found[1]}\n" + "\n".join(lines) + f"\n\n{found[2]}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise UserError(f"{page} has not one part between <!-- tables --> and <!-- end of tables -->.")
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
