"""The simulator contract: chunk-native, explicit episodes, no hidden resets, physics and rendering apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation


class SimulatorFailed(RuntimeError):
    """The simulator of a env broke while somebody watched it; its episode is lost, a reset begins another."""


@dataclass(frozen=True, slots=True)
class EnvInfo:
    """What a VecEnv really is; printed at the start of a run and stamped into its outputs.

    simulator, renderer: names with versions, e.g. 'native-mujoco 4.0.0', 'raycast'. horizon is per task.
    """

    suite: str
    simulator: str
    renderer: str
    cameras: tuple[str, ...]
    image_size: int
    action_dim: int
    proprio_dim: int
    control_hz: float


class VecEnv(Protocol):
    """N envs, each empty or holding one episode.

    A env is filled by `reset`, advanced by `step` until terminated, truncated or failed, and then must be reset
    before it is stepped again. A reset may also replace an episode that has not ended. Calls for disjoint envs may run
    in different threads.
    """

    num_envs: int
    info: EnvInfo

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`."""
        ...

    def step(self, env_ids: Sequence[int], actions: Array) -> ChunkResult:
        """Run up to K control steps in each env; actions float32 [len(envs), K, A] in [-1, 1] (clipped)."""
        ...

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """Render and fill row i of `out` for `env_ids[i]` (images, proprio, instruction), also after an episode's end.

        Returns the rows that it could not fill because their simulator broke, None if all are filled. The next step of
        such a env fails.
        """
        ...

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows with this environment's shapes."""
        ...

    def close(self) -> None:
        """Free threads, processes and GL contexts."""
        ...
