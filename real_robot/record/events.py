"""What is recorded. Each event is a plain dataclass with `time_ns`, the control loop's monotonic clock.

The core's own types are events too: `Tick` (state, faults, gate decision with reasons, intervention, set point) and
`Transition` (arm, start, hold, takeover, e-stop, reset, and why).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from embodied_rl.real_robot.core.executor import Chunk, Receipt
from embodied_rl.real_robot.core.runtime import Tick
from embodied_rl.real_robot.core.states import Transition


@dataclass(frozen=True)
class SessionStarted:
    """The first event of a recording: what the others refer to.

    Args:
        time_ns: The control loop's clock now.
        wall_ns: The time of day at the same moment, ns since 1970: messages are stored under it.
        robot: The arm's name.
        joint_names: Axes in the order of every set point.
        rate_hz: Set points per second.
        control_hz: Actions per second.
        cameras: Names in the policy's order.
        state_names: One name per number of `ControlStep.proprio`.
        action_names: One name per number of an action.
        settings: What else should be kept (the arm's YAML, versions, options); values that JSON takes.
    """

    time_ns: int
    wall_ns: int
    robot: str
    joint_names: tuple[str, ...]
    rate_hz: float
    control_hz: float
    cameras: tuple[str, ...]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PolicyChanged:
    """Which policy answers from now on.

    Args:
        time_ns: When it was known.
        policy: Its version, as in `Chunk.policy`; unique within the recording.
        stamp: What its server says of it: checkpoint, architecture, versions.
    """

    time_ns: int
    policy: str
    stamp: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodeStarted:
    """An attempt at a task begins.

    Args:
        time_ns: When.
        episode: Its number within the recording.
        instruction: The task.
        reset_by: Who brought the scene back: 'human', 'script' or 'none'.
    """

    time_ns: int
    episode: int
    instruction: str
    reset_by: str = "human"


@dataclass(frozen=True)
class EpisodeEnded:
    """An attempt is over. A later one for the same episode replaces it: people label after the fact.

    Args:
        time_ns: When.
        episode: Its number.
        success: Whether the task is done; None: nobody has said so.
        labelled_by: Who says so: 'human', 'simulator', or '' with None.
        note: Anything, such as what went wrong.
    """

    time_ns: int
    episode: int
    success: bool | None
    labelled_by: str = ""
    note: str = ""


@dataclass(frozen=True)
class CameraImage:
    """A picture as the policy's client was given it.

    Args:
        time_ns: When it was taken.
        camera: One of `SessionStarted.cameras`.
        image: uint8 [H, W, 3], RGB.
    """

    time_ns: int
    camera: str
    image: np.ndarray


@dataclass(frozen=True)
class JointStates:
    """What the arm measures, as it came: positions, and velocities and efforts where it sends them, by name."""

    time_ns: int
    names: tuple[str, ...]
    positions: np.ndarray
    velocities: np.ndarray | None = None
    efforts: np.ndarray | None = None


@dataclass(frozen=True)
class ChunkArrived:
    """An answer of the policy, and what the executor made of it.

    Args:
        time_ns: When it came.
        chunk: Observation time, actions and policy version.
        receipt: Accepted or why not, and the delay in steps.
        frozen: Actions that were fixed for it (real-time chunking); 0 without.
    """

    time_ns: int
    chunk: Chunk
    receipt: Receipt
    frozen: int = 0


@dataclass(frozen=True)
class AlarmRaised:
    """The failure detector says that the episode is going to fail.

    Args:
        time_ns: When.
        episode: The episode's number.
        decision: Of the episode, from 1: as the detector counts them, after so many control steps each.
        kind: What the detector follows.
        index: What it was at this decision.
        limit: What 95 % of the successes never exceed.
    """

    time_ns: int
    episode: int
    decision: int
    kind: str
    index: float
    limit: float


@dataclass(frozen=True)
class ControlStep:
    """One control step in the policy's terms: what was seen, what was asked. Training reads these.

    Args:
        time_ns: Its time.
        episode: The episode it belongs to.
        step: Its number, as the executor counts.
        proprio: What the policy would be given now, float [P].
        images_ns: For each camera, the time of the newest picture at this step: that of its `CameraImage`.
        action: What was asked in this step, float [A]: the human's where `intervention`, else the policy's.
        source: 'policy', 'human' or 'none' (nothing was asked: the arm held).
        intervention: Whether a human had the arm.
        intervention_number: Takeovers so far.
        policy: Version of the policy whose action it is; '' for a human's.
        policy_action: What the policy asked while a human had the arm, float [A]; None where it did not.
        rewritten: Whether the gate changed or blocked a set point of this step: the arm did not do what was asked.
    """

    time_ns: int
    episode: int
    step: int
    proprio: np.ndarray
    images_ns: Mapping[str, int]
    action: np.ndarray
    source: str
    intervention: bool
    intervention_number: int = 0
    policy: str = ""
    policy_action: np.ndarray | None = None
    rewritten: bool = False


@dataclass(frozen=True)
class EmergencyStop:
    """The emergency stop's button was pressed or let out; the state's own change is a `Transition`."""

    time_ns: int
    pressed: bool
    source: str = "button"


@dataclass(frozen=True)
class RawMessage:
    """A message of a middleware, byte for byte.

    Args:
        time_ns: When it came.
        topic: Its topic.
        type_name: Such as 'sensor_msgs/msg/JointState'.
        definition: The type's full text in ros2msg form, with the types that it uses.
        payload: Serialised (CDR for ROS 2).
    """

    time_ns: int
    topic: str
    type_name: str
    definition: str
    payload: bytes


RecordEvent = (
    SessionStarted
    | PolicyChanged
    | EpisodeStarted
    | EpisodeEnded
    | CameraImage
    | JointStates
    | ChunkArrived
    | AlarmRaised
    | ControlStep
    | EmergencyStop
    | RawMessage
    | Tick
    | Transition
)
"""Everything that a recorder takes."""


class EventSink(Protocol):
    """Where a control loop says what happened. `record` returns at once and raises nothing."""

    def record(self, event: RecordEvent) -> bool:
        """Take an event; False if it had to be dropped."""
        ...
