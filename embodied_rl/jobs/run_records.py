"""What a run's folder says of it: config, versions, machine, metrics. Reads plain files and opens no simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embodied_rl.config.train import TrainConfig, kind_of, load_yaml, to_dict
from embodied_rl.errors import UserError
from embodied_rl.evaluation.extrapolation import Extrapolation, Rate, extrapolate
from embodied_rl.jobs.run_folder import CONFIG_FILE
from embodied_rl.jobs.run_info import RUN_INFO, Session, read_run_info
from embodied_rl.telemetry.metrics import read_metrics


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A training run, read from its folder.

    Args:
        folder: where it is.
        config: as it was begun.
        sessions: what ran, one entry a start, oldest first.
        metrics: rows of metrics.jsonl.
    """

    folder: Path
    config: TrainConfig
    sessions: list[Session]
    metrics: list[dict[str, Any]]

    @property
    def updates(self) -> int:
        """How many are done."""
        return max((int(row["step"]) for row in self.metrics), default=0)

    @property
    def finished(self) -> bool:
        """Whether the newest session came to the run's end."""
        end = self.sessions[-1].end
        return end is not None and end.finished

    @property
    def repeatable(self) -> bool:
        """Whether an episode of its tasks can be repeated; see `EnvInfo`."""
        return all(session.repeatable for session in self.sessions)

    @property
    def cpu_seconds(self) -> float | None:
        """Of all sessions that said so, as one does when it ends; None where none did."""
        known = [s.end.cpu_seconds for s in self.sessions if s.end is not None and s.end.cpu_seconds is not None]
        return sum(known) if known else None

    @property
    def seconds(self) -> float | None:
        """Of all sessions; None where one did not say so, as one that was killed or goes on."""
        known = [session.end and session.end.seconds for session in self.sessions]
        return None if None in known else sum(seconds or 0.0 for seconds in known)

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most of any session; None where none said so."""
        return max((s.end.peak_memory_bytes or 0 for s in self.sessions if s.end is not None), default=0) or None

    @property
    def title(self) -> str:
        """Policy, algorithm and scheduler."""
        return " ".join(kind_of(part, getattr(self.config, part)) for part in ("policy", "algorithm", "scheduler"))

    def evaluations(self) -> dict[int, dict[str, float]]:
        """Metrics of each evaluation by the number of updates before it; the last one where it was made again."""
        return {int(row["step"]): row for row in self.metrics if "eval/episodes" in row}

    def ends(self) -> tuple[str, str]:
        """Success (or the mean return) of the first and the newest evaluation, in words; '' where there is none."""
        found = list(self.evaluations().items())
        if not found:
            return "", ""
        return _figure(found[0][1]), _figure(found[-1][1]) if found[-1][0] else ""

    def extrapolate(self) -> Extrapolation | None:
        """Where the run will end, from what it has measured; None where that says nothing of success."""
        total, rollouts = self.config.iterations, self._rollouts()
        evaluated = [
            Rate(step / total, row["eval/success"], row["eval/episodes"])
            for step, row in self.evaluations().items()
            if step and "eval/success" in row
        ]
        return extrapolate(rollouts, evaluated) if rollouts or evaluated else None

    def _rollouts(self) -> list[Rate]:
        """Success of the training episodes that are like those evaluated: unperturbed ones.

        An adaptive sampler has none: it draws what fails most, however good the policy is.
        """
        config = self.config
        if config.rollout.sampler == "adaptive":
            return []
        name, share = "rollout/success", 1.0
        if config.perturb:
            name, share = "rollout/success_unperturbed", 1.0 - config.perturbation[1]
        return [
            Rate((row["step"] - 1) / config.iterations, row[name], share * row["rollout/episodes"])
            for row in self.metrics
            if name in row
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything but the metrics, as plain values."""
        return {
            "folder": str(self.folder),
            "config": to_dict(self.config),
            "sessions": [asdict(session) for session in self.sessions],
            "updates": self.updates,
            "finished": self.finished,
            "evaluations": {str(step): row for step, row in self.evaluations().items()},
        }


def read_record(folder: Path) -> RunRecord:
    """The run in `folder`; UserError if it is none or a file of it is damaged."""
    if not (folder / CONFIG_FILE).is_file() or not (folder / RUN_INFO).is_file():
        raise UserError(f"{folder} is not the folder of a training run: it lacks {CONFIG_FILE} or {RUN_INFO}.")
    metrics = folder / "metrics.jsonl"
    rows = read_metrics(metrics) if metrics.is_file() else []
    return RunRecord(folder, load_yaml(folder / CONFIG_FILE), read_run_info(folder), rows)


def find_runs(root: Path) -> Iterable[Path]:
    """Folders of training runs in `root`, at any depth, by name; UserError if there is no such folder."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: name the one that holds your runs.")
    return sorted(path.parent for path in root.rglob(RUN_INFO) if (path.parent / CONFIG_FILE).is_file())


def _figure(row: Mapping[str, float]) -> str:
    figure = f"{row['eval/success']:.1%}" if "eval/success" in row else f"{row['eval/return']:.1f}"
    lost = int(row.get("eval/not_measured", 0))
    return f"{figure} (not measured: {lost} of {lost + int(row['eval/episodes'])})" if lost else figure
