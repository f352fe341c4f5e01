"""Films one episode; a simulator that breaks meanwhile makes it begin anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from embodied_rl.evaluation.record import record_episode
from embodied_rl.policy import ActMode, Policy
from embodied_rl.rollout.retries import EVALUATION_ATTEMPTS
from embodied_rl.telemetry.video import VideoWriter, caption_rows, captioned
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec
from embodied_rl.vec_env import SimulatorFailed, VecEnv

FRAME_SIZE = 256
"""Pixels: height and width of one camera's picture in a film."""


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
        "it was filmed."
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
