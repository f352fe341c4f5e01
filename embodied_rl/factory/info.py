"""What really runs, as fields: simulator, machine, versions. `factory.policies.policy_info` says it of a policy."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mujoco
import torch

from embodied_rl.config.env import EnvConfig, SceneConfig, WarpConfig
from embodied_rl.factory.scenes import pick_render_quality, threads_each
from embodied_rl.factory.tasks import bundles_digest, physics_version, stand_in_files
from embodied_rl.telemetry.info import MachineInfo, SimulatorInfo, Versions
from embodied_rl.utils.machine import cpu_count, cpu_name
from embodied_rl.vec_env import EnvInfo
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask
    from embodied_rl.sim.render import Choice


def simulator_info(
    info: EnvInfo, config: EnvConfig, scenes: Sequence[SuiteTask], renderer: Choice | None
) -> SimulatorInfo:
    """Of envs that `config` opened; scenes: as of `Tasks`. renderer: what draws them, None where there are none."""
    in_scenes = isinstance(config, SceneConfig)
    processes, threads = config.watched, config.threads or cpu_count()
    batched = isinstance(config, WarpConfig)
    return SimulatorInfo(
        name=info.simulator,
        num_envs=config.num_envs,
        processes=processes,
        threads=threads_each(threads, processes) if in_scenes and not batched else None,
        batched=batched,
        renderer=info.renderer,
        renderer_reason=None if renderer is None else renderer.reason,
        render_quality=pick_render_quality(config.render_quality, scenes) if in_scenes and scenes else None,
        cameras=len(info.cameras),
        image_height=info.image_shape[0],
        image_width=info.image_shape[1],
        state_dim=info.state_dim + info.proprio_dim,
        max_episode_steps=info.max_episode_steps,
        control_hz=info.control_hz,
        has_success=info.has_success,
        repeatable=info.repeatable,
        physics_version=physics_version(scenes),
        stand_in_files=stand_in_files(scenes),
        bundles=bundles_digest(scenes) or None,
        reads=info.reads,
    )


def machine_info(device: str) -> MachineInfo:
    """This machine; device: 'cpu' or 'cuda', where the policy is."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return MachineInfo(cpu=cpu_name(), cores=cpu_count(), device=device, gpu=gpu, threads=torch.get_num_threads())


def versions() -> Versions:
    """Of what computes here."""
    return Versions(
        embodied_rl=__version__, mujoco=mujoco.__version__, torch=torch.__version__, python=platform.python_version()
    )
