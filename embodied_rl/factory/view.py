"""How a command wants envs to be shown and run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embodied_rl.config.policies import CUSTOM
from embodied_rl.config.suites import find_suite
from embodied_rl.config.train import TrainConfig
from embodied_rl.policies.preprocessing.fit import ImageFit
from embodied_rl.sim.libero.protocol import NATIVE, Protocol
from embodied_rl.sim.mujoco.episodes import TrainingEpisodes
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import EnvInfo

if TYPE_CHECKING:
    from embodied_rl.sim.wrappers.protocol_env import Sensor


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How a command wants envs to be shown and run; simulators of other tasks than scenes have their own way.

    image_size, cameras: of the pictures; cameras=0 draws none, and needs `state`: observations have one; None: all that
    a simulator of other tasks than scenes has. fit: how the images of such a one come to `image_size` (None: they stay
    as they are). own_units: actions are as such a one takes them, not in [-1, 1]. apart: some of its envs are stepped
    while others stand still. crop: cut the pictures as the protocol does; not where the policy itself cuts out their
    middle. device: where MuJoCo Warp simulates and draws, 'cpu' or 'cuda'. training: how episodes may differ from the
    tasks' own (None: they may not). judged: run `native` too as an evaluation does, which knows the end.
    stop_at_success: end `native` episodes of training there; else they go on to their horizon. run_on, translate,
    sensor: see `ProtocolEnv`.
    """

    image_size: int = 64
    cameras: int | None = 2
    fit: ImageFit | None = None
    own_units: bool = False
    apart: bool = False
    state: bool = False
    crop: bool = True
    protocol: Protocol = NATIVE
    device: str = "cpu"
    training: TrainingEpisodes | None = None
    judged: bool = False
    stop_at_success: bool = True
    run_on: bool = False
    translate: Callable[[EpisodeSpec], EpisodeSpec] | None = None
    sensor: Sensor | None = None


def view_of(policy: Any, **options: Any) -> View:
    """What `policy` looks at; options: further ones of `View`."""
    if policy.architecture == CUSTOM:
        return _made_for(policy.made_for.info, policy.made_for.own_units, **options)
    if policy.architecture == "mlp":
        return View(device=policy.device.type, **options)
    return View(
        image_size=policy.config.image_size,
        cameras=policy.config.num_cameras,
        fit=policy.config.image_fit,
        own_units=True,
        crop=policy.center_crop is None,
        device=policy.device.type,
        **options,
    )


def _made_for(info: EnvInfo, own_units: bool, **options: Any) -> View:
    """What a custom policy looks at; only scenes are drawn as somebody wants them."""
    table = find_suite(info.suite.partition("+")[0])
    if table is None or table.observes != "images":
        return View(own_units=own_units, **options)
    return View(image_size=info.image_shape[0], cameras=len(info.cameras), state=info.state_dim > 0, **options)


def training_episodes(config: TrainConfig) -> TrainingEpisodes | None:
    """How the training episodes of a run may differ from its tasks' own; None: they may not."""
    return TrainingEpisodes(config.perturb, config.perturbation[0]) if config.perturb else None
