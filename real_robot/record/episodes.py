"""Episodes of a recording: what was seen and asked in each control step, and what people said of it afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from embodied_rl.real_robot.record.codec import CAMERA_TOPIC, decode_image, decode_image_head
from embodied_rl.real_robot.record.events import ControlStep, EpisodeEnded, EpisodeStarted
from embodied_rl.real_robot.record.reader import RecordingFile

EpisodeChoice = Literal["all", "success", "labelled"]
StepChoice = Literal["all", "human"]
Image = tuple[str, int]
"""A camera and the time of one of its pictures."""
_LONGEST_STEP = 1.5
"""Of a control step: when the next one must have begun; the control loop's ticks blur it by less than half."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One attempt, or the part of it that a human steered.

    Args:
        number: The attempt's number within the recording.
        instruction: The task.
        success: The last label; None: nobody gave one.
        labelled_by: Who gave it.
        steps: Control steps in which something was asked, in time order; those in which the arm held are left out.
        final: Whether the attempt's last step is among them.
    """

    number: int
    instruction: str
    success: bool | None
    labelled_by: str
    steps: Sequence[ControlStep]
    final: bool = True

    def images(self, cameras: Sequence[str]) -> list[list[Image]]:
        """For each step, the picture of each camera that was the newest then; [] where a camera had none yet."""
        return [
            [(camera, step.images_ns[camera]) for camera in cameras] if set(cameras) <= set(step.images_ns) else []
            for step in self.steps
        ]

    def chosen(self, episodes: EpisodeChoice) -> bool:
        """Whether the episode belongs to a choice."""
        if episodes == "success":
            return self.success is True
        return episodes == "all" or self.success is not None

    def parts(self, steps: StepChoice, control_hz: float) -> list[RecordedEpisode]:
        """Each run of steps that follow one another, as an episode of its own.

        Where the arm held, or a step was not recorded, what comes next is later than a frame's number would say.

        Args:
            steps: 'human': interventions only, each an episode of its own.
            control_hz: Control steps a second.
        """
        longest_ns = _LONGEST_STEP * 1e9 / control_hz
        runs: list[list[ControlStep]] = []
        before: ControlStep | None = None
        for step in self.steps:
            if steps == "all" or step.intervention:
                follows = before is not None and step.time_ns - before.time_ns <= longest_ns
                if before is None or not follows or (steps == "human" and _takeover(before) != _takeover(step)):
                    runs.append([])
                runs[-1].append(step)
            before = step
        return [replace(self, steps=run, final=run[-1] is self.steps[-1]) for run in runs]


def _takeover(step: ControlStep) -> int | None:
    """Which intervention a step belongs to."""
    return step.intervention_number if step.intervention else None


def read_episodes(recording: RecordingFile) -> list[RecordedEpisode]:
    """The attempts in the order of their beginnings; those without a step are left out."""
    started: dict[int, EpisodeStarted] = {}
    ended: dict[int, EpisodeEnded] = {}
    asked: dict[int, list[ControlStep]] = {}
    for event in recording.events(EpisodeStarted, EpisodeEnded, ControlStep):
        if isinstance(event, EpisodeStarted):
            started[event.episode] = event
        elif isinstance(event, EpisodeEnded):
            ended[event.episode] = event  # the last label counts
        elif event.source != "none":
            asked.setdefault(event.episode, []).append(event)
    found = []
    for number, start in started.items():
        end = ended.get(number, EpisodeEnded(0, number, None))
        if taken := asked.get(number):
            found.append(RecordedEpisode(number, start.instruction, end.success, end.labelled_by, taken))
    return found


def stored_images(recording: RecordingFile, cameras: Sequence[str]) -> set[Image]:
    """The pictures that the recording has."""
    topics = [CAMERA_TOPIC + camera for camera in cameras]
    heads = (decode_image_head(message.data) for message in recording.messages(topics))
    return {(camera, time_ns) for camera, time_ns, _ in heads}


def read_images(recording: RecordingFile, wanted: set[Image]) -> Iterator[tuple[Image, np.ndarray]]:
    """The wanted pictures, uint8 [H, W, 3], in the order of writing; each once."""
    left = set(wanted)
    for message in recording.messages([CAMERA_TOPIC + camera for camera in {camera for camera, _ in wanted}]):
        camera, time_ns, _ = decode_image_head(message.data)
        if (camera, time_ns) in left:
            left.remove((camera, time_ns))
            yield (camera, time_ns), decode_image(message.data).image
