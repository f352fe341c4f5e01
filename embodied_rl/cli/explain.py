"""`embodied-rl explain A B`: why two evaluations of one checkpoint differ."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from embodied_rl.cli.parse import parse
from embodied_rl.config.train import AUTO
from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.output import try_folder

if TYPE_CHECKING:
    from embodied_rl.studies.explain_config import Factor

_LOOKS = 4
USAGE = """\
usage: embodied-rl explain A B [options]
       embodied-rl explain A --perturb KIND ... [options]

Why do two evaluations of one checkpoint give different scores? Runs the same
initial states, changes one difference at a time, and ranks them: success with
paired intervals, the first control step at which commands part, and pictures
of what the policy saw there.

A and B are YAML files, or folders of evaluations (runs/eval-...). A file has
the options of eval, and may change its protocol:

  checkpoint: runs/ppo        # both files name the same
  suite: tabletop_spatial
  protocol: openpi
  images: as_rendered         # the protocol's but for this picture pipeline
  settle_steps: 0
  max_steps: 220              # horizon in control steps
  flip_gripper: true          # the gripper's command negated
  env: {renderer: raycast}

With --perturb, each kind is changed alone: camera, light, texture, object,
instruction. Each is better, worse or not decided than as it is, with one error
rate for all; what is decided runs no further episodes.
"""


@dataclass(frozen=True, kw_only=True)
class ExplainCommand:
    """Why do two evaluations of one checkpoint give different scores?"""

    sides: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Options of the two evaluations: YAML files, or folders of evaluations; one with --perturb."""
    perturb: tuple[str, ...] = ()
    """Perturbations instead of a second evaluation: camera, light, texture, object, instruction."""
    perturb_level: float = 1.0
    """Scales what --perturb draws."""
    episodes: int = 100
    """Episodes in all, shared out over the variations; those that are run again for images come on top."""
    looks: int | None = None
    """With --perturb: how often the test looks at the data, after as many further episodes each (None: 4)."""
    output: str = AUTO
    """Folder for explain.json and the images; auto is runs/explain-A-B."""


def main(argv: list[str]) -> int:
    """Run the command."""
    command = parse(ExplainCommand, argv, "explain", usage=USAGE)
    if len(command.sides) != (1 if command.perturb else 2):
        raise UserError("explain takes two evaluations, or one with --perturb.")
    if command.episodes < 1:
        raise UserError(f"--episodes must be at least 1, got {command.episodes}.")
    if command.looks is not None and not command.perturb:
        raise UserError("--looks goes with --perturb: leave it out.")
    if command.looks is not None and command.looks < 1:
        raise UserError(f"--looks must be at least 1, got {command.looks}.")
    from embodied_rl.studies.explain_config import factors, read_side  # brings torch

    first = read_side(command.sides[0])
    second = None if command.perturb else read_side(command.sides[1])
    found = _perturbations(command) if second is None else factors(first, second)
    if second is None and first.command.perturb:
        raise UserError(f"{command.sides[0]} is perturbed already: leave perturb out there, or --perturb here.")
    if second is None:
        level = dataclasses.replace(first.command, perturb_level=command.perturb_level)
        first = dataclasses.replace(first, command=level)
    names = [path.stem for path in command.sides] + list(command.perturb)
    output = Path("runs") / f"explain-{'-'.join(names)}" if command.output == AUTO else Path(command.output)
    try_folder("--output", output)
    from embodied_rl.studies.explain import Budget, run  # the simulator, only now

    run(first, second, found, output, Budget(command.episodes, command.looks or _LOOKS))
    return 0


def _perturbations(command: ExplainCommand) -> list[Factor]:
    from embodied_rl.sim.perturb import KINDS
    from embodied_rl.studies.explain_config import Factor

    for kind in command.perturb:
        if kind not in KINDS:
            raise UserError(f"--perturb: unknown kind '{kind}'.{suggest(kind, KINDS)}")
    if command.perturb_level <= 0:
        raise UserError(f"--perturb-level must be above 0, got {command.perturb_level}.")
    return [Factor(kind, ("no", f"level {command.perturb_level:g}")) for kind in command.perturb]
