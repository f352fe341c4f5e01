"""Record an episode frame by frame: the policy acts once a chunk, as always; the chunk is stepped one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from embodied_rl.evaluation.stepped import SteppedEpisode
from embodied_rl.policy import ActMode, Policy
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec
from embodied_rl.vec_env import VecEnv

_SIZE = 256


def record_episode(
    env: VecEnv,
    policy: Policy,
    spec: EpisodeSpec,
    mode: ActMode,
    *,
    cameras: Sequence[str],
    size: int,
    write: Callable[[Array], None],
) -> EpisodeResult:
    """Run `spec` in env 0, which must be free, and write every frame. The outcome is that of `evaluate`.

    Args:
        cameras, size: as in `VecEnv.frame`; pictures of several cameras stand side by side.
        write: gets each frame, uint8 [size, V * size, 3]: one before each control step, and the last.

    Raises:
        SimulatorFailed: if the simulator does.
        UserError: if an action is not finite.
    """
    episode = SteppedEpisode(env, policy, spec, mode)
    write(_frame(episode, cameras, size))
    while not episode.over:
        episode.step()
        write(_frame(episode, cameras, size))
    return episode.result


def _frame(episode: SteppedEpisode, cameras: Sequence[str], size: int) -> Array:
    """The episode from every camera, uint8 [size, V * size, 3]."""
    return np.concatenate([episode.frame(camera, size) for camera in cameras], axis=1)


def seen_at(env: VecEnv, policy: Policy, spec: EpisodeSpec, mode: ActMode, step: int) -> list[Array]:
    """Run `spec` in env 0 up to the decision of a control step, and show what the policy sees then.

    Args:
        step: counted from 0.

    Returns:
        The policy's pictures, uint8 [H, W, 3] each, and after them a frame of 256 x 256 for people where the env draws
        one.

    Raises:
        SimulatorFailed: if the simulator does.
        ValueError: the episode ends before that step.
    """
    episode = SteppedEpisode(env, policy, spec, mode)
    while True:
        episode.decide()
        if step < episode.result.num_steps + len(episode.chunk):
            break
        while len(episode.chunk) and not episode.over:
            episode.step()
        if episode.over:
            raise ValueError(f"the episode ended after {episode.result.num_steps} steps, before step {step}")
    pictures = [picture.cpu().numpy().copy() for picture in episode.observation.images[0]]
    return [*pictures, episode.frame(next(iter(env.info.cameras), ""), _SIZE)]
