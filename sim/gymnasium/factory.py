"""Opens gymnasium environments, in this process or in the child of a `ProcessVecEnv`."""

from __future__ import annotations

from dataclasses import dataclass, field

from embodied_rl.sim.gymnasium.spaces import ReadOptions
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv


@dataclass(frozen=True, slots=True)
class GymnasiumFactory:
    """Call it with a number of envs to open a `GymnasiumVecEnv`; can be pickled. ids, read: as it takes them.

    Example:
        >>> env = ProcessVecEnv(GymnasiumFactory(("Pendulum-v1",)), 16, processes=2)
    """

    ids: tuple[str, ...]
    read: ReadOptions = field(default_factory=ReadOptions)

    def __call__(self, num_envs: int) -> GymnasiumVecEnv:
        return GymnasiumVecEnv(self.ids, num_envs, self.read)
