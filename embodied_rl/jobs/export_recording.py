"""From a robot's recordings to a LeRobot v3 data set: interventions become training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.data import writer
from embodied_rl.data.layout import ENDS_IN_SUCCESS, INTERVENTION, DatasetSpec, Episode
from embodied_rl.errors import UserError
from embodied_rl.real_robot.record.episodes import (
    EpisodeChoice,
    Image,
    RecordedEpisode,
    StepChoice,
    read_episodes,
    read_images,
    stored_images,
)
from embodied_rl.real_robot.record.events import PolicyChanged, SessionStarted
from embodied_rl.real_robot.record.reader import RecordingFile
from embodied_rl.types import Array
from embodied_rl.utils.words import counted

REWRITTEN = "complementary_info.rewritten"
"""Column: whether the safety gate changed what was asked."""


@dataclass(frozen=True)
class ExportPlan:
    """What is exported.

    Args:
        recordings: MCAP files, in the order in which their episodes come.
        out: The data set's folder.
        episodes: Which ones.
        steps: All, or those of interventions.
        image_size: Side of the pictures in pixels; None: as recorded.
        stamp: What info.json says of the export besides.
    """

    recordings: Sequence[Path]
    out: Path
    episodes: EpisodeChoice
    steps: StepChoice
    image_size: int | None
    stamp: dict[str, Any]


@dataclass(frozen=True)
class Exported:
    """What became of it: episodes and frames, frames of interventions, and how many episodes were left out and why."""

    episodes: int
    frames: int
    interventions: int
    left_out: dict[str, int]


def export_recordings(plan: ExportPlan, resize: Callable[[Array, int], Array], say: Callable[[str], None]) -> Exported:
    """Write the data set.

    Args:
        plan: What, and where to.
        resize: Brings a picture uint8 [H, W, 3] to a side.
        say: Told what a person should know, in one line.

    Raises:
        UserError: Nothing is left to export, recordings differ in what they hold, one is damaged or named twice.
    """
    files = [RecordingFile(path) for path in plan.recordings]
    session = _same_session(files)
    _must_be_live(files)
    fps = round(session.control_hz)
    if abs(fps - session.control_hz) > 1e-6 or fps < 1:
        raise UserError(f"{session.control_hz:g} control steps a second: LeRobot's layout needs a whole number")
    size = plan.image_size or _recorded_size(files, session)
    spec = DatasetSpec(
        session.cameras,
        size,
        session.state_names,
        session.action_names,
        fps,
        session.robot,
        columns={INTERVENTION: "bool", REWRITTEN: "bool"},
    )
    sizes = {str(path): path.stat().st_size for path in plan.recordings}
    partial = writer.begin(plan.out, {"recordings": sizes, **_settings(plan, size)})
    left_out: Counter[str] = Counter()
    done, about = Exported(0, 0, 0, {}), []
    for recording in files:
        chosen = _choose(recording, plan, left_out)
        _store(recording, chosen, partial, spec, _Place(done.episodes, resize))
        human = sum(step.intervention for episode in chosen for step in episode.steps)
        frames = sum(len(episode.steps) for episode in chosen)
        done = Exported(done.episodes + len(chosen), done.frames + frames, done.interventions + human, {})
        about.append(_about(recording))
        if breaks := len(chosen) - len({episode.number for episode in chosen}) if plan.steps == "all" else 0:
            say(f"{recording.path}: {counted(breaks, 'hold')} within an attempt: what follows is an episode of its own")
        if not recording.whole:
            where = "" if recording.damaged_at is None else f" at byte {recording.damaged_at}"
            say(f"{recording.path} was cut off or is damaged{where}: what came before that place is used")
    if not done.episodes:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items()) or "there are none"
        raise UserError(f"no episode is left to export: {reasons}")
    stamp = plan.stamp | {"recordings": about, "left_out": dict(left_out), **_settings(plan, size)}
    writer.finalize(plan.out, spec, stamp)
    return Exported(done.episodes, done.frames, done.interventions, dict(left_out))


def _settings(plan: ExportPlan, size: int) -> dict[str, Any]:
    return {"episodes": plan.episodes, "steps": plan.steps, "image_size": size}


def _same_session(files: Sequence[RecordingFile]) -> SessionStarted:
    """The first recording's; UserError where another one holds other things, or is the same one again."""
    first = files[0].session
    for name in ("robot", "cameras", "state_names", "action_names", "control_hz"):
        for other in files[1:]:
            if getattr(other.session, name) != getattr(first, name):
                raise UserError(
                    f"{files[0].path} and {other.path} differ in {name} ({getattr(first, name)}; "
                    f"{getattr(other.session, name)}): export them apart"
                )
    began: dict[int, Path] = {}
    for recording in files:
        if (same := began.setdefault(recording.session.wall_ns, recording.path)) is not recording.path:
            raise UserError(f"{same} and {recording.path} are the same recording: name it once")
    return first


