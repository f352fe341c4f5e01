"""Writes one episode as a film; a simulator that breaks meanwhile makes it begin anew."""

from __future__ import annotations

from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.evaluation.record import record_episode
from embodied_rl.policy import ActMode, Policy
from embodied_rl.telemetry.video import VideoWriter, captioned
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec
from embodied_rl.vec_env import SimulatorFailed, VecEnv

_SIZE = 256
_ATTEMPTS = 5


def record_video(
    env: VecEnv, policy: Policy, spec: EpisodeSpec, mode: ActMode, path: Path, caption: str
) -> EpisodeResult:
    """Run `spec` in env 0 and write it to `path` at the robot's own speed, with a caption in every frame.

    UserError if the simulator breaks five times.
    """
    for _ in range(_ATTEMPTS):
        try:
            with VideoWriter(path, env.info.control_hz) as video:

                def write(frame: Array, video: VideoWriter = video) -> None:
                    video.write(captioned(frame, caption))

                return record_episode(env, policy, spec, mode, camera=env.info.cameras[0], size=_SIZE, write=write)
        except SimulatorFailed:
            continue
    raise UserError(
        f"task '{spec.task}', initial state {spec.init_state}, broke the simulator {_ATTEMPTS} times while it was "
        "filmed."
    )
