"""The simulator contract: chunk-native, explicit episodes, no hidden resets, physics and rendering apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation

if TYPE_CHECKING:
    import torch


class SimulatorFailed(RuntimeError):
    """The simulator of an env broke while a frame of it was wanted; its episode is lost, a reset begins another.

    Example:
        >>> try:
        ...     image = env.frame(0, "agentview", 256)
        ... except SimulatorFailed:
        ...     env.reset([0], [spec])
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvInfo:
    """What a VecEnv is: printed at the start of a run and stamped into its outputs.

    Args:
        backend: folder of `embodied_rl.sim` that it comes from, such as 'mujoco'.
        suite: names of the suites of its tasks, joined by '+'.
        simulator, renderer: names with versions, such as 'native-mujoco 4.0.0' and 'raycast'.
        cameras: names in the order of axis V of `Observation.images`; empty where tasks have a state and no images.
        image_shape: (H, W) in pixels.
        proprio_dim, state_dim: P and S; S = 0 where `Observation.state` is None.
        action_dim: A.
        action_low, action_high: A bounds each; `VecEnv.step` clips actions to them.
        control_hz: control steps a second of simulated time.
        max_episode_steps: control steps of the longest task's horizon.
        has_success: whether tasks have a goal that `ChunkResult.success` reports; without one the mean return is what
            counts.
        repeatable: whether an `EpisodeSpec` and a policy fix an episode; where they do not, no two episodes are of one
            initial state, and no run can be repeated.
        instructed: whether `Observation.instruction` says in words what is to be done; else it is the task's name.
        reads: what of a simulator's own observations is shown as what, a line each; () where the suite fixes it.
        steps_together: whether a step moves all envs, so that it must name every one whose episode is to go on: those
            that it does not name are given up.
        device: where observations and chunk results are: 'cpu', 'cuda:0'.

    Example:
        >>> env.info.image_shape, env.info.cameras
        ((64, 64), ('agentview', 'robot0_eye_in_hand'))
    """

    backend: str
    suite: str
    simulator: str
    renderer: str
    cameras: tuple[str, ...]
    image_shape: tuple[int, int]
    proprio_dim: int
    action_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_hz: float
    max_episode_steps: int
    state_dim: int = 0
    has_success: bool = True
    repeatable: bool = True
    instructed: bool = True
    reads: tuple[str, ...] = ()
    steps_together: bool = False
    device: str = "cpu"

    def new_observation(self, rows: int) -> Observation:
        """Allocate N = `rows` rows of zeros on `device`."""
        import torch

        images = torch.zeros((rows, len(self.cameras), *self.image_shape, 3), dtype=torch.uint8, device=self.device)
        proprio = torch.zeros((rows, self.proprio_dim), device=self.device)
        state = torch.zeros((rows, self.state_dim), device=self.device) if self.state_dim else None
        return Observation(images, proprio, [""] * rows, state)


class VecEnv(Protocol):
    """N envs, each empty or holding one episode.

    `reset` fills an env. `step` advances it until it is terminated, truncated or failed; then it must be reset before
    it is stepped again. No env resets itself. A reset may replace an episode that has not ended. Calls for disjoint
    env ids may run in different threads. Every backend passes `tests/sim/contract.py`.

    Example:
        >>> env.reset([0, 1], [EpisodeSpec(0, "reach", 0, seed=1), EpisodeSpec(1, "reach", 1, seed=2)])
        >>> obs = env.new_observation(2)
        >>> env.observe([0, 1], obs)
        >>> result = env.step([0, 1], policy.act(obs, rng, "sample").actions)
        >>> ended = result.terminated | result.truncated
    """

    num_envs: int
    info: EnvInfo

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`."""
        ...

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps in each env.

        Args:
            env_ids: N different ones, each holding an episode that has not ended.
            actions: float32 [N, K, A] on any device, clipped to the bounds of `info`.

        Raises:
            ValueError: for actions that are misshapen or not finite; no env has moved then.
        """
        ...

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """Render and fill row i of `out` for `env_ids[i]`, also after an episode's end; further rows stay.

        Returns:
            The rows that could not be filled because their simulator broke, None if all are filled. The next step of
            such an env fails.
        """
        ...

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """Render one camera at any size, for videos; also after an episode's end.

        Args:
            camera: one of `info.cameras`; '' is the view of a backend that shows policies no images.

        Returns:
            uint8 [size, size, 3], RGB, in host memory.

        Raises:
            SimulatorFailed: if the env's simulator broke.
            NotImplementedError: if the backend has no camera to show.
        """
        ...

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows on the env's device."""
        ...

    def close(self) -> None:
        """Free threads, processes and GL contexts."""
        ...
