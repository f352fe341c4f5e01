"""Films episodes that failed, by running them again."""

from __future__ import annotations

import json
from pathlib import Path

from embodied_rl.evaluation.benchmark import BenchmarkReport, interleaved
from embodied_rl.jobs.videos import record_video
from embodied_rl.policy import ActMode, Policy
from embodied_rl.telemetry.eval_report import FailureVideo
from embodied_rl.telemetry.report import replace_text
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv

_INDEX = "films.json"


def record_failure_videos(
    env: VecEnv, policy: Policy, report: BenchmarkReport, mode: ActMode, folder: Path, count: int
) -> list[FailureVideo]:
    """Write videos/TASK-stateN.mp4 of up to `count` failed episodes, the first of each task first.

    Films that are there from an earlier session are not made again; videos/films.json says how each run went.
    """
    index = film_index(folder)
    films = []
    for spec in failures(report)[:count]:
        path = film_path(folder, spec)
        if path.name not in index or not path.is_file():
            index[path.name] = _record(env, policy, spec, mode, path)
            replace_text(path.with_name(_INDEX), json.dumps(index, indent=1))
        films.append(FailureVideo(spec.task, spec.init_state, path.read_bytes(), index[path.name]))
    return films


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


def _record(env: VecEnv, policy: Policy, spec: EpisodeSpec, mode: ActMode, path: Path) -> bool:
    """Whether this run succeeded: where it did, the episode does not repeat itself on this machine."""
    caption = f"state {spec.init_state}: {spec.task.partition('/')[2].replace('_', ' ')}"
    return record_video(env, policy, spec, mode, path, caption).success
