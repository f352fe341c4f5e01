"""Watches a run for the runner: progress on the screen, metrics and evaluations in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.telemetry.metrics import MetricsLog
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.tables import cells, interval_words
from embodied_rl.types import EpisodeResult
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted


class RunObserver:
    """`embodied_rl.training.observer.Observer`: writes metrics.jsonl and evaluations/iter-NNNNNN.json in `folder`.

    measured: called with the number of updates after each evaluation. counted: further metrics of an update. begun:
    called when all is ready, before the first evaluation. has_success: of `EnvInfo`; without it no success rate is
    recorded.
    """

    def __init__(
        self,
        folder: Path,
        log: MetricsLog,
        progress: RunProgress,
        measured: Callable[[int], None] | None = None,
        counted: Callable[[], dict[str, float]] = dict,
        begun: Callable[[], object] = dict,
        *,
        has_success: bool = True,
    ) -> None:
        self._has_success = has_success
        self._folder = folder
        self._log = log
        self._progress = progress
        self._measured = measured
        self._counted = counted
        self._begun = begun

    def phase(self, name: str, iteration: int, episodes: int) -> None:
        """Show what is going on; a rollout and an evaluation have episodes to count, an update has none."""
        if episodes:
            self._progress.stage(name, episodes)

    def episode(self, result: EpisodeResult) -> None:
        """Count an episode."""
        self._progress.episode(result.success if self._has_success else None, result.reward)

    def metrics(self, iteration: int, values: dict[str, float]) -> None:
        """Record an update; adds the speed of the whole loop."""
        values = values | self._counted()
        if "rollout/decisions" in values:
            values["speed/decisions_per_s"] = values["rollout/decisions"] / values["time/iteration"]
        if not self._has_success:
            for name in ("rollout/success", "rollout/success_with_help"):
                values.pop(name, None)
        self._log.write(iteration, values)
        self._progress.iteration(iteration, values)

    def evaluation(self, iteration: int, report: EvalReport) -> None:
        """Record an evaluation, in the metrics and episode by episode."""
        self._log.write(iteration, report.metrics())
        path = evaluation_path(self._folder, iteration)
        path.parent.mkdir(exist_ok=True)
        replace_text(path, json.dumps(report.to_json()))
        what = "success" if report.overall.has_success else "mean return"
        self._progress.message(f"held-out {what} after {counted(iteration, 'update')}: {describe(report)}")
        if self._measured is not None:
            self._measured(iteration)

    def log(self, text: str) -> None:
        """Show a line."""
        self._progress.message(text)

    def position(self) -> int:
        """Bytes of metrics.jsonl."""
        return self._log.position()

    def begin(self, position: int) -> None:
        """Cut metrics.jsonl back to `position`."""
        self._log.rewind(position)
        self._begun()


def evaluation_path(folder: Path, iteration: int) -> Path:
    """Where the evaluation after `iteration` updates is kept."""
    return folder / "evaluations" / f"iter-{iteration:06d}.json"


def read_evaluation(folder: Path, iteration: int) -> EvalReport:
    """What the evaluation after `iteration` updates found, of the run in `folder`."""
    return EvalReport.from_json(json.loads(evaluation_path(folder, iteration).read_text(encoding="utf-8")))


def describe(report: EvalReport) -> str:
    """'62.0% (31/50), 95 % interval 48.2% to 74.1%', or the same of the mean return."""
    return f"{cells(report.overall)[0]}, 95 % interval {interval_words(report.overall)}"
