"""The start bank of a training run: found beside demonstrations, checked against the tasks, pinned by its digest."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.config.train import TrainConfig
from embodied_rl.data.layout import NAMESPACE
from embodied_rl.data.metadata import load_info
from embodied_rl.data.start_bank import FILE
from embodied_rl.errors import UserError
from embodied_rl.rollout.sampler import EpisodeMix
from embodied_rl.utils.words import counted

if TYPE_CHECKING:
    from embodied_rl.sim.mujoco.task import MujocoTask


def models_of(tasks: Sequence[MujocoTask]) -> dict[str, str]:
    """By task, the digest of the physics model whose states a bank holds."""
    from embodied_rl.sim.mujoco.snapshot import model_digest

    return {task.name: model_digest(task.build_physics()) for task in tasks}


def pin_bank(config: TrainConfig, tasks: Sequence[MujocoTask]) -> tuple[TrainConfig, dict[str, str]]:
    """The config with the bank's digest and whole path in it, and what a run stamps about it.

    Raises:
        UserError: there is no bank, it is another one than the run began with, or its states are not of these tasks.
    """
    asked = config.rollout
    if asked.start_bank is None:
        return config, {}
    folder = Path(asked.start_bank).absolute()
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder} has no {FILE}: make one with embodied-rl collect SUITE --start-bank --out DIR.")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if asked.start_bank_digest not in (None, found):
        raise UserError(
            f"{folder} holds another start bank ({found[:12]}) than the run began with "
            f"({asked.start_bank_digest[:12]}): put that one back, or begin a new run."
        )
    _check_fits(folder, config, tasks)
    config = dataclasses.replace(
        config, rollout=dataclasses.replace(asked, start_bank=str(folder), start_bank_digest=found)
    )
    held = _rows(path)
    rows = [held[task.name] for task in tasks if held.get(task.name)]
    if not rows:
        raise UserError(f"{folder} has no states of the run's tasks: collect them with --start-bank.")
    if len(rows) == len(tasks):
        _check_rest(config)
    about = (
        f"{asked.bank_share:.0%} of the episodes of {counted(len(rows), 'task')}, from {counted(sum(rows), 'state')}"
    )
    return config, {"starts": f"{about} of {folder} ({found[:12]})"}


def bank_file(config: TrainConfig) -> Path | None:
    """The file of a pinned config's bank, None without one."""
    return None if config.rollout.start_bank is None else Path(config.rollout.start_bank) / FILE


def episode_mix(config: TrainConfig) -> EpisodeMix:
    """Which training episodes of a pinned config are not as their tasks say."""
    path = bank_file(config)
    return EpisodeMix(
        perturbed=config.perturbation[1] if config.perturb else 0.0,
        from_bank=config.rollout.bank_share,
        bank_rows={} if path is None else _rows(path),
    )


def _check_fits(folder: Path, config: TrainConfig, tasks: Sequence[MujocoTask]) -> None:
    made: Mapping[str, Any] = load_info(folder).get(NAMESPACE) or {}
    models = made.get("start_bank") or {}
    if made.get("split") == "heldout" and config.train_states != "heldout":
        raise UserError(f"{folder} was collected from held-out states: training may not begin there; collect another.")
    if made.get("protocol") != config.protocol:
        raise UserError(
            f"{folder} was collected with --protocol {made.get('protocol')}, the run has {config.protocol}: the time "
            "that is left is not the same; collect another."
        )
    known = [task for task in tasks if task.name in models]
    if not known:
        raise UserError(f"{folder} has no states of the run's tasks: collect them with --start-bank.")
    for name, digest in models_of(known).items():
        if digest != models[name]:
            raise UserError(
                f"{folder} was collected with another physics model of '{name}' (another version of MuJoCo, or another "
                "--env.era): collect it again."
            )


def _check_rest(config: TrainConfig) -> None:
    """UserError if every episode begins in the bank, and an option is for the others alone."""
    if config.rollout.bank_share < 1:
        return
    asked = {
        f"--perturb {' '.join(config.perturb)}": bool(config.perturb),
        "--rollout.sampler adaptive": config.rollout.sampler == "adaptive",
    }
    for what, wanted in asked.items():
        if wanted:
            raise UserError(
                f"{what} is for episodes that begin in an initial state, and with --rollout.start-bank-share 1 none "
                "does: give a smaller share, or leave one of the two out."
            )


def _rows(path: Path) -> dict[str, int]:
    from embodied_rl.sim.mujoco.episodes import load_bank

    return {task: len(states) for task, states in load_bank(path).items()}
