"""Envs that differ by episode: colours, lights, cameras, friction, masses, drawn from the EpisodeSpec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass

import mujoco
import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.rng import EpisodeStream, philox
from embodied_rl.sim.warp.transfer import to_device
from embodied_rl.types import Array


@dataclass(frozen=True, slots=True)
class Randomization:
    """How far an episode's env may differ; 0 leaves a thing as it is. The official envs are those of all zeros.

    Args:
        color: colours of geoms and materials are multiplied by factors in [1 - color, 1 + color], by channel.
        light: likewise the brightness of each light.
        camera: metres by which each camera moves along each axis, at most.
        friction: the friction of all geoms is multiplied by one factor in [1 - friction, 1 + friction].
        mass: likewise mass and inertia of each object that moves freely.

    Example:
        >>> WarpVecEnv(tasks, 64, device="cuda", randomize=Randomization(color=0.2, camera=0.01, friction=0.3))
    """

    color: float = 0.0
    light: float = 0.0
    camera: float = 0.0
    friction: float = 0.0
    mass: float = 0.0

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0 or max(self.color, self.light, self.friction, self.mass) >= 1 or self.camera > 1:
            raise UserError(f"a randomization is a share in [0, 1), and metres in [0, 1] for cameras; got {self}")

    @property
    def changes_looks(self) -> bool:
        """Whether pictures differ."""
        return max(self.color, self.light, self.camera) > 0

    @property
    def changes_physics(self) -> bool:
        """Whether motions differ."""
        return max(self.friction, self.mass) > 0

    def looks(self, model: mujoco.MjModel, seed: int) -> dict[str, Array]:
        """Fields of the visual model, by name, of the episode with this seed."""
        draws, found = philox(seed, EpisodeStream.WARP_LOOKS), {}
        for name, spread in (("geom_rgba", self.color), ("mat_rgba", self.color)):
            rgba = getattr(model, name).astype(np.float64)
            rgba[:, :3] *= 1 + draws.uniform(-spread, spread, (len(rgba), 3))
            found[name] = rgba.clip(0, 1)
        found["light_diffuse"] = model.light_diffuse * (1 + draws.uniform(-self.light, self.light, (model.nlight, 1)))
        found["cam_pos"] = model.cam_pos + draws.uniform(-self.camera, self.camera, (model.ncam, 3))
        return found

    def physics(self, model: mujoco.MjModel, seed: int) -> dict[str, Array]:
        """Fields of the physics model, by name, of the episode with this seed.

        Scaling a whole tree of bodies scales its inertia and divides what MuJoCo derives from it, exactly.
        """
        draws = philox(seed, EpisodeStream.WARP_PHYSICS)
        slide = 1 + draws.uniform(-self.friction, self.friction)
        scale = np.ones(model.nbody)
        for joint in range(model.njnt):
            if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
                root = model.jnt_bodyid[joint]
                scale[model.body_rootid == root] = 1 + draws.uniform(-self.mass, self.mass)
        subtree = model.body_subtreemass * scale
        subtree[0] = (model.body_mass * scale).sum()  # under the world's body trees differ in scale
        return {
            "geom_friction": model.geom_friction * slide,
            "body_mass": model.body_mass * scale,
            "body_inertia": model.body_inertia * scale[:, None],
            "body_subtreemass": subtree,
            "body_invweight0": model.body_invweight0 / scale[:, None],
            "dof_invweight0": model.dof_invweight0 / scale[model.dof_bodyid],
        }


def described(randomize: Randomization | None) -> str:
    """', randomized (color 0.2)' for a stamp; '' where nothing is."""
    named = {} if randomize is None else {name: value for name, value in asdict(randomize).items() if value}
    return f", randomized ({', '.join(f'{name} {value:g}' for name, value in named.items())})" if named else ""


class EnvFields:
    """Model fields of N envs on the device, which a batch takes over world by world.

    Args:
        base: the model's own, by name.
        rows: how many envs.
    """

    def __init__(self, base: dict[str, Array], rows: int, device: str) -> None:
        self._device = device
        self._values = {
            name: torch.from_numpy(values.astype(np.float32)).to(device).repeat(rows, *(1 for _ in values.shape))
            for name, values in base.items()
        }
        self.names = tuple(base)

    def put(self, env_ids: Sequence[int], drawn: Sequence[dict[str, Array]]) -> None:
        """Fields of these envs, one dictionary each."""
        index = to_device(torch.tensor(env_ids, dtype=torch.int64), self._device)
        for name, values in self._values.items():
            stacked = np.stack([fields[name] for fields in drawn]).astype(np.float32)
            values[index] = to_device(torch.from_numpy(stacked), self._device)

    def copy_to(self, targets: dict[str, torch.Tensor], env_ids: torch.Tensor) -> None:
        """World i of a batch gets the fields of env_ids[i], int64 [N]."""
        for name, values in self._values.items():
            target = targets[name][: len(env_ids)]
            target.copy_(values[env_ids].view(target.shape))
