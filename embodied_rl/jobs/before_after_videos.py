"""Films the same held-out episodes before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from embodied_rl.config.train import TrainConfig
from embodied_rl.jobs.videos import record_video
from embodied_rl.policy import Policy
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.telemetry.observer import read_evaluation
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.words import sentence
from embodied_rl.vec_env import VecEnv


def record_videos(
    env: VecEnv, policy: Policy, held_out: Mapping[str, Sequence[int]], config: TrainConfig, folder: Path, when: str
) -> None:
    """Write videos/TASK-WHEN.mp4 for the first tasks, at the robot's own speed.

    Each is from the first held-out state that the evaluation before the first update measured.
    """
    for spec in _specs(held_out, config, folder):
        caption = f"{when}: {sentence(spec.task)}"
        record_video(env, policy, spec, config.evaluation.mode, video_path(folder, spec.task, when), caption)


def video_path(folder: Path, task: str, when: str) -> Path:
    """Where a film is kept; when: 'before' or 'after'."""
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
