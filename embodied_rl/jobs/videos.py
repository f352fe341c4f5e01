"""Videos of episodes: one episode, the same ones before and after training, and those that failed.

A simulator that breaks meanwhile makes a video begin anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.config.train import TrainConfig
from embodied_rl.evaluation.benchmark import BenchmarkReport, interleaved
from embodied_rl.evaluation.record import record_episode
from embodied_rl.policy import ActMode, Policy
from embodied_rl.rollout.retries import EVALUATION_ATTEMPTS
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.telemetry.observer import read_evaluation
from embodied_rl.telemetry.video import VideoWriter, caption_rows, captioned
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import sentence
from embodied_rl.vec_env import SimulatorFailed, VecEnv

FRAME_SIZE = 256
"""Pixels: height and width of one camera's image in a video."""
_INDEX = "films.json"  # its name in folders of earlier versions


def record_frames(
    env: VecEnv, policy: Policy, spec: EpisodeSpec, mode: ActMode, on_frame: Callable[[], None] | None = None
) -> tuple[EpisodeResult, list[Array]]:
    """Run `spec` in env 0; its result and its frames of all cameras side by side, uint8 [256, V * 256, 3].

    on_frame: called after each frame; what it raises ends the recording.

    Raises:
        SimulatorFailed: the simulator broke three times.
        NotImplementedError: it draws no pictures.
    """
    cameras = env.info.cameras or ("",)  # without one, the simulator's own view
    frames: list[Array] = []

    def write(frame: Array) -> None:
        frames.append(frame)
        if on_frame is not None:
            on_frame()

    for _ in range(EVALUATION_ATTEMPTS):
        frames.clear()
        try:
            return record_episode(env, policy, spec, mode, cameras=cameras, size=FRAME_SIZE, write=write), frames
        except SimulatorFailed:
            continue
    raise SimulatorFailed(
        f"task '{spec.task}', initial state {spec.init_state}, broke the simulator {EVALUATION_ATTEMPTS} times while "
        "it was recorded."
    )


def record_video(
    env: VecEnv,
    policy: Policy,
    spec: EpisodeSpec,
    mode: ActMode,
    path: Path,
    caption: str,
    on_frame: Callable[[], None] | None = None,
) -> EpisodeResult:
    """Run `spec` in env 0 and write it to `path` at the robot's own speed, with a caption in every frame.

    on_frame: as in `record_frames`.
    """
    result, frames = record_frames(env, policy, spec, mode, on_frame)
    with VideoWriter(path, env.info.control_hz) as video:
        rows = caption_rows([caption], frames[0].shape[1])
        for frame in frames:
            video.write(captioned(frame, caption, rows=rows))
    return result


def record_before_after(
    env: VecEnv, policy: Policy, held_out: Mapping[str, Sequence[int]], config: TrainConfig, folder: Path, when: str
) -> dict[str, Path]:
    """Write videos/TASK-WHEN.mp4 for the first tasks, at the robot's own speed; returns their paths by task.

    Each is from the first held-out state that the evaluation before the first update measured.
    """
    paths: dict[str, Path] = {}
    for spec in _specs(held_out, config, folder):
        caption, path = f"{when}: {sentence(spec.task)}", video_path(folder, spec.task, when)
        record_video(env, policy, spec, config.evaluation.mode, path, caption)
        paths[_short(spec.task)] = path
    return paths


def video_path(folder: Path, task: str, when: str) -> Path:
    """Where a video is kept; when: 'before' or 'after'."""
    return folder / "videos" / f"{_short(task)}-{when}.mp4"


def _short(task: str) -> str:
    return (task.partition("/")[2] or task).replace("/", "-")


def _specs(held_out: Mapping[str, Sequence[int]], config: TrainConfig, folder: Path) -> list[EpisodeSpec]:
    """The evaluation's own episodes, so that what is seen was also counted."""
    rows = {task: list(states)[: config.evaluation.states_per_task] for task, states in held_out.items()}
    lost = read_evaluation(folder, 0).not_measured
    measured = [spec for spec in evaluation_specs(rows, config.seed) if spec not in lost]
    firsts = {spec.task: spec for spec in reversed(measured)}
    return [firsts[task] for task in list(rows)[: config.videos] if task in firsts]


def record_failure(
    env: VecEnv,
    policy: Policy,
    spec: EpisodeSpec,
    mode: ActMode,
    folder: Path,
    on_frame: Callable[[], None] | None = None,
) -> None:
    """Record one episode as videos/TASK-stateN.mp4; videos/films.json notes how the run went.

    on_frame: as in `record_frames`.

    Where the simulator breaks now, as it did not when the episode was measured, the video stays missing.
    """
    path, index = failure_path(folder, spec), failure_index(folder)
    caption = f"state {spec.init_state}: {sentence(spec.task)}"
    # Where this run succeeds, the episode does not repeat itself on this machine.
    try:
        index[path.name] = record_video(env, policy, spec, mode, path, caption, on_frame).success
    except SimulatorFailed:
        return
    replace_text(path.with_name(_INDEX), json.dumps(index, indent=1))


def missing_videos(report: BenchmarkReport, folder: Path, count: int) -> list[EpisodeSpec]:
    """Those of the first `count` failed episodes that have no video yet."""
    index = failure_index(folder)
    paths = [(spec, failure_path(folder, spec)) for spec in failures(report)[:count]]
    return [spec for spec, path in paths if path.name not in index or not path.is_file()]


@dataclass(frozen=True, slots=True)
class FailureVideo:
    """A recording of an episode that failed. succeeded: this second run of it did not fail, so the policy or the
    simulator does not repeat itself here."""

    task: str
    init_state: int
    video: bytes
    succeeded: bool


def made_videos(report: BenchmarkReport, folder: Path, count: int) -> list[FailureVideo]:
    """The videos of the first `count` failed episodes, as far as they are made."""
    index, missing = failure_index(folder), missing_videos(report, folder, count)
    wanted = [(spec, failure_path(folder, spec)) for spec in failures(report)[:count] if spec not in missing]
    return [FailureVideo(spec.task, spec.init_state, path.read_bytes(), index[path.name]) for spec, path in wanted]


def failure_index(folder: Path) -> dict[str, bool]:
    """By name of each video that was made: whether its run succeeded, as the evaluated one had not."""
    path = folder / "videos" / _INDEX
    return json.loads(path.read_bytes()) if path.is_file() else {}


def failure_path(folder: Path, spec: EpisodeSpec) -> Path:
    """Where the video of an episode that failed is."""
    return folder / "videos" / f"{spec.task.partition('/')[2] or spec.task}-state{spec.init_state}.mp4"


def failures(report: BenchmarkReport) -> list[EpisodeSpec]:
    """Episodes in which the goal never held: the first of each task, then the second of each, and so on."""
    return interleaved([row.result.spec for row in report.outcomes if not row.result.success])
