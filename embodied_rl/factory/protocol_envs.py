"""Opens the simulated worlds as a protocol and a policy want them; `train` and `eval` share it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from embodied_rl.config.env import MujocoConfig, SceneConfig, resized
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.envs import open_env
from embodied_rl.policies.preprocessing.images import image_pipeline, prepare
from embodied_rl.sim.libero.protocol import NATIVE, Protocol
from embodied_rl.sim.mujoco.episodes import TrainingEpisodes
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.wrappers.protocol_env import ProtocolEnv
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.machine import cpu_count

if TYPE_CHECKING:
    pass


def training_episodes(config: TrainConfig) -> TrainingEpisodes | None:
    """How the training episodes of a run may differ from its tasks' own; None: they may not."""
    return TrainingEpisodes(config.perturb, config.perturbation[0]) if config.perturb else None


@contextmanager
def open_protocol_env(
    tasks: Sequence[MujocoTask],
    config: SceneConfig,
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
    if isinstance(config, MujocoConfig) and config.reward != "sparse":
        raise UserError(
            f"--env.reward {config.reward} goes with --protocol native: '{chosen.name}' pays for success only."
        )
    timed = [dataclasses.replace(task, max_episode_steps=chosen.settle_steps + chosen.horizon(task)) for task in tasks]
    threads = config.threads or cpu_count()
    settings = resized(config, threads=threads)
    assert isinstance(settings, SceneConfig)
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