def _must_be_live(files: Sequence[RecordingFile]) -> None:
    """UserError where nothing was sent: what was asked did not happen, and teaches nothing."""
    for recording in files:
        mode = recording.session.settings.get("options", {}).get("mode", "live")
        if mode != "live":
            raise UserError(f"{recording.path} is of deploy --{mode.replace('_', '-')}: nothing was sent, leave it out")


def _recorded_size(files: Sequence[RecordingFile], session: SessionStarted) -> int:
    """The side of the recorded pictures; UserError unless they are squares of one size."""
    sizes = set()
    for recording in files:
        for camera in session.cameras:
            first = next(iter(stored_images(recording, [camera])), None)
            if first is not None:
                sizes |= {image.shape[:2] for _, image in read_images(recording, {first})}
    sides = {side for size in sizes for side in size}
    if len(sides) > 1:
        found = ", ".join(f"{width} x {height}" for height, width in sorted(sizes))
        raise UserError(f"images of {found}: say with --image-size which square they should become")
    if not sides:
        raise UserError("the recordings have no images")
    return sides.pop()


def _choose(recording: RecordingFile, plan: ExportPlan, left_out: Counter[str]) -> list[RecordedEpisode]:
    """The episodes to export; the others are counted with the reason."""
    cameras, kept = recording.session.cameras, []
    stored = stored_images(recording, cameras)
    wanted = []
    for attempt in read_episodes(recording):
        parts = attempt.parts(plan.steps, recording.session.control_hz)
        if attempt.chosen(plan.episodes):
            wanted += parts
        elif parts:
            left_out["not a success" if plan.episodes == "success" else "without a label"] += len(parts)
    for episode in wanted:
        pictures = episode.images(cameras)
        if not all(pictures) or not stored.issuperset(picture for row in pictures for picture in row):
            left_out["with images that were not recorded"] += 1
        elif not all(np.isfinite(step.action).all() and np.isfinite(step.proprio).all() for step in episode.steps):
            left_out["with numbers that are not finite"] += 1
        else:
            kept.append(episode)
    return kept


@dataclass(frozen=True)
class _Place:
    first_key: int
    resize: Callable[[Array, int], Array]


def _store(
    recording: RecordingFile, episodes: Sequence[RecordedEpisode], partial: Path, spec: DatasetSpec, place: _Place
) -> None:
    """Read the pictures once, in order, and store each episode as soon as it has all of its."""
    size, cameras = spec.image_shape[0], spec.cameras
    wanted: dict[Image, list[tuple[int, int, int]]] = {}
    for index, episode in enumerate(episodes):
        for row, pictures in enumerate(episode.images(cameras)):
            for view, picture in enumerate(pictures):
                wanted.setdefault(picture, []).append((index, row, view))
    images: dict[int, Array] = {}
    missing = {index: len(episode.steps) * len(cameras) for index, episode in enumerate(episodes)}
    for picture, image in read_images(recording, set(wanted)):
        fitted = image if image.shape[:2] == (size, size) else place.resize(image, size)
        for index, row, view in wanted[picture]:
            if index not in images:
                images[index] = np.zeros((len(episodes[index].steps), len(cameras), size, size, 3), np.uint8)
            images[index][row, view] = fitted
            missing[index] -= 1
            if not missing[index]:
                made = _as_episode(place.first_key + index, episodes[index], images.pop(index))
                writer.add_episode(partial, spec, made)


def _as_episode(key: int, recorded: RecordedEpisode, images: Array) -> Episode:
    action = np.stack([step.action for step in recorded.steps]).astype(np.float32)
    columns = {
        INTERVENTION: np.array([step.intervention for step in recorded.steps]),
        REWRITTEN: np.array([step.rewritten for step in recorded.steps]),
    }
    extra: dict[str, str | int | float] = {
        "recorded_episode": recorded.number,
        "success": -1 if recorded.success is None else int(recorded.success),
        ENDS_IN_SUCCESS: int(recorded.success is True and recorded.final),
        "labelled_by": recorded.labelled_by,
        "interventions": int(columns[INTERVENTION].sum()),
    }
    state = np.stack([step.proprio for step in recorded.steps]).astype(np.float32)
    return Episode(key, recorded.instruction, images, state, action, action.copy(), extra, columns)


def _about(recording: RecordingFile) -> dict[str, Any]:
    """Where the data comes from: the file, its session's time of day, and the policies that acted."""
    policies = {event.policy: dict(event.stamp) for event in recording.events(PolicyChanged)}
    return {
        "file": recording.path.name,
        "robot": recording.session.robot,
        "wall_ns": recording.session.wall_ns,
        "policies": policies,
        "whole": recording.whole,
    }
