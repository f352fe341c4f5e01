"""`embodied-rl eval BENCHMARK`: a whole benchmark under a named protocol, resumable, with a report."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_rl.cli.parse import parse
from embodied_rl.config.policies import SHIPPED
from embodied_rl.config.train import AUTO, EnvConfig, selectable
from embodied_rl.errors import UserError, suggest
from embodied_rl.jobs.efficient_inference import EfficientConfig
from embodied_rl.jobs.eval_request import SUITES, BenchmarkCommand, suite_name
from embodied_rl.policies.checkpoints.hub import is_repository

BENCHMARKS = tuple(SUITES)

USAGE = f"""\
usage: embodied-rl eval BENCHMARK [--suite NAME] [--protocol NAME] [--perturb NAME ...] [--any.value VALUE ...]
       embodied-rl eval --resume DIR
       embodied-rl eval [--checkpoint DIR] [--suite NAME] [--states-per-task N] [--json FILE]

  BENCHMARK     {", ".join(BENCHMARKS)}: each task from each evaluated initial state once; writes a folder with the
                episodes, a report and videos of failures
  --resume DIR  continue the evaluation in DIR: its finished episodes are kept, the others run
  neither       a quick look at a policy: a table of held-out success, no folder

Every value below can be set for a benchmark.
"""


def main(argv: list[str]) -> int:
    """Run `embodied-rl eval BENCHMARK ...` or `embodied-rl eval --resume DIR`."""
    if any(word.partition("=")[0] == "--resume" for word in argv):
        folder = _resumed_folder(argv)
        request = _request(folder)
        command = _command(request["options"], folder)
        return _run(request["benchmark"], command, f"embodied-rl eval --resume {folder}")
    benchmark, *words = argv
    if benchmark not in BENCHMARKS:
        raise UserError(f"unknown benchmark '{benchmark}'.{suggest(benchmark, BENCHMARKS)}")
    command = parse(BenchmarkCommand, words, f"eval {benchmark}")
    return _run(benchmark, _checked(benchmark, command), shlex.join(["embodied-rl", "eval", *argv]))


def _run(benchmark: str, command: BenchmarkCommand, words: str) -> int:
    from embodied_rl.jobs.evaluate import run  # torch and the simulator, only now

    run(benchmark, command, request_of(benchmark, command), words)
    return 0


def request_of(benchmark: str, command: BenchmarkCommand) -> dict[str, Any]:
    """What an evaluation's folder records, so that it can be resumed from anywhere."""
    options = {
        name: str(value) if isinstance(value, Path) else value for name, value in dataclasses.asdict(command).items()
    }
    return {"benchmark": benchmark, "options": {k: v for k, v in options.items() if k not in ("output", "json")}}


def _checked(benchmark: str, command: BenchmarkCommand) -> BenchmarkCommand:
    """The command with its folder and checkpoint named; UserError for what needs no torch to be refused."""
    from embodied_rl.sim.libero.protocol import protocol

    if command.policy is not None and command.policy not in selectable("policy"):
        hint = " Name a checkpoint with --checkpoint." if Path(command.policy).exists() else ""
        raise UserError(f"unknown policy '{command.policy}'.{hint or suggest(command.policy, selectable('policy'))}")
    protocol(command.protocol)
    for name, least in (("states_per_task", 1), ("videos", 0), ("seed", 0)):
        value = getattr(command, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")
    if command.json and not command.json.absolute().parent.is_dir():
        raise UserError(f"--json {command.json}: its folder does not exist.")
    checkpoint, output = command.checkpoint, command.output
    if checkpoint != SHIPPED and not is_repository(checkpoint):
        if not Path(checkpoint).exists():
            raise UserError(f"no checkpoint at {checkpoint}: name the folder that sft or train wrote.")
        checkpoint = str(Path(checkpoint).absolute())
    if output == AUTO:
        suite = suite_name(benchmark, command.suite)
        output = str(Path("runs") / f"eval-{suite}-{command.protocol}-{time.strftime('%Y%m%d-%H%M%S')}")
    return dataclasses.replace(command, checkpoint=checkpoint, output=output)


def _resumed_folder(argv: list[str]) -> Path:
    words = [part for word in argv for part in word.split("=", 1)]
    if len(words) != 2 or words[0] != "--resume":
        raise UserError(
            "--resume takes a folder and nothing else, since an evaluation continues with its own options: "
            "embodied-rl eval --resume DIR"
        )
    return Path(words[1])


def _request(folder: Path) -> Mapping[str, Any]:
    from embodied_rl.evaluation.results_log import read_request

    return read_request(folder)


def _command(options: Mapping[str, Any], folder: Path) -> BenchmarkCommand:
    """The command that began the evaluation in `folder`."""
    values = dict(options)
    try:
        values |= {name: tuple(values[name]) for name in ("tasks", "perturb")}
        values |= {
            "env": EnvConfig(**values["env"]),
            "efficient": EfficientConfig(**values["efficient"]),
            "output": str(folder),
        }
        return BenchmarkCommand(**values)
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{folder} was begun by another version of embodied-rl ({error}): start again with another --output."
        ) from error
