"""Films the same held-out episodes before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from embodied_rl.config import TrainConfig
from embodied_rl.evaluation.record import FrameEnv, record_episode
from embodied_rl.policy import Policy
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.telemetry.video import VideoWriter, captioned
from embodied_rl.types import Array, EpisodeSpec

_SIZE = 256


def film(env: FrameEnv, policy: Policy, held_out: Mapping[str, Sequence[int]], config: TrainConfig, folder: Path,
         when: str) -> None:
    """Write videos/TASK-WHEN.mp4 for the first tasks, each from its first held-out state, at the robot's own speed."""
    for spec in _specs(held_out, config):
        path = film_path(folder, spec.task, when)
        path.parent.mkdir(exist_ok=True)
        with VideoWriter(path, env.info.control_hz) as video:
            record_episode(
                env, policy, spec, config.evaluation.mode, camera=env.info.cameras[0], size=_SIZE,
                write=partial(_write, video, f"{when}: {_short(spec.task).replace('_', ' ')}"),
            )


def film_path(folder: Path, task: str, when: str) -> Path:
    """Where a film is kept; when: 'before' or 'after'."""
    return folder / "videos" / f"{_short(task)}-{when}.mp4"


def _write(video: VideoWriter, caption: str, frame: Array) -> None:
    video.write(captioned(frame, caption))


def _short(task: str) -> str:
    return task.partition("/")[2] or task


def _specs(held_out: Mapping[str, Sequence[int]], config: TrainConfig) -> list[EpisodeSpec]:
    """The evaluation's own episodes, so that what is seen was also counted."""
    rows = {task: list(states)[: config.evaluation.states_per_task] for task, states in held_out.items()}
    firsts = {spec.task: spec for spec in reversed(evaluation_specs(rows, config.seed))}
    return [firsts[task] for task in list(rows)[: config.videos]]
