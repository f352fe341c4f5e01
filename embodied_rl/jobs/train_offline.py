"""What a training run is made of that learns from data on disk (`--data`): a policy and data sets, no simulator."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from embodied_rl.algorithms.config import SteerConfig
from embodied_rl.config.sft import weighted_data
from embodied_rl.config.train import TrainConfig, to_dict
from embodied_rl.data import lerobot
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.data.metadata import read_metadata
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import TRAINED_STATES, demonstrated_states
from embodied_rl.factory.run_config import with_absolute_checkpoint
from embodied_rl.jobs.sft_data import Source
from embodied_rl.jobs.train_demos import Asked, RunDemos, describe_demonstrations, imitated, read_fitting
from embodied_rl.jobs.train_policy import RunPolicy, loaded
from embodied_rl.jobs.train_setup import Overrides, RunSetup, RunStates
from embodied_rl.learner.imitation import Imitation
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.policies.steering import need_proposals
from embodied_rl.telemetry.info import SimulatorInfo
from embodied_rl.training.offline import NoSimulator
from embodied_rl.utils.machine import cpu_count, pick_device
from embodied_rl.utils.ranks import ProcessRank
from embodied_rl.utils.threads import set_torch_threads
from embodied_rl.utils.words import counted
from embodied_rl.vec_env import EnvInfo
from embodied_rl.version import __version__

_OPTION = "--data"


@dataclass(frozen=True, slots=True)
class OfflineData:
    """demos: what is imitated as a whole. recorded: episodes of a policy, all data sets as one. sources: of both."""

    demos: RunDemos
    recorded: Demonstrations
    sources: Sequence[Source]


@contextmanager
def open_offline(
    config: TrainConfig, overrides: Overrides, console: Console, *, resume: Path | None
) -> Iterator[RunSetup]:
    """Open the policy and the data sets that `config` names; `train_setup.open_run` without a simulator.

    Raises:
        UserError: Something that the config names is not there, or they do not fit each other.
    """
    if overrides != Overrides():
        raise UserError(
            "data= teaches a policy that the config names, without a simulator: leave env= and policy= out."
        )
    threads = config.num_threads or cpu_count()
    config = dataclasses.replace(config, device=pick_device(config.device), num_threads=threads)
    config = with_absolute_checkpoint(config)
    set_torch_threads(ProcessRank.from_env().local_share(threads))
    made = loaded(config, resume)
    assert made is not None, "`check_data` asks for a checkpoint"
    info = _robot(config, made)
    data = _open_data(config, made.policy, info, console)
    known = data.demos.joined(made.trained)
    yield RunSetup(
        config,
        NoSimulator(info),
        made.policy,
        made.files(config, known, info, _provenance(config, made.provenance, data, known)),
        RunStates({}, {}, known),
        made.info,
        _no_simulator(info),
        overrides,
        demos=data.demos,
        recorded=data.recorded,
        trained_physics_version=made.provenance.get("era"),
    )


def _robot(config: TrainConfig, made: RunPolicy) -> EnvInfo:
    """What the policy sees and does, as its checkpoint says; the rate where that is silent as the first data set's."""
    policy, said = made.policy, made.provenance
    model, key = policy.config, getattr(policy, "unnorm_key", None)
    said = said.get("robots", {}).get(key, said)
    rate = said.get("control_hz")
    if not isinstance(rate, int | float):
        rate = read_metadata(resolve(weighted_data(config.data)[0][0], "dataset")).fps
    names = said.get("cameras")
    if not isinstance(names, list) or len(names) != model.num_cameras:
        names = [f"camera {number}" for number in range(model.num_cameras)]
    bound = 1.0 if model.clip_actions else math.inf
    return EnvInfo(
        backend="data",
        suite=config.suite,
        simulator="none",
        renderer="none",
        cameras=tuple(names),
        image_shape=(model.image_size, model.image_size),
        proprio_dim=model.proprio_dim,
        action_dim=policy.action_dim,
        action_low=(-bound,) * policy.action_dim,
        action_high=(bound,) * policy.action_dim,
        control_hz=float(rate),
        max_episode_steps=0,
        has_success=False,
    )


