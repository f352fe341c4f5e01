"""Films episodes that failed, by running them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from embodied_rl.evaluation.benchmark import BenchmarkReport, interleaved
from embodied_rl.jobs.videos import record_video
from embodied_rl.policy import ActMode, Policy
from embodied_rl.telemetry.eval_report import FailureVideo
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import sentence
from embodied_rl.vec_env import SimulatorFailed, VecEnv

_INDEX = "films.json"


def record_failure(
    env: VecEnv,
    policy: Policy,
    spec: EpisodeSpec,
    mode: ActMode,
    folder: Path,
    on_frame: Callable[[], None] | None = None,
) -> None:
    """Film one episode into videos/TASK-stateN.mp4; videos/films.json notes how the run went.

    on_frame: as in `record_frames`.

    Where the simulator breaks now, as it did not when the episode was measured, the film stays missing.
    """
    path, index = film_path(folder, spec), film_index(folder)
    caption = f"state {spec.init_state}: {sentence(spec.task)}"
    # Where this run succeeds, the episode does not repeat itself on this machine.
    try:
        index[path.name] = record_video(env, policy, spec, mode, path, caption, on_frame).success
    except SimulatorFailed:
        return
    replace_text(path.with_name(_INDEX), json.dumps(index, indent=1))


def missing_films(report: BenchmarkReport, folder: Path, count: int) -> list[EpisodeSpec]:
    """Those of the first `count` failed episodes that were not filmed yet."""
    index = film_index(folder)
    paths = [(spec, film_path(folder, spec)) for spec in failures(report)[:count]]
    return [spec for spec, path in paths if path.name not in index or not path.is_file()]


def made_films(report: BenchmarkReport, folder: Path, count: int) -> list[FailureVideo]:
    """The films of the first `count` failed episodes, as far as they are made."""
    index, missing = film_index(folder), missing_films(report, folder, count)
    wanted = [(spec, film_path(folder, spec)) for spec in failures(report)[:count] if spec not in missing]
    return [FailureVideo(spec.task, spec.init_state, path.read_bytes(), index[path.name]) for spec, path in wanted]


def film_index(folder: Path) -> dict[str, bool]:
    """By name of each film that was made: whether its run succeeded, as the evaluated one had not."""
    path = folder / "videos" / _INDEX
    return json.loads(path.read_bytes()) if path.is_file() else {}


def film_path(folder: Path, spec: EpisodeSpec) -> Path:
    """Where the film of an episode is."""
    return folder / "videos" / f"{spec.task.partition('/')[2] or spec.task}-state{spec.init_state}.mp4"


def failures(report: BenchmarkReport) -> list[EpisodeSpec]:
    """Episodes in which the goal never held: the first of each task, then the second of each, and so on."""
    return interleaved([row.result.spec for row in report.outcomes if not row.result.success])
