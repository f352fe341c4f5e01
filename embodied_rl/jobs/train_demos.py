"""The demonstrations of a training run (`--demos`): read as `sft` reads them, and checked against policy and suite."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from embodied_rl.algorithms.config import AlgorithmConfig, SteerConfig
from embodied_rl.config.sft import SftCommand, SftConfig, weighted_data
from embodied_rl.config.train import TrainConfig
from embodied_rl.data.chunks import ChunkDataset, split
from embodied_rl.data.frames import ImageFit
from embodied_rl.data.metadata import read_metadata, short_name
from embodied_rl.data.mixture import Augmentation, Mixture, Part
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import demonstrated_states, join_states
from embodied_rl.jobs.sft_data import Source, read_sources
from embodied_rl.learner.imitation import Demos, Imitation, imitation_loss
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.policies.preprocessing.fit import fit_image
from embodied_rl.rng import DecisionRng
from embodied_rl.utils.words import counted, same_rate
from embodied_rl.vec_env import EnvInfo

States = dict[str, list[int]] | None


@dataclass(frozen=True, slots=True)
class RunDemos:
    """imitation: what the learner does with them. starts: initial states by task, of each data set that says them."""

    imitation: Imitation
    starts: Sequence[States]

    def joined(self, known: States) -> States:
        """The initial states `known` and those of the demonstrations; None where one of them is unknown."""
        for more in self.starts:
            known = None if more is None else join_states(known, more)
        return known


def open_demos(config: TrainConfig, policy: Any, info: EnvInfo, console: Console) -> RunDemos:
    """Read `config.demos` for `policy`, which acts in the simulator of `info`.

    Raises:
        UserError: A data set can't be read or does not fit the suite, or the policy can't imitate.
    """
    if info.state_dim:
        raise UserError(
            f"--demos: a policy in suite '{info.suite}' reads the simulator's state, which demonstrations have not."
        )
    sources = read_fitting(config.demos, Asked("--demos", f"suite '{info.suite}'", config.algorithm), policy, info)
    for source in sources:
        describe_demonstrations(source, console)
    demos = imitated(sources, "--demos", policy)
    starts = [demonstrated_states(source.data.source) for source in sources]
    return RunDemos(Imitation(demos, config.algorithm, config.seed), starts)


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is told of what does not fit: the option that names the data sets, what they must fit, and what learns."""

    option: str
    needs: str
    algorithm: AlgorithmConfig


def read_fitting(
    names: tuple[str, ...], asked: Asked, policy: Any, info: EnvInfo, *, failures: bool = False
) -> list[Source]:
    """Read data sets that show and do what `info` says, as `policy` sees it.

    Raises:
        UserError: One can't be read or does not fit, or the policy can't imitate.
    """
    if not hasattr(policy, "sft_loss"):
        raise _without_loss(asked.option, policy)
    command = SftCommand(
        data=names,
        out=Path(),  # nothing is written
        cameras=_cameras(names, info),
        gripper="auto" if set(info.action_low) == {-1.0} and set(info.action_high) == {1.0} else "none",
        fps=info.control_hz,
    )
    try:
        sources = read_sources(command, _image_fit(policy), Console(quiet=True), failures=failures)
    except UserError as error:
        raise UserError(f"{asked.option}, read as embodied-rl sft does: {error}") from error
    for source in sources:
        _check_fits(source, policy, info, asked)
    return sources


def describe_demonstrations(source: Source, console: Console) -> None:
    """Say what a data set of demonstrations holds."""
    data = source.data
    console.print(
        f"demonstrations {source.name}: {counted(len(data), 'episode')}, {counted(len(data.images), 'frame')}, "
        f"{counted(len(set(data.instruction)), 'instruction')}, sha256 {source.fingerprint[:12]}",
        soft_wrap=True,
    )


def imitated(sources: Sequence[Source], option: str, policy: Any, beside: Sequence[Source] = ()) -> Demos:
    """Demonstrations as the learner takes them.

    Args:
        sources: of demonstrations.
        option: that names them, for messages.
        policy: that imitates.
        beside: what else the digest is of.

    Raises:
        UserError: One has no whole chunk, or the policy can't imitate.
    """
    said = [[source.fingerprint, source.weight] for source in (*sources, *beside)]
    usual = SftConfig()
    demos = Demos(
        Mixture([Part(_samples(source, option, policy), weight=source.weight) for source in sources]),
        Augmentation(usual.shift, usual.drop_action_history),
        hashlib.sha256(json.dumps(said).encode()).hexdigest(),
    )
    _try(option, policy, demos)
    return demos


def _cameras(names: tuple[str, ...], info: EnvInfo) -> tuple[str, ...]:
    """The simulator's cameras where every data set has them by name; () leaves their order to the data sets."""
    found = [read_metadata(resolve(name, "dataset")).cameras for name, _ in weighted_data(names)]
    named = all(set(info.cameras) <= set(map(short_name, cameras)) for cameras in found)
    return info.cameras if named else ()


def _image_fit(policy: Any) -> ImageFit | None:
    """How pictures come to the policy's size; None: one of the user's own takes them as they are."""
    config = getattr(policy, "config", None)
    how = getattr(config, "image_fit", None)
    return None if config is None or how is None else ImageFit(config.image_size, partial(fit_image, how=how))


def _check_fits(source: Source, policy: Any, info: EnvInfo, asked: Asked) -> None:
    """UserError unless a data set shows what is needed and does what is taken."""
    data, pixels = source.data, "{}x{}".format
    as_it_is = info.cameras and _image_fit(policy) is None
    reads = getattr(policy, "uses_proprio", True) or isinstance(asked.algorithm, SteerConfig)  # its critic does
    for what, has, needed, matters in (
        ("cameras", len(data.camera_names), len(info.cameras), bool(info.cameras)),
        ("pixels", pixels(*data.images.shape[2:4]), pixels(*info.image_shape), as_it_is),
        ("numbers in an action", data.action.shape[1], info.action_dim, True),
        ("numbers of proprio", data.state.shape[1], info.proprio_dim, reads),
    ):
        if matters and has != needed:
            raise UserError(f"{asked.option}: {source.name} has {what}: {has}, and {asked.needs} {needed}.")
    rate = float(data.info["fps"])
    if not same_rate(rate, info.control_hz):
        raise UserError(
            f"{asked.option}: {source.name} acts {rate:g} times a second, and {asked.needs} takes {info.control_hz:g} "
            "actions: its motions would be wrong by that factor."
        )


def _samples(source: Source, option: str, policy: Any) -> ChunkDataset:
    """Every frame of a data set that starts a chunk of the policy's length."""
    config = getattr(policy, "config", None)
    horizon = getattr(config, "horizon", None) or getattr(policy, "horizon", policy.chunk_len)
    samples, _ = split(source.data, horizon, validation=0.0, seed=0)
    if not len(samples):
        raise UserError(f"{option}: {source.name} has no frame with an undisturbed chunk of {horizon} steps after it.")
    return samples


def _try(option: str, policy: Any, demos: Demos) -> None:
    """Imitate one sample, without gradients; UserError if the policy can't."""
    batch, rows = demos.mixture.parts[0].samples.batch(np.zeros(1, np.int64)), np.zeros(1, np.int64)
    try:
        with torch.no_grad():
            imitation_loss(policy, batch, DecisionRng(rows, rows))
    except NotImplementedError as error:
        raise _without_loss(option, policy) from error


def _without_loss(option: str, policy: Any) -> UserError:
    return UserError(f"{option}: {type(policy).__name__} has no imitation loss: give it sft_loss, or leave them out.")
