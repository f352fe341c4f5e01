"""`embodied-rl train BENCHMARK`: improve a policy with reinforcement learning; everything lands in one folder."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from pathlib import Path

from embodied_rl.cli.select import Selection, select
from embodied_rl.config.policies import SHIPPED
from embodied_rl.config.train import AUTO, TrainConfig, dump_yaml, kind_of, load_yaml
from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.hub import is_repository

CONFIG_FILE = "config.yaml"


def main(argv: list[str]) -> int:
    """Run the command: 0 when training is done, 1 when it broke down, 130 when Ctrl-C stopped it."""
    chosen = select(argv)
    config = _resumed_config(chosen.resume, chosen.iterations) if chosen.resume else _checked(chosen)
    # Only now torch and the simulator: a typing error should not wait for them.
    from embodied_rl.jobs.train import run
    from embodied_rl.learner.distributed.collectives import RankError
    from embodied_rl.learner.types import NonFiniteError, RatioError

    command = shlex.join(["embodied-rl", "train", *argv])
    try:
        run(config, command, benchmark=chosen.benchmark, resume=chosen.resume is not None)
    except (NonFiniteError, RatioError, RankError) as error:
        print(f"embodied-rl: error: {error}", file=sys.stderr)
        return 1
    return 0


def _checked(chosen: Selection) -> TrainConfig:
    """The config with its folder named; UserError if that folder is taken."""
    config = chosen.config
    assert config is not None
    from embodied_rl.sim.libero.protocol import protocol

    protocol(config.protocol)  # raises for an unknown one
    if config.output == AUTO:
        when = time.strftime("%Y%m%d-%H%M%S")
        name = f"{config.suite}-{kind_of('algorithm', config.algorithm)}-seed{config.seed}-{when}"
        config = dataclasses.replace(config, output=str(Path("runs") / name))
    folder = Path(config.output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already: choose another --output, or continue it with --resume {folder}")
    if config.trace and not Path(config.trace).absolute().parent.is_dir():
        raise UserError(f"--trace {config.trace}: its folder does not exist.")
    _check_checkpoint(kind_of("policy", config.policy), config.policy.checkpoint)
    return config


def _check_checkpoint(policy: str, checkpoint: str) -> None:
    if not checkpoint:
        raise UserError(
            f"no {policy} ships with the package: make one with embodied-rl sft --policy {policy}, or name "
            "a published one, with --policy.checkpoint."
        )
    if checkpoint != SHIPPED and not Path(checkpoint).exists() and not is_repository(checkpoint):
        raise UserError(
            f"no checkpoint at {checkpoint}: name the folder that sft or train wrote, or OWNER/NAME on the "
            "Hugging Face hub."
        )


def _resumed_config(folder: Path, iterations: int | None) -> TrainConfig:
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no {CONFIG_FILE}.")
    # The folder may have been moved since.
    config = dataclasses.replace(load_yaml(folder / CONFIG_FILE), output=str(folder))
    if iterations is None:
        return config
    if iterations <= config.iterations:
        raise UserError(f"--iterations {iterations}: {folder} is a run of {config.iterations} iterations; give more.")
    return dataclasses.replace(config, iterations=iterations)


def write_config(config: TrainConfig) -> None:
    """Write the config into its run's folder, whole or not at all: a run that is resumed needs the one it has."""
    path = Path(config.output) / CONFIG_FILE
    new = path.with_suffix(".new")
    new.write_text(dump_yaml(config), encoding="utf-8")
    new.replace(path)
