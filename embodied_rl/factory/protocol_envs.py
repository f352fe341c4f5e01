"""Opens the simulated worlds as a protocol and a policy want them; `train` and `eval` share it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from embodied_rl.config.train import EnvConfig, TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.envs import open_env
from embodied_rl.policies.preprocessing.images import image_pipeline, prepare
from embodied_rl.sim.libero.protocol import NATIVE, Protocol, protocol
from embodied_rl.sim.mujoco.episodes import TrainingEpisodes
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.wrappers.protocol_env import ProtocolEnv
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.machine import cpu_count
from embodied_rl.vec_env import VecEnv

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy


def training_episodes(config: TrainConfig) -> TrainingEpisodes | None:
    """How the training episodes of a run may differ from its tasks' own; None: they may not."""
    return TrainingEpisodes(config.perturb, config.perturbation[0]) if config.perturb else None


@contextmanager
def open_protocol_env(
    tasks: Sequence[MujocoTask],
    config: EnvConfig,
    chosen: Protocol,
    image_size: int,
    cameras: int,
    *,
    crop: bool = True,
    run_on: bool = False,
    translate: Callable[[EpisodeSpec], EpisodeSpec] | None = None,
    device: str = "cpu",
    training: TrainingEpisodes | None = None,
) -> Iterator[ProtocolEnv]:
    """The worlds, run as `chosen` says; image_size, cameras: what the policy looks at.

    config.renderer is what `pick_renderer` chose. crop: cut the pictures as the protocol does; not where the policy
    itself cuts out their middle. run_on, translate: see ProtocolEnv. device, training: see `open_env`.

    Raises:
        UserError: a staged or shaped reward is asked for.
    """
    if config.reward != "sparse":
        raise UserError(
            f"--env.reward {config.reward} goes with --protocol native: '{chosen.name}' pays for success only."
        )
    timed = [dataclasses.replace(task, max_episode_steps=chosen.settle_steps + chosen.horizon(task)) for task in tasks]
    threads = config.num_threads or cpu_count()
    settings = dataclasses.replace(config, num_threads=threads)
    pipeline = image_pipeline(chosen.images)
    if not crop:
        pipeline = dataclasses.replace(pipeline, crop_area=None)

    def pictures(frames: Array, out: Array) -> None:
        prepare(pipeline, frames, out, pool)

    with (
        open_env(
            timed,
            settings,
            chosen.render_size or image_size,
            cameras=cameras,
            stop_at_success=False,
            device=device,
            training=training,
        ) as env,
        ThreadPoolExecutor(threads, "pictures") as pool,
    ):
        yield ProtocolEnv(
            env,
            chosen,
            image_size=image_size,
            cameras=cameras,
            prepare=None if pipeline == image_pipeline(NATIVE.images) else pictures,
            run_on=run_on,
            translate=translate,
        )


def open_envs(
    tasks: Sequence[MujocoTask],
    config: EnvConfig,
    chosen: str,
    policy: AnyPolicy,
    training: TrainingEpisodes | None = None,
) -> AbstractContextManager[VecEnv]:
    """The worlds under the protocol of that name, as `policy` sees them; under `native` just as they come.

    training: see `open_env`.
    """
    seen = policy.config
    if chosen == NATIVE.name:
        return open_env(
            tasks, config, seen.image_size, cameras=seen.num_cameras, device=policy.device.type, training=training
        )
    return open_protocol_env(
        tasks,
        config,
        protocol(chosen),
        seen.image_size,
        seen.num_cameras,
        crop=policy.center_crop is None,
        device=policy.device.type,
        training=training,
    )
