"""`embodied-rl export RECORDING --to lerobot --out DIR`: what a robot did, as a data set to train on.

`embodied-rl export DATASET --push OWNER/NAME` uploads one that is there.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.hub import Kind, check_push, push
from embodied_rl.utils.lock import locked
from embodied_rl.utils.output import try_output
from embodied_rl.utils.words import counted
from embodied_rl.version import __version__


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Where an export goes on the Hugging Face hub, and what its card says."""

    push: str | None = None
    """Upload what is exported, with its card, to OWNER/NAME on the Hugging Face hub; it replaces what is there."""
    private: bool = False
    """Show a new repository to its owner alone."""
    license: str | None = None
    """License that the card names, as the hub does, such as apache-2.0 (None: it names none)."""

    def check(self) -> None:
        """Before the work: UserError where the upload cannot succeed."""
        if self.private and self.push is None:
            raise UserError("--private is for a repository of the Hugging Face hub: name it with --push OWNER/NAME.")
        if self.push is not None:
            check_push(self.push)

    def upload(self, folder: Path, kind: Kind, tag: str = "") -> None:
        """Upload it, if that was asked for, and say where."""
        if self.push is not None:
            print(f"uploaded to {push(folder, self.push, kind, private=self.private, tag=tag)}")


@dataclass(frozen=True, kw_only=True)
class ExportRecordingCommand(PushOptions):
    """Write robots' recordings, or the episodes of a training run or an evaluation, as a data set in the LeRobot v3
    layout, which `sft` and LeRobot read; or upload a data set.

    The column complementary_info.is_intervention says where a human had the arm. Control steps in which the arm held
    are left out, and so are episodes with an image that was not recorded.
    """

    recordings: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """MCAP files of the recorder, in the order in which their episodes come; or the folder of one run of --algorithm
    imitate or steer, or of one evaluation with --keep; or that of one data set, to --push."""
    out: Path | None = None
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
    command.check()
    if any((path / "meta" / "info.json").is_file() for path in command.recordings):
        return _of_data_set(command)
    if command.out is None:
        raise UserError(f"{command.recordings[0]} is no data set to --push; to make one of it, add --out DIR.")
    stamp = {"command": shlex.join(["embodied-rl", "export", *argv]), "version": __version__}
    if any(path.is_dir() for path in command.recordings):
        return _of_run(command, command.out, stamp)
    from embodied_rl.jobs.export_recording import ExportPlan, export_recordings
    from embodied_rl.policies.preprocessing.resize import bilinear_pillow_padded
    from embodied_rl.utils.console import LastingConsole

    console = LastingConsole()
    try_output("--out", command.out)
    plan = ExportPlan(command.recordings, command.out, command.episodes, command.steps, command.image_size, stamp)
    with locked(command.out.with_name(command.out.name + ".lock"), f"exporting {command.out}"):
        done = export_recordings(plan, bilinear_pillow_padded, lambda line: console.print(line, soft_wrap=True))
    for reason, count in done.left_out.items():
        console.print(f"left out: {count} episodes {reason}", soft_wrap=True)
    share = f"{done.interventions} of them a human's" if done.interventions else "none of them a human's"
    console.print(f"wrote {command.out}: {done.episodes} episodes, {done.frames} frames, {share}", soft_wrap=True)
    return _finish(command, command.out)


def _of_run(command: ExportRecordingCommand, out: Path, stamp: dict[str, str]) -> int:
    """Export the episodes of a training run, or of an evaluation."""
    run = _alone(command, ("steps", "image_size"), "is for recordings: a run's episodes are exported as they are")
    if command.episodes == "labelled":
        raise UserError("--episodes labelled is for recordings: of a run's episodes, give all or success")
    from embodied_rl.jobs.export_rollouts import export_rollouts

    try_output("--out", out)
    with locked(out.with_name(out.name + ".lock"), f"exporting {out}"):
        count = export_rollouts(run, out, stamp, successes=command.episodes == "success")
    print(f"wrote {out}: {counted(count, 'episode')}")
    return _finish(command, out)


def _of_data_set(command: ExportRecordingCommand) -> int:
    """Upload a data set that is there."""
    if command.push is None:
        raise UserError(f"{command.recordings[0]} is a data set already: --push OWNER/NAME uploads it.")
    unused = ("out", "episodes", "steps", "image_size")
    return _finish(command, _alone(command, unused, "is for recordings and runs: a data set is uploaded as it is"))


def _alone(command: ExportRecordingCommand, unused: Sequence[str], why: str) -> Path:
    """The one folder that is named; UserError for another beside it, or for an option that does not apply to it."""
    folder, *others = command.recordings
    if others:
        raise UserError("name the folder of one run or data set, or recordings alone")
    usual = ExportRecordingCommand(recordings=command.recordings)
    for name in unused:
        if getattr(command, name) != getattr(usual, name):
            raise UserError(f"--{name.replace('_', '-')} {why}")
    return folder


def _finish(command: ExportRecordingCommand, folder: Path) -> int:
    """Write the card, and upload if that was asked for."""
    from embodied_rl.jobs.cards import write_dataset_card

    version = write_dataset_card(folder, command.push or folder.name, command.license)
    command.upload(folder, "dataset", version)
    return 0
