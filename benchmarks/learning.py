"""Finished training runs to one page and one picture: what reinforcement learning gained, seed by seed.

    python -m embodied_rl.benchmarks.learning runs/a runs/b ... --out docs/results/tabletop.md \
        --figure docs/images/learning_curve.png

Everything is read from the runs' folders. Runs of one suite, policy, algorithm and schedule make a table; they may
differ in their seed and in what cannot change the result, and in nothing else.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from embodied_rl.benchmarks.learning_pace import pace_table, way_table
from embodied_rl.benchmarks.learning_stretch import stretch_table
from embodied_rl.benchmarks.page import table
from embodied_rl.config.policies import Pi0Config
from embodied_rl.config.train import TrainConfig, kind_of, load_yaml, to_dict
from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import EvalReport, Score
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.scheduler.config import PipelinedConfig, SerialConfig
from embodied_rl.telemetry.curve import curve_of
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.telemetry.observer import evaluation_path

# What may differ between the runs of one table, beside the seed: none of it changes what is learned.
FREE = {
    "seed",
    "output",
    "track",
    "videos",
    "checkpoint",
    "num_threads",
    "env.num_threads",
    "env.num_envs",
    "env.processes",
    "evaluation.every",
}
STAMPED = ("suite", "simulator", "renderer", "policy", "weights", "algorithm", "versions")
Key = tuple[str, str, str]
"""Suite, policy, and algorithm with its schedule: what has a table of its own."""
COLOURS = ("#1f6feb", "#d9730d", "#2a9d5c", "#a13dbd", "#b3261e", "#5f6b7a")


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run. sessions: its stamps, more than one if it was resumed; rows: its metrics, line by line."""

    folder: Path
    config: TrainConfig
    sessions: list[dict[str, Any]]
    before: EvalReport
    after: EvalReport
    rows: list[dict[str, Any]]

    @property
    def algorithm(self) -> str:
        """'grpo' or 'ppo'."""
        return kind_of("algorithm", self.config.algorithm)

    @property
    def key(self) -> Key:
        """The table that the run belongs to."""
        policy = self.config.policy
        method = f" with {policy.exploration}" if isinstance(policy, Pi0Config) else ""
        scheduler = self.config.scheduler
        name = scheduler.mode if isinstance(scheduler, PipelinedConfig) else kind_of("scheduler", scheduler)
        under = "" if isinstance(scheduler, SerialConfig) else f" under {name}"
        groups = self.config.learner.minibatch_groups
        unit = "episodes" if self.algorithm == "ppo" else "groups"
        by = "" if groups is None else f", minibatches of {groups} {unit}"
        return self.config.suite, kind_of("policy", policy) + method, self.algorithm.upper() + under + by

    @property
    def training_seconds(self) -> float:
        """Rollouts and updates, without evaluations, checkpoints and films."""
        return self.total("time/iteration")

    @property
    def all_seconds(self) -> float | None:
        """From the command to its report, evaluations included; None if a session was killed and did not say."""
        return self._summed("seconds")

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time of the whole command, all threads; None as for `all_seconds`."""
        return self._summed("cpu_seconds")

    def _summed(self, name: str) -> float | None:
        times = [session.get(name) for session in self.sessions]
        known = [float(seconds) for seconds in times if seconds is not None]
        return sum(known) if len(known) == len(times) else None

    @property
    def improved(self) -> bool:
        """Whether the interval after training lies wholly above the one before."""
        return self.after.overall.low > self.before.overall.high

    def total(self, name: str) -> float:
        """Sum of a metric over the iterations."""
        return sum(row[name] for row in self.rows if row.get(name) is not None)


def read_run(folder: Path) -> Run:
    """Read a run's folder; UserError if it is none or if its last evaluation is not there."""
    try:
        sessions = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not the folder of a training run: cannot read its run.json ({error}).") from error
    config = load_yaml(folder / "config.yaml")
    before, after = (_evaluation(folder, iteration) for iteration in (0, config.iterations))
    return Run(folder, config, sessions, before, after, read_metrics(folder / "metrics.jsonl"))


def _evaluation(folder: Path, iteration: int) -> EvalReport:
    path = evaluation_path(folder, iteration)
    if not path.is_file():
        raise UserError(f"{folder} is not finished: no {path.name}; first: embodied-rl train --resume {folder}")
    return EvalReport.from_json(json.loads(path.read_text(encoding="utf-8")))


