"""Opens gymnasium environments, in this process or in the child of a `ProcessVecEnv`."""

from __future__ import annotations

from dataclasses import dataclass, field

from embodied_rl.errors import UserError
from embodied_rl.sim.gymnasium.load import spec_of
from embodied_rl.sim.gymnasium.spaces import ReadOptions
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv
from embodied_rl.sim.gymnasium.vector_probe import open_envs
from embodied_rl.vec_env import VecEnv


@dataclass(frozen=True, slots=True)
class GymnasiumFactory:
    """Call it with a number of envs to open them; can be pickled.

    ids, read: as `GymnasiumVecEnv` takes them. apart: some are stepped while others stand still, which takes single
    envs; else the vector env of an id's own is used where there is one that does.

    Example:
        >>> env = ProcessVecEnv(GymnasiumFactory(("Pendulum-v1",), apart=True), 16, processes=2)
    """

    ids: tuple[str, ...]
    read: ReadOptions = field(default_factory=ReadOptions)
    apart: bool = False

    def __call__(self, num_envs: int) -> VecEnv:
        for name in self.ids:
            spec = spec_of(name)
            if spec.entry_point is None and spec.vector_entry_point is not None and (self.apart or len(self.ids) > 1):
                raise UserError(
                    f"{name} has a vector env only, whose envs are of one task and step together: name it alone, leave "
                    "--env.processes out, and give --scheduler.env-groups 1 where the scheduler is pipelined."
                )
        if self.apart or len(self.ids) != 1:
            return GymnasiumVecEnv(self.ids, num_envs, self.read)
        return open_envs(self.ids[0], num_envs, self.read)
