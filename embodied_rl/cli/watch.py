"""`embodied-rl watch CHECKPOINT --demos DATA --out FILE`: calibrate a failure detector for a policy."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embodied_rl.cli import eval as evaluation
from embodied_rl.cli.parse import parse, wants_help
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import Kind
from embodied_rl.utils.output import try_file, try_output
from embodied_rl.utils.words import counted

USAGE = """\
usage: embodied-rl watch CHECKPOINT --demos DATA --out FILE [options]
       embodied-rl watch --kept EVALUATION --demos DATA --out FILE [options]

Make a failure detector: after each decision it says whether the episode is
going to fail, from what the policy makes of the picture and of demonstrations.
Runs episodes of the policy from held-out states; one half calibrates (95 % of
the successes raise no alarm), the other says how good it is, beside a clock.

  CHECKPOINT      the folder of a run or checkpoint
  --kept DIR      read the episodes of `eval --keep --no-at-end` in place of
                  running some
"""


@dataclass(frozen=True, kw_only=True)
class WatchCommand:
    """Calibrate a failure detector for a policy."""

    checkpoint: str | None = None
    """The policy: the folder of a run or checkpoint, or OWNER/NAME of a published one (None: that of --kept)."""
    kept: Path | None = None
    """Folder of an evaluation that kept its episodes (None: episodes are run, into a folder beside --out)."""
    demos: tuple[str, ...] = ()
    """Demonstrations to compare with: data sets, as `embodied-rl sft` reads them."""
    out: Path
    """File of the detector, for deploy --detector, serve --detector and train --people-detector."""
    detector: Kind = "steps_to_go"
    """clock: decisions so far; nearest: distance from the nearest demonstrated state; steps_to_go: decisions so far,
    and those that were still to come from there."""
    episodes: int = 100
    """Episodes to run, shared out over the demonstrated tasks."""
    seed: int = 0
    """Seed of these episodes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy is; auto takes a GPU if there is one."""
    json: Path | None = None
    """Also write the figures here."""


def main(argv: list[str]) -> int:
    """Run the command."""
    words = list(argv)
    if words and not words[0].startswith("-") and not wants_help(words):
        words = ["--checkpoint", *words]
    command = parse(WatchCommand, words, "watch", usage=USAGE)
    _check(command)
    folder = command.kept
    if folder is None:
        folder = command.out.with_name(f"{command.out.name}-episodes")
        evaluation.main(_words(command, folder))
    benchmark, evaluated = evaluation.begun_in(folder)
    from embodied_rl.jobs.watch import WatchRequest, run  # torch and the simulator, only now
    from embodied_rl.utils.console import LastingConsole

    run(
        benchmark, evaluated, WatchRequest(command.detector, command.demos, command.out, command.json), LastingConsole()
    )
    return 0


def _check(command: WatchCommand) -> None:
    if not command.demos:
        raise UserError("watch compares with demonstrations: name them with --demos DATA.")
    if (command.checkpoint is None) == (command.kept is None):
        raise UserError("watch takes a checkpoint, or --kept with an evaluation's folder: one of them.")
    usual = WatchCommand(out=command.out)
    for name in ("episodes", "seed", "device"):
        if command.kept is not None and getattr(command, name) != getattr(usual, name):
            raise UserError(f"--{name} is of episodes that are run, and --kept has some: leave it out.")
    if command.out.is_dir():
        raise UserError(f"--out: {command.out} is a folder; name a file, such as detector.safetensors.")
    try_output("--out", command.out)
    if command.json is not None:
        try_file("--json", command.json)


def _words(command: WatchCommand, folder: Path) -> list[str]:
    """The evaluation whose episodes are watched."""
    tasks = _demonstrated(command.demos)
    if command.episodes < 4 * len(tasks) or command.episodes % len(tasks):
        least = 4 * len(tasks)
        raise UserError(
            f"--episodes {command.episodes}: {counted(len(tasks), 'task')} share them, with 4 or more each: give "
            f"{max(least, command.episodes // len(tasks) * len(tasks))}."
        )
    assert command.checkpoint is not None, "it was checked"
    options = {
        "--checkpoint": command.checkpoint,
        "--states-per-task": str(command.episodes // len(tasks)),
        "--seed": str(command.seed),
        "--device": command.device,
        "--output": str(folder),
    }
    return ["--keep", *(word for pair in options.items() for word in pair), "--tasks", *tasks]


def _demonstrated(demos: tuple[str, ...]) -> list[str]:
    """Short names of the tasks that data sets of `collect` and `export` show."""
    from embodied_rl.config.sft import weighted_data
    from embodied_rl.data.layout import NAMESPACE
    from embodied_rl.data.metadata import read_metadata
    from embodied_rl.evaluation.overlap import TRAINED_STATES
    from embodied_rl.policies.checkpoints.hub import resolve

    tasks = dict[str, None]()
    for name, _ in weighted_data(demos):
        about = read_metadata(resolve(name, "dataset")).info.get(NAMESPACE, {})
        shown = about.get("tasks") or about.get(TRAINED_STATES)  # of `collect`; of `export`
        if not shown:
            again = shlex.join(["embodied-rl", "eval", "--checkpoint", "...", "--keep", "--output", "kept"])
            raise UserError(
                f"{name} does not say which tasks it shows: run episodes with {again}, and watch --kept kept."
            )
        tasks |= dict.fromkeys(task.rpartition("/")[2] for task in shown)
    return list(tasks)
