"""`embodied-rl eval`: success of a policy on initial states that it was not trained on, by task, with intervals.

With a benchmark's name it leaves a folder that can be resumed; without, it is the same evaluation in a folder that is
deleted afterwards.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.cli.parse import flag_words, parse, value_of, wants_help, with_tasks
from embodied_rl.cli.suites import env_of, refuse_others, take_simulator, with_suite
from embodied_rl.config.env import AUTO, MujocoConfig
from embodied_rl.config.suites import (
    STATE_SUITES,
    check_simulator,
    custom_suites,
    is_custom,
    register_hint,
    suite_named,
    usual_env,
)
from embodied_rl.config.train import KINDS, SUITE, read_env
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.made_for import import_modules_of, simulator_for, suite_of, trained_env
from embodied_rl.jobs.efficient_inference import EfficientConfig
from embodied_rl.jobs.eval_request import SUITES_OF, BenchmarkCommand, request_of, resolved, suite_name
from embodied_rl.policies.checkpoints.hub import is_repository
from embodied_rl.policies.checkpoints.shipped import SHIPPED, is_shipped
from embodied_rl.utils.output import try_file, try_folder
from embodied_rl.utils.plugins import import_modules, import_words, imported
from embodied_rl.utils.signals import Interrupted
from embodied_rl.utils.suites import LIBERO_PLUS

EVALUATED = tuple(SUITES_OF)
QUICK = BenchmarkCommand(suite=SUITE, at_end=False, videos=0)
"""Defaults of an evaluation without a benchmark's name."""
STATE = BenchmarkCommand(checkpoint="", at_end=False, states_per_task=50)
"""Defaults in a suite of tasks with a state."""

USAGE = f"""\
usage: embodied-rl eval [--checkpoint DIR] [--suite NAME] [options]
       embodied-rl eval BENCHMARK [--suite NAME] [--task NAME] [options]
       embodied-rl eval --resume DIR

Measure a policy's success on held-out initial states, each once, with 95 %
Wilson intervals.

  (no BENCHMARK)  a quick look: episodes end at success, a table is printed, and
                  nothing is kept without --json or --output
  BENCHMARK       {", ".join(EVALUATED)}, or a suite of tasks with a state, whose
                  policy --checkpoint must name: {", ".join(STATE_SUITES[:2])},
                  {", ".join(STATE_SUITES[2:6])},
                  {", ".join(STATE_SUITES[6:])}. Writes a folder
                  with the episodes, a report and videos of failures
  --resume DIR    continue the evaluation in DIR: its finished episodes stay,
                  the others run
"""


def main(argv: list[str]) -> int:
    """Run the command."""
    if any(word.partition("=")[0] == "--resume" for word in argv) and not wants_help(argv):
        folder = _resumed_folder(argv)
        benchmark, command = begun_in(folder)
        return _run(benchmark, command, shlex.join(["embodied-rl", "eval", "--resume", str(folder)]))
    words = shlex.join(["embodied-rl", "eval", *argv, *import_words()])
    argv = with_suite(with_tasks(argv))
    argv, simulator = take_simulator(argv)
    named = argv.pop(0) if argv and not argv[0].startswith("-") else ""
    checkpoint = value_of(argv, "--checkpoint")
    import_modules_of(checkpoint)
    suite = named or ("" if checkpoint is None or "--suite" in flag_words(argv) else suite_of(checkpoint) or "")
    if suite and suite not in EVALUATED and is_custom(suite):
        return _run_custom(suite, argv, words, is_named=bool(named))
    if named and named not in (*EVALUATED, *STATE_SUITES):
        known = (*EVALUATED, *STATE_SUITES, *custom_suites())
        raise UserError(f"unknown benchmark '{named}'.{suggest(named, known)}{register_hint()}")
    if named in STATE_SUITES and simulator is None:
        simulator = simulator_for(checkpoint, named)
    env = env_of(named if named in STATE_SUITES else SUITE, simulator, MujocoConfig())
    refuse_others(argv, env)
    if named in STATE_SUITES:
        usual = dataclasses.replace(STATE, suite=named, env=env)
        return _run(named, checked(named, parse(BenchmarkCommand, argv, f"eval {named}", usual, USAGE)), words)
    if named:
        command = parse(BenchmarkCommand, argv, f"eval {named}", BenchmarkCommand(env=env), USAGE)
        return _run(named, checked(named, _on_its_suite(command, argv, (named,))), words)
    command = _on_its_suite(
        parse(BenchmarkCommand, argv, "eval", dataclasses.replace(QUICK, env=env), USAGE), argv, EVALUATED
    )
    benchmark = next((name for name in EVALUATED if command.suite.startswith(f"{name}_")), "tabletop")
    return _look(benchmark, command, words)


def _run_custom(suite: str, argv: list[str], words: str, *, is_named: bool) -> int:
    """In a suite that a user registered, with the options that the checkpoint was trained with."""
    checkpoint = value_of(argv, "--checkpoint")
    env = trained_env(checkpoint, suite) or usual_env(suite, MujocoConfig().num_envs)
    refuse_others(argv, env)
    usual = BenchmarkCommand(checkpoint="", suite=suite, at_end=False, env=env, videos=5 if is_named else 0)
    command = parse(BenchmarkCommand, argv, f"eval {suite}", usual, USAGE)
    return _run(suite, checked(suite, command), words) if is_named else _look(suite, command, words)


