"""Opens gymnasium environments, in this process or in the child of a `ProcessVecEnv`."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv


@dataclass(frozen=True, slots=True)
class GymnasiumFactory:
    """Call it with a number of envs to open a `GymnasiumVecEnv`; can be pickled. ids: as `GymnasiumVecEnv` takes them.

    Example:
        >>> env = ProcessVecEnv(GymnasiumFactory(("Pendulum-v1",)), 16, processes=2)
    """

    ids: tuple[str, ...]

    def __call__(self, num_envs: int) -> GymnasiumVecEnv:
        return GymnasiumVecEnv(self.ids, num_envs)
