"""`embodied-rl export RECORDING --to lerobot --out DIR`: what a robot did, as a data set to train on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from embodied_rl.errors import UserError
from embodied_rl.utils.lock import locked
from embodied_rl.utils.output import try_output
from embodied_rl.utils.words import counted


@dataclass(frozen=True, kw_only=True)
class ExportRecordingCommand:
    """Write robots' recordings, or the episodes of a training run or an evaluation, as a data set in the LeRobot v3
    layout, which `sft` and LeRobot read.

    The column complementary_info.is_intervention says where a human had the arm. Control steps in which the arm held
    are left out, and so are episodes with an image that was not recorded.
    """

    recordings: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """MCAP files of the recorder, in the order in which their episodes come; or the folder of one run of --algorithm
    imitate or steer, or of one evaluation with --keep."""
    out: Path
    """Folder of the data set; it must not exist yet."""
    to: Literal["lerobot"] = "lerobot"
    """The layout: LeRobot v3."""
    episodes: Literal["all", "success", "labelled"] = "all"
    """All episodes, those whose last label says success, or those that have a label."""
    steps: Literal["all", "human"] = "all"
    """All control steps, or those that a human steered: each intervention is an episode then."""
    image_size: int | None = None
    """Side of the images in pixels (None: as recorded); one that is not square gets black bars, as in `serve`."""

    def __post_init__(self) -> None:
        if not self.recordings:
            raise UserError("name at least one recording, such as run.mcap")
        if self.image_size is not None and not 8 <= self.image_size <= 4096:
            raise UserError(f"--image-size must be from 8 to 4096, got {self.image_size}")


def is_of_recordings(argv: Sequence[str]) -> bool:
    """Whether the words after `export` mean recordings and not a checkpoint."""
    return bool(argv) and (not argv[0].startswith("-") or any(word.partition("=")[0] == "--to" for word in argv))


def run(command: ExportRecordingCommand, argv: list[str]) -> int:
    """Export; prints what became of the recordings."""
    if any(path.is_dir() for path in command.recordings):
        return _of_run(command, argv)
    from embodied_rl.jobs.export_recording import ExportPlan, export_recordings
    from embodied_rl.policies.preprocessing.resize import bilinear_pillow_padded
    from embodied_rl.utils.console import LastingConsole
    from embodied_rl.version import __version__

    console = LastingConsole()
    try_output("--out", command.out)
    stamp = {"command": shlex.join(["embodied-rl", "export", *argv]), "version": __version__}
    plan = ExportPlan(command.recordings, command.out, command.episodes, command.steps, command.image_size, stamp)
    with locked(command.out.with_name(command.out.name + ".lock"), f"exporting {command.out}"):
        done = export_recordings(plan, bilinear_pillow_padded, lambda line: console.print(line, soft_wrap=True))
    for reason, count in done.left_out.items():
        console.print(f"left out: {count} episodes {reason}", soft_wrap=True)
    share = f"{done.interventions} of them a human's" if done.interventions else "none of them a human's"
    console.print(f"wrote {command.out}: {done.episodes} episodes, {done.frames} frames, {share}", soft_wrap=True)
    return 0


def _of_run(command: ExportRecordingCommand, argv: list[str]) -> int:
    """Export the episodes of a training run, or of an evaluation."""
    usual = ExportRecordingCommand(recordings=command.recordings, out=command.out)
    run, *others = command.recordings
    if others:
        raise UserError("name the folder of one run, or recordings alone")
    for name in ("steps", "image_size"):
        if getattr(command, name) != getattr(usual, name):
            raise UserError(f"--{name.replace('_', '-')} is for recordings: a run's episodes are exported as they are")
    if command.episodes == "labelled":
        raise UserError("--episodes labelled is for recordings: of a run's episodes, give all or success")
    from embodied_rl.jobs.export_rollouts import export_rollouts
    from embodied_rl.version import __version__

    try_output("--out", command.out)
    stamp = {"command": shlex.join(["embodied-rl", "export", *argv]), "version": __version__}
    with locked(command.out.with_name(command.out.name + ".lock"), f"exporting {command.out}"):
        count = export_rollouts(run, command.out, stamp, successes=command.episodes == "success")
    print(f"wrote {command.out}: {counted(count, 'episode')}")
    return 0