def _open_data(config: TrainConfig, policy: Any, info: EnvInfo, console: Console) -> OfflineData:
    asked = Asked(_OPTION, f"the policy in {config.policy.checkpoint}", config.algorithm)
    sources = read_fitting(config.data, asked, policy, info, failures=True)
    takes_own = not policy.config.clip_actions
    demonstrated = [source for source in sources if source.data.is_demonstrated]
    recorded = [source for source in sources if not source.data.is_demonstrated]
    for source in sources:
        if source.data.own_units != takes_own:
            units = "the robot's own units", "-1 to 1"
            has, needed = units if source.data.own_units else units[::-1]
            raise UserError(f"{_OPTION}: {source.name} has actions in {has}, and {asked.needs} decides in {needed}.")
    if not recorded:
        raise UserError(
            f"{_OPTION} has demonstrations alone, and no episodes that embodied-rl export wrote: embodied-rl sft "
            "--checkpoint imitates them."
        )
    if not demonstrated:
        raise UserError(
            f"{_OPTION} has no demonstrations: name those that the policy has learned from too. Successes alone are "
            "imitated by embodied-rl sft --checkpoint, from export --episodes success."
        )
    for source in demonstrated:
        if source.data.source.get("keep") == "all":
            raise UserError(
                f"{_OPTION}: {source.name} holds failed attempts, and all of it would be imitated: collect without "
                "--keep all."
            )
    for source in recorded:
        if source.weight != 1.0:
            raise UserError(
                f"{_OPTION}: a weight is for demonstrations; write {source.name} without one (--algorithm.demo-share)."
            )
    for source in demonstrated:
        describe_demonstrations(source, console)
    for source in recorded:
        _describe(source, console)
    joined = lerobot.join([source.data for source in recorded])
    _check_outcomes(config, policy, joined, ", ".join(source.name for source in recorded))
    demos = imitated(demonstrated, _OPTION, policy, recorded)
    starts = [demonstrated_states(source.data.source) for source in (*demonstrated, *recorded)]
    run_demos = RunDemos(Imitation(demos, config.algorithm, config.seed), starts)
    return OfflineData(run_demos, joined, [*demonstrated, *recorded])


def _check_outcomes(config: TrainConfig, policy: Any, recorded: Demonstrations, names: str) -> None:
    """UserError where the algorithm has nothing to learn from `recorded`, of the data sets `names`."""
    if not isinstance(config.algorithm, SteerConfig):
        if not recorded.success.any():
            raise UserError(f"{_OPTION}: no episode in {names} is said to end in success: there is nothing to imitate.")
        return
    need_proposals(policy)
    if not recorded.judged.any():
        raise UserError(
            f"{_OPTION}: it is not said of any episode in {names} how it ended, which a critic learns from: label them "
            "and export them again."
        )


def _describe(source: Source, console: Console) -> None:
    data = source.data
    helped = np.logical_or.reduceat(data.columns.human, data.starts[:-1])
    unknown = int((~data.judged).sum())
    console.print(
        f"episodes {source.name}: {counted(len(data), 'episode')}, {int(data.success.sum())} end in success, "
        f"{int(helped.sum())} with a person's help, {counted(len(data.images), 'frame')}, "
        f"{f'{unknown} of unknown end, ' if unknown else ''}sha256 {source.fingerprint[:12]}",
        soft_wrap=True,
    )


def _provenance(
    config: TrainConfig, start: Mapping[str, Any], data: OfflineData, known: dict[str, list[int]] | None
) -> dict[str, Any]:
    """What a checkpoint says: of robot and suite what the policy said that the run began with."""
    words = {word for source in data.sources for word in source.data.instruction}
    kept = {name: value for name, value in start.items() if name != TRAINED_STATES}
    return kept | {
        "command": "embodied-rl train",
        "version": __version__,
        "seed": config.seed,
        "offline": {"config": to_dict(config), "data": [source.describe() for source in data.sources]},
        **({"instructions": sorted(words | set(start["instructions"]))} if "instructions" in start else {}),
        **({} if known is None else {TRAINED_STATES: known}),
    }


def _no_simulator(info: EnvInfo) -> SimulatorInfo:
    return SimulatorInfo(
        name=info.simulator,
        num_envs=0,
        processes=None,
        threads=None,
        batched=False,
        renderer=info.renderer,
        renderer_reason=None,
        render_quality=None,
        cameras=len(info.cameras),
        image_height=info.image_shape[0],
        image_width=info.image_shape[1],
        state_dim=info.proprio_dim,
        max_episode_steps=info.max_episode_steps,
        control_hz=info.control_hz,
        has_success=info.has_success,
        repeatable=info.repeatable,
    )
