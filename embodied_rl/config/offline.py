"""What a run that learns from data on disk (`--data`) is refused: all that only a simulator gives a meaning."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.config.sft import weighted_data
from embodied_rl.errors import UserError

if TYPE_CHECKING:
    from embodied_rl.config.train import TrainConfig

SUITE = "offline"
"""What stands for a suite in such a run's config."""
_APPLY = (
    *("data", "seed", "output", "device", "num_threads", "track", "trace", "imports"),
    *("policy", "algorithm", "learner", "scheduler", "checkpoint"),
)
"""Keys that say something where no simulator is opened, beside the number of rounds."""


def as_offline(config: TrainConfig) -> TrainConfig:
    """The learner of `config` without its simulator, for one round."""
    kept = {name: getattr(config, name) for name in _APPLY}
    return dataclasses.replace(type(config)(), suite=SUITE, iterations=1, videos=0, **kept)


def check_data(config: TrainConfig) -> None:
    """UserError for what does nothing or can't be with --data."""
    if not config.data:
        return
    weighted_data(config.data)
    if type(config.algorithm) is not ImitateConfig:
        raise UserError("--data is learned from by --algorithm imitate: give it.")
    usual = as_offline(config)
    for item in dataclasses.fields(config):
        name = item.name
        given, expected = getattr(config, name), getattr(usual, name)
        if given == expected or name == "iterations":
            continue
        if dataclasses.is_dataclass(given) and type(given) is type(expected):
            differ = (f.name for f in dataclasses.fields(given) if getattr(given, f.name) != getattr(expected, f.name))
            option = f"{name}.{next(differ)}"
        else:
            option = name
        raise UserError(
            f"--{option.replace('_', '-')} does not apply to --data, which opens no simulator: leave it out; "
            "embodied-rl eval measures the policy afterwards."
        )
    if not config.policy.checkpoint:
        raise UserError("--data teaches a policy that there is: name it with --policy.checkpoint.")
