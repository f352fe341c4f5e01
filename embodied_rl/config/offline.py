"""What a run that learns from data on disk (`--data`) is refused: all that only a simulator gives a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied_rl.algorithms.config import AlgorithmConfig, ImitateConfig
from embodied_rl.config.imitation_checks import refuse_weights
from embodied_rl.errors import UserError

OFFLINE_SUITE = "offline"
"""What stands for a suite in such a run's config."""
APPLY = (
    *("data", "seed", "output", "device", "num_threads", "track", "trace", "imports"),
    *("policy", "algorithm", "learner", "scheduler", "checkpoint"),
)
"""Keys that say something where no simulator is opened, beside the number of rounds."""


def check_data(algorithm: AlgorithmConfig, given: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """UserError for what does nothing or can't be with --data.

    Args:
        algorithm: of the config.
        given: the config, as `config.train.to_dict` writes it.
        usual: the same with every key as it is where nothing is simulated (`config.train.as_offline`).
    """
    if not given["data"]:
        return
    if not isinstance(algorithm, ImitateConfig):
        raise UserError("--data is learned from by --algorithm imitate or steer: give one of them.")
    refuse_weights("--data", given["data"], algorithm)
    for name, expected in usual.items():
        found = given[name]
        if found == expected or name == "iterations":
            continue
        inner = [key for key in expected if found.get(key) != expected[key]] if isinstance(expected, dict) else []
        option = f"{name}.{inner[0]}" if inner and inner[0] != "name" else name
        raise UserError(
            f"--{option.replace('_', '-')} does not apply to --data, which opens no simulator: leave it out; "
            "embodied-rl eval measures the policy afterwards."
        )
    if not given["policy"]["checkpoint"]:
        raise UserError("--data teaches a policy that there is: name it with --policy.checkpoint.")
