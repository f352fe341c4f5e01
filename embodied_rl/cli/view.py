"""`embodied-rl view SUITE|RUN|CHECKPOINT`: look at a policy at work in a browser, and take it over."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from embodied_rl.cli.parse import flag_words, parse, value_of, wants_help, with_tasks
from embodied_rl.cli.suites import with_suite
from embodied_rl.config.env import AUTO, MujocoConfig, one_env
from embodied_rl.config.suites import SUITES, find_suite, register_hint, suite_named
from embodied_rl.config.train import SUITE
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.made_for import import_modules_of, suite_of
from embodied_rl.factory.policies import CheckpointOptions
from embodied_rl.jobs.eval_request import SUITES_OF, BenchmarkCommand, resolved, suite_name
from embodied_rl.policies.checkpoints.hub import is_repository
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.policy import ActMode

USAGE = """\
usage: embodied-rl view [SUITE | RUN | CHECKPOINT] [options]

Open a page in a browser: the scene from any side, play, step, what the policy
sees, the chunk that it has decided as a path, and keys that take the arm over.
Episodes are those of `eval` with the same options.

  SUITE           tabletop, libero, tabletop_goal, ...: with the small policy
                  of the package, or that of --checkpoint
  RUN, CHECKPOINT a folder, or OWNER/NAME of a published policy, in the suite
                  that it was trained on
"""


@dataclass(frozen=True, kw_only=True)
class ViewCommand(CheckpointOptions):
    """Look at a policy at work in a browser, and take it over."""

    suite: str = ""
    """Suite of tasks (not given: the one that the checkpoint was trained on)."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks (none given: all of the suite); --task NAME names one."""
    protocol: str = AUTO
    """Whose way to run an episode, as of `eval`."""
    mode: ActMode = "greedy"
    """Take the most likely action (greedy), or sample at the checkpoint's temperature."""
    seed: int = 0
    """Seed of the episodes, as of `eval`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy is; auto takes a GPU if there is one."""
    host: str = "127.0.0.1"
    """Address to listen at. 127.0.0.1 is reached from this machine only, 0.0.0.0 from every machine that reaches this
    one, whose users may all move the arm."""
    port: int = 8080
    """TCP port; 0 takes a free one and prints it."""
    browser: bool = True
    """Open the page in this machine's browser."""


def main(argv: list[str]) -> int:
    """Run the command."""
    words = with_suite(with_tasks(argv))
    named = words.pop(0) if words and not words[0].startswith("-") and not wants_help(words) else ""
    if named and named not in SUITES_OF and find_suite(named) is None:
        if "--checkpoint" in flag_words(words):
            raise UserError(f"embodied-rl view: '{named}' is no suite, and --checkpoint names the policy already.")
        _check_there(named)
        named, words = "", ["--checkpoint", named, *words]
    checkpoint = value_of(words, "--checkpoint")
    import_modules_of(checkpoint)
    command = parse(ViewCommand, words, "view", usage=USAGE)
    for name, least, most in (("port", 0, 65535), ("seed", 0, 2**63 - 1)):
        if not least <= getattr(command, name) <= most:
            raise UserError(f"--{name} must lie in {least} to {most}, got {getattr(command, name)}.")
    trained = "" if checkpoint is None else suite_of(checkpoint) or ""
    usual = suite_name(named, "spatial") if named in SUITES_OF else named or SUITE
    suite = suite_named(command.suite or (trained if trained.startswith(named) else "") or usual)
    if "mujoco" not in suite.simulators:
        raise UserError(f"view draws scenes of MuJoCo, those of tabletop and libero: '{suite.name}' has none.")
    options = {field.name: getattr(command, field.name) for field in fields(CheckpointOptions)}
    asked = BenchmarkCommand(
        **options,
        suite=suite.name,
        tasks=command.tasks,
        protocol=command.protocol,
        mode=command.mode,
        seed=command.seed,
        device=command.device,
        at_end=False,
        env=one_env(MujocoConfig()),
    )
    from embodied_rl.jobs.view import Address, run  # torch and the simulator, only now

    run(
        suite.benchmark,
        resolved(suite.benchmark, asked, suite.name),
        Address(command.host, command.port, command.browser),
    )
    return 0


def _check_there(checkpoint: str) -> None:
    if is_shipped(checkpoint) or is_repository(checkpoint) or Path(checkpoint).exists():
        return
    raise UserError(f"'{checkpoint}' is neither a suite nor a folder.{suggest(checkpoint, SUITES)}{register_hint()}")