def group_runs(runs: Sequence[Run]) -> dict[Key, list[Run]]:
    """Runs by table, ordered by seed; UserError if those of one table are not comparable."""
    groups: dict[Key, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.key, run.config.seed)):
        groups.setdefault(run.key, []).append(run)
    for members in groups.values():
        first = members[0]
        for previous, run in pairwise(members):
            if run.config.seed == previous.config.seed:
                raise UserError(f"{previous.folder} and {run.folder} have the same seed {run.config.seed}; name one.")
            mine, other = _deciding(run), _deciding(first)
            differing = sorted(key for key in mine | other if mine.get(key) != other.get(key))
            if differing:
                raise UserError(f"{run.folder} and {first.folder} differ in more than their seed: {differing[0]}.")
    return groups


def _deciding(run: Run) -> dict[str, Any]:
    """What two runs of one table must have in common, flat."""
    flat: dict[str, Any] = {"weights": [session.get("weights") for session in run.sessions[:1]]}
    for key, value in to_dict(run.config).items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return {key: value for key, value in flat.items() if key not in FREE and key.partition(".")[0] not in FREE}


def make_page(groups: dict[Key, list[Run]], figure: str) -> str:
    """The page as Markdown. figure: address of the picture, as seen from the page."""
    parts = ["# Learning curves", "", f"![Success on held-out states against training episodes]({figure})", ""]
    parts += [
        "Made from the runs' folders by `python -m embodied_rl.benchmarks.learning`; nothing here is typed by hand.",
        "Success is on initial states that training never saw. An interval is Wilson's 95 % interval of one run's",
        "episodes: it speaks of other initial states drawn the same way, not of other seeds. Means over seeds have no",
        "interval. Training time is rollouts and updates; the time in all is from the command's start (without",
        "Python's imports) to its report, with evaluations and films. CPU minutes are those of the whole",
        "command; on a busy machine they are fewer than the minutes that pass.",
        "",
    ]
    metrics = {", ".join(key): [run.rows for run in runs] for key, runs in groups.items()}
    parts += [*pace_table(metrics), *stretch_table(metrics, _references(groups)), *way_table(metrics)]
    for key, runs in groups.items():
        parts += [f"## {', '.join(key)}", "", *_seed_table(runs), "", *_statements(runs), ""]
        parts += ["By task (mean before, then after training by seed):", "", *_task_table(runs), ""]
        parts += ["What ran:", "", *_stamps(runs), "", "```", *_commands(runs), "```", ""]
    return "\n".join(parts)


def _references(groups: Iterable[Key]) -> dict[str, str]:
    """Each schedule's table and that of the serial runs beside it."""
    serial = {
        (suite, policy, way.split()[0].rstrip(",")): (suite, policy, way)
        for suite, policy, way in groups
        if " under " not in way
    }
    found = {key: serial.get((key[0], key[1], key[2].split()[0])) for key in groups if " under " in key[2]}
    return {", ".join(key): ", ".join(reference) for key, reference in found.items() if reference is not None}


def _seed_table(runs: Sequence[Run]) -> list[str]:
    head = [
        "seed",
        "before",
        "95 % interval",
        "after",
        "95 % interval",
        "gain",
        "held-out episodes",
        "updates",
        "training episodes",
        "training, min",
        "in all, min",
        "CPU, min",
        "decisions/s",
    ]
    rows = []
    for run in runs:
        before, after = run.before.overall, run.after.overall
        rows.append(
            [
                str(run.config.seed),
                _percent(before.rate),
                _interval(before),
                _percent(after.rate),
                _interval(after),
                _gain(run),
                str(after.episodes),
                str(run.config.iterations),
                f"{run.total('rollout/episodes'):.0f}",
                f"{run.training_seconds / 60:.1f}",
                _minutes(run.all_seconds),
                _minutes(run.cpu_seconds),
                f"{_speed(run):.0f}",
            ]
        )
    rows.append(
        [
            "mean",
            _percent(fmean(run.before.overall.rate for run in runs)),
            "",
            _percent(fmean(run.after.overall.rate for run in runs)),
            "",
            _gain(*runs),
            "",
            "",
            f"{fmean(run.total('rollout/episodes') for run in runs):.0f}",
            f"{fmean(run.training_seconds for run in runs) / 60:.1f}",
            _minutes(_mean(run.all_seconds for run in runs)),
            _minutes(_mean(run.cpu_seconds for run in runs)),
            f"{fmean(_speed(run) for run in runs):.0f}",
        ]
    )
    return table(head, rows)


def _statements(runs: Sequence[Run]) -> list[str]:
    lines = []
    for run in runs:
        low, high = _percent(run.after.overall.low), _percent(run.before.overall.high)
        verdict = "above" if run.improved else "**not** above"
        lines.append(
            f"- seed {run.config.seed}: the lower bound after ({low}) is {verdict} the upper bound before ({high})."
        )
    held = sum(run.improved for run in runs)
    return [*lines, "", f"The bound holds in {held} of {len(runs)} seeds."]