def _look(benchmark: str, command: BenchmarkCommand, words: str) -> int:
    """Without a benchmark's name: in a folder that is deleted, unless one is named."""
    if command.output != AUTO:
        return _run(benchmark, checked(benchmark, command), words)
    if command.keep:
        raise UserError("--keep: a quick look keeps nothing; name a folder with --output.")
    with tempfile.TemporaryDirectory(prefix="embodied-rl-eval-") as folder:
        try:
            return _run(benchmark, checked(benchmark, dataclasses.replace(command, output=folder)), words, keep=False)
        except Interrupted:
            raise Interrupted("interrupted; a quick look keeps nothing (an --output can be resumed)") from None


def _on_its_suite(command: BenchmarkCommand, argv: list[str], benchmarks: Sequence[str]) -> BenchmarkCommand:
    """The command with the suite that its checkpoint was trained on, where the user names none and these have it."""
    if "--suite" in flag_words(argv):
        return command
    suite = suite_of(command.checkpoint) or ""
    short = {name: suite.removeprefix(f"{name}_") for name in benchmarks if suite.startswith(f"{name}_")}
    known = any(name in SUITES_OF[benchmark] for benchmark, name in short.items())
    return dataclasses.replace(command, suite=suite) if known else command


def _run(benchmark: str, command: BenchmarkCommand, words: str, *, keep: bool = True) -> int:
    from embodied_rl.jobs.evaluate import run  # torch and the simulator, only now

    run(benchmark, command, request_of(benchmark, command), words, keep=keep)
    return 0


def checked(benchmark: str, command: BenchmarkCommand) -> BenchmarkCommand:
    """The command with its folder named and its files by whole paths; UserError for what needs no torch to refuse."""
    from embodied_rl.sim.libero.protocol import protocol

    suite = suite_name(benchmark, command.suite)
    if command.policy is not None and command.policy not in KINDS["policy"]:
        hint = " Name a checkpoint with --checkpoint." if Path(command.policy).exists() else ""
        raise UserError(f"unknown policy '{command.policy}'.{hint or suggest(command.policy, KINDS['policy'])}")
    if suite_named(suite).observes != "images" and command.checkpoint in ("", SHIPPED):
        raise UserError(f"eval {benchmark} needs a policy: --checkpoint DIR.")
    command = resolved(benchmark, command, suite)
    protocol(command.protocol)
    check_simulator(suite_named(suite), command.env)
    if isinstance(command.env, MujocoConfig) and command.env.reward != "sparse":
        raise UserError("--env.reward: an evaluation counts success; leave it out.")
    if LIBERO_PLUS not in command.perturb and (command.plus_tasks, command.plus_instruction) != (None, "official"):
        raise UserError(f"--plus-tasks and --plus-instruction go with --perturb {LIBERO_PLUS}.")
    for name, least in (("states_per_task", 1), ("plus_tasks", 1), ("videos", 0), ("seed", 0), ("perturb_level", 0)):
        value = getattr(command, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")
    if command.json:
        try_file("--json", command.json)
    if command.output == AUTO:
        when = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"  # a script may start several in one second
        name = f"eval-{suite}-{command.protocol}-{when}"
        command = dataclasses.replace(command, output=str(Path("runs") / name))
    try_folder("--output", Path(command.output))
    whole = {name: _whole_path(name, getattr(command, name)) for name in ("checkpoint", "tokenizer", "statistics")}
    return dataclasses.replace(command, **whole, imports=imported())


def _whole_path(name: str, value: str | None) -> str | None:
    """The file or folder from anywhere: an evaluation may be resumed in another folder."""
    if value is None or (name == "checkpoint" and (is_shipped(value) or is_repository(value))):
        return value
    if not Path(value).exists():
        advice = ": name the folder that sft or train wrote" if name == "checkpoint" else ""
        raise UserError(f"no {name} at {value}{advice}.")
    return str(Path(value).absolute())


def _resumed_folder(argv: list[str]) -> Path:
    words = [part for word in argv for part in word.split("=", 1)]
    if len(words) != 2 or words[0] != "--resume":
        raise UserError(
            "--resume takes a folder and nothing else, since an evaluation continues with its own options: "
            "embodied-rl eval --resume DIR"
        )
    return Path(words[1])


def begun_in(folder: Path) -> tuple[str, BenchmarkCommand]:
    """The benchmark of the evaluation in a folder, and the command that began it; its own modules are imported."""
    from embodied_rl.evaluation.results_log import read_request

    request = read_request(folder)
    import_modules(request["options"].get("imports", ()), str(folder))
    return request["benchmark"], _command(request["options"], folder)


def _command(options: Mapping[str, Any], folder: Path) -> BenchmarkCommand:
    """The command that began the evaluation in `folder`."""
    values = dict(options)
    if "simulator" in values.get("env", {}):  # its options were those of every simulator: it is another request now
        raise UserError(f"{folder} was begun by an earlier version of embodied-rl: start again with another --output.")
    try:
        values |= {name: tuple(values.get(name, ())) for name in ("tasks", "perturb", "imports")}
        values |= {
            "env": read_env(values["env"], values["suite"], str(folder)),
            "efficient": EfficientConfig(**values["efficient"]),
            "output": str(folder),
        }
        return BenchmarkCommand(**values)
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{folder} was begun by another version of embodied-rl ({error}): start again with another --output."
        ) from error
