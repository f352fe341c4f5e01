"""`embodied-rl leaderboard CONFIG`: measure several checkpoints alike, and say which are better."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from embodied_rl.cli.parse import parse
from embodied_rl.config.train import AUTO
from embodied_rl.errors import UserError
from embodied_rl.studies.leaderboard_config import read_leaderboard
from embodied_rl.utils.output import try_folder

USAGE = """\
usage: embodied-rl leaderboard CONFIG [--output DIR] [--jobs N]

Measure several checkpoints on the same initial states, and say which are
better: each pair is better, worse or not decided, with one error rate for all
pairs together. A policy whose comparisons are decided runs no further states.

CONFIG is a YAML file:

  title: Tabletop before and after
  checkpoints:                # rows: a folder, OWNER/NAME or shipped; a list
    start: shipped            # is several training seeds of one recipe
    ppo: runs/ppo
  suites: [tabletop_spatial]  # or [libero_spatial, libero_goal], ...
  states_per_task: 50         # left out: every held-out state
  level: 0.05                 # how probable one wrong verdict is, at most
  compare: episodes           # these checkpoints; seeds: the recipes, over
                              # training seeds (rows with lists)
  looks: 5                    # looks at the data, after as many states each
  stop_early: true            # false: every policy runs every state
  seeds: [0]
  protocol: auto              # as eval --protocol
  videos: 1                   # failures of each evaluation that are recorded
  env: {num_envs: 8}

It writes leaderboard.json, index.html (opens offline) and the episodes of each
evaluation. The same command continues one that was stopped or killed, and
gives the same leaderboard.json, whatever --jobs.
"""


@dataclass(frozen=True, kw_only=True)
class LeaderboardCommand:
    """Measure several checkpoints on the same initial states, and say which are better."""

    config: Annotated[Path, tyro.conf.Positional]
    """YAML file with the checkpoints, the suites and how to compare them; --help has an example."""
    output: str = AUTO
    """Folder of the leaderboard; auto is runs/leaderboard-NAME for NAME.yaml."""
    jobs: int = 1
    """Evaluations that run side by side, each in a process of its own."""


def main(argv: list[str]) -> int:
    """Run the command."""
    command = parse(LeaderboardCommand, argv, "leaderboard", usage=USAGE)
    if command.jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {command.jobs}.")
    leaderboard = read_leaderboard(command.config)
    output = Path(command.output)
    if command.output == AUTO:
        output = Path("runs") / f"leaderboard-{command.config.stem}"
    try_folder("--output", output)
    from embodied_rl.studies.leaderboard import run  # torch and the simulator, only now

    run(leaderboard, output, shlex.join(["embodied-rl", "leaderboard", *argv]), command.jobs)
    return 0