def _task_table(runs: Sequence[Run]) -> list[str]:
    head = ["task", "episodes", "before", *(f"seed {run.config.seed}" for run in runs), "mean after"]
    rows = []
    for task, score in runs[0].before.tasks.items():
        after = [run.after.tasks[task].rate for run in runs]
        before = fmean(run.before.tasks[task].rate for run in runs)
        name = task.partition("/")[2].replace("_", " ")
        rows.append([name, str(score.episodes), *map(_percent, (before, *after, fmean(after)))])
    return table(head, rows)


def _stamps(runs: Sequence[Run]) -> list[str]:
    """What was stamped by every run; what differs (a machine, a version) is listed with each of its values."""
    lines = []
    for name in ("machine", "device", *STAMPED):
        values = dict.fromkeys(session.get(name, "not recorded") for run in runs for session in run.sessions)
        lines += [f"- {name}: {value}" for value in values]
    for start in dict.fromkeys(run.config.policy.checkpoint for run in runs):
        lines += _start(start)
    mode = dict.fromkeys(f"{run.after.mode}, {_evaluated(run.config.learner)}" for run in runs)
    return [*lines, *(f"- evaluation: {how}" for how in mode)]


def _evaluated(learner: LearnerConfig) -> str:
    count = learner.average_updates
    return f"a running mean of the weights (1/{count} an update)" if count else "the newest weights"


def _start(checkpoint: str) -> list[str]:
    """The commands that made the checkpoint in folder `checkpoint`; none where it is no folder of ours."""
    path = Path(checkpoint) / "provenance.json"
    if not path.is_file():
        return []
    made = json.loads(path.read_text(encoding="utf-8"))
    commands = [made.get("dataset", {}).get("collected", {}).get("command"), made["command"]]
    return [f"- start: `{command}`" for command in commands if command]


def _commands(runs: Sequence[Run]) -> list[str]:
    return [session["command"] for run in runs for session in run.sessions]


def draw(groups: dict[Key, list[Run]]) -> bytes:
    """One panel a table, one curve a seed: held-out success with its Wilson band against training episodes. PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * len(groups), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (key, runs) in zip(panels, groups.items(), strict=True):
        for index, run in enumerate(runs):
            colour, curve = COLOURS[index % len(COLOURS)], curve_of(run.rows)
            rate, low, high = zip(*curve.held_out, strict=True)
            axes.fill_between(curve.held_out_episodes, low, high, color=colour, alpha=0.14, linewidth=0)
            axes.plot(curve.held_out_episodes, rate, "o-", color=colour, label=f"seed {run.config.seed}")
        axes.set(xlabel="training episodes", ylim=(-0.02, 1.02))
        axes.set_title(", ".join(key), fontsize="medium", parse_math=False)
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right", frameon=False)
    panels[0].set_ylabel("success on held-out states (95 % Wilson band)")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    return picture.getvalue()


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def _gain(*runs: Run) -> str:
    """Mean of what the runs gained, in percentage points."""
    return f"{100 * fmean(run.after.overall.rate - run.before.overall.rate for run in runs):+.1f}"


def _mean(times: Iterable[float | None]) -> float | None:
    """The mean, or None where one is missing."""
    values = list(times)
    known = [seconds for seconds in values if seconds is not None]
    return fmean(known) if len(known) == len(values) else None


def _interval(score: Score) -> str:
    return f"{100 * score.low:.1f} to {100 * score.high:.1f} %"


def _minutes(seconds: float | None) -> str:
    return "not recorded" if seconds is None else f"{seconds / 60:.1f}"


def _speed(run: Run) -> float:
    return run.total("rollout/decisions") / run.training_seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and the picture; 2 and one line on stderr for folders that do not fit."""
    parser = argparse.ArgumentParser(prog="python -m embodied_rl.benchmarks.learning", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished training run")
    parser.add_argument("--out", required=True, type=Path, help="the page, Markdown")
    parser.add_argument("--figure", required=True, type=Path, help="the picture, PNG")
    given = parser.parse_args(argv)
    try:
        groups = group_runs([read_run(folder) for folder in given.runs])
        picture = draw(groups)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in (given.out, given.figure):
        path.parent.mkdir(parents=True, exist_ok=True)
    given.figure.write_bytes(picture)
    link = Path(os.path.relpath(given.figure, given.out.parent)).as_posix()
    given.out.write_text(make_page(groups, link), encoding="utf-8")
    print(f"wrote {given.out} and {given.figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
