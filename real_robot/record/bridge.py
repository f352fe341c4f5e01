"""From the bridge's events to the recorder's: control steps with what was seen, and a human's motion as actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embodied_rl.real_robot.core.cartesian import AS_TRAINED, ControlLaw
from embodied_rl.real_robot.core.executor import Chunk
from embodied_rl.real_robot.core.gate import GateOutcome
from embodied_rl.real_robot.core.kinematics import Origin
from embodied_rl.real_robot.core.states import ArmState, Transition
from embodied_rl.real_robot.record.events import (
    AlarmRaised,
    CameraImage,
    ChunkArrived,
    ControlStep,
    EmergencyStop,
    EpisodeEnded,
    EpisodeStarted,
    EventSink,
    JointStates,
    PolicyChanged,
)
from embodied_rl.real_robot.ros2.events import (
    ActionTaken,
    ButtonMoved,
    ChunkDecided,
    CommandJudged,
    EpisodeMarked,
    Event,
    JointsMeasured,
    ObservationTaken,
    PolicyServed,
    StateChanged,
)

_LABELS = {"success": True, "failure": False}
_SAME_WIDTH = 1e-4
_STILL = 0.01
"""Actions below it are of an arm that rests."""


def stamp_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a recording keeps of what a server says of its policy."""
    return {name: value for name, value in metadata.items() if name != "layouts"}


@dataclass(frozen=True)
class _Pose:
    """Where the tool was asked to be: position [3], m; quaternion x, y, z, w; width of the gripper, m."""

    position: np.ndarray
    quaternion: np.ndarray
    width: float | None


class BridgeRecorder:
    """A sink for the bridge's events; put it behind a `BackgroundSink`, since it looks at pictures.

    A human's action is what the controller of training would have to be asked for, again and again, to move as fast as
    the tool was asked to (`ControlLaw`); its gripper closes or opens where the width does. Where the human's switch is
    open and the arm rests, nobody acts: such a step is none of the human's, as a hold is none of the policy's.

    Args:
        sink: The recorder.
        observe: The bridge's `Observations.take`: what the policy would be asked about now; None before there is any.
        law: The controller of training.
        labelled_by: Who says how episodes end: 'human', or 'simulator' on a twin.
        policy: What the server says of its policy, `weights` among it; kept where that policy answers.
        base: The arm's base in the world of training, along whose axes actions point.

    Example:
        >>> bridge.loop.events.subscribe(BackgroundSink(BridgeRecorder(recorder, observations.take, ControlLaw())))
    """

    def __init__(
        self,
        sink: EventSink,
        observe: Callable[[int], ObservationTaken | None],
        law: ControlLaw,
        labelled_by: str = "human",
        policy: Mapping[str, Any] | None = None,
        base: Origin = AS_TRAINED,
    ) -> None:
        self._sink, self._observe, self._law, self._labelled_by = sink, observe, law, labelled_by
        self._step_ns = round(1e9 / law.rate_hz)
        self._stamp, self._to_training = policy or {}, base.rotation()
        self._policy, self._is_new, self._episode, self._seen_ns = "", False, 0, -1
        self._open: ControlStep | None = None
        """The control step under way: it is recorded once it is over."""
        self._began: _Pose | None = None
        self._last: _Pose | None = None
        """What the last tick asked for, whoever had the arm."""
        self._asked = False
        """Whether the human asked for anything in the step under way."""
        self._grip = -1.0

    def __call__(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, CommandJudged):
            self._judged(event)
        elif isinstance(event, ActionTaken):
            self._action(event)
        elif isinstance(event, ChunkDecided):
            self._chunk(event)
        elif isinstance(event, PolicyServed):
            self._stamp, self._is_new = stamp_of(event.metadata), True
        elif isinstance(event, ObservationTaken):
            self._images(event)
        elif isinstance(event, JointsMeasured):
            self._sink.record(JointStates(event.time_ns, event.names, event.positions, event.velocities))
        elif isinstance(event, ButtonMoved):
            self._sink.record(EmergencyStop(event.time_ns, event.pressed))
        elif isinstance(event, AlarmRaised):
            self._sink.record(event)
        elif isinstance(event, StateChanged):
            self._changed(event.transition)
        elif isinstance(event, EpisodeMarked):
            self._mark(event)

    def close(self) -> None:
        """Record the step under way."""
        self._close()

    def _changed(self, change: Transition) -> None:
        self._sink.record(change)
        if change.accepted:
            self._close()
            if change.before is ArmState.HOLDING:
                self._last = None  # a takeover then begins where the arm is measured: no way that anybody went

    def _chunk(self, event: ChunkDecided) -> None:
        if event.policy != self._policy or self._is_new:
            self._policy, self._is_new = event.policy, False
            stamp = self._stamp if self._stamp.get("weights") == event.policy else {}
            self._sink.record(PolicyChanged(event.time_ns, event.policy, stamp))
        chunk = Chunk(event.observed_ns, event.actions, event.policy)
        self._sink.record(ChunkArrived(event.time_ns, chunk, event.receipt, event.frozen))

    def _images(self, seen: ObservationTaken) -> None:
        """Record the pictures of an observation, each once."""
        if seen.stamp_ns > self._seen_ns:
            self._seen_ns = seen.stamp_ns
            for camera, image in seen.images.items():
                self._sink.record(CameraImage(seen.stamp_ns, camera, image))

    def _mark(self, event: EpisodeMarked) -> None:
        self._close()
        if event.began:
            self._episode = event.number
            seen = self._observe(event.time_ns)
            words = "" if seen is None else seen.instruction
            self._sink.record(EpisodeStarted(event.time_ns, event.number, words, "none"))
        else:
            success = _LABELS.get(event.outcome)
            by = "" if success is None else self._labelled_by
            self._sink.record(EpisodeEnded(event.time_ns, event.number, success, by, event.outcome))

    def _action(self, event: ActionTaken) -> None:
        """A step of the policy begins."""
        self._close()
        if event.action is not None:
            self._begin(event.time_ns, np.asarray(event.action.values, np.float64), "policy", 0)
            self._grip = float(np.sign(event.action.values[-1])) or self._grip

    def _judged(self, event: CommandJudged) -> None:
        tick = event.tick
        self._sink.record(tick)
        human = tick.state is ArmState.HUMAN
        pose = _Pose(event.position, event.quaternion, event.width)
        step = event.time_ns // self._step_ns
        if human and (self._open is None or self._open.step != step):
            after_human = self._began is not None
            self._close(pose)
            self._begin(event.time_ns, np.zeros(7), "human", tick.selection.number)
            # whoever takes over mid-step moves in the first tick: that belongs to the first of the human's steps
            self._began, self._asked = pose if after_human else self._last or pose, False
        elif self._open is not None and self._open.intervention and not human:
            self._close()
        self._asked |= human and tick.selection.command is not None
        if self._open is not None and tick.decision is not None and tick.decision.outcome is not GateOutcome.ALLOW:
            self._open = replace(self._open, rewritten=True)
        self._last = pose

    def _begin(self, time_ns: int, action: np.ndarray, source: str, number: int) -> None:
        """Note what is seen as a step begins; a step before the first observation is none to learn from."""
        seen = self._observe(time_ns)
        if seen is None:
            return
        self._images(seen)
        human = source == "human"
        self._open = ControlStep(
            time_ns=time_ns,
            episode=self._episode,
            step=time_ns // self._step_ns,
            proprio=np.asarray(seen.proprio, np.float64),
            images_ns=dict.fromkeys(seen.images, self._seen_ns),
            action=action,
            source=source,
            intervention=human,
            intervention_number=number,
            policy="" if human else self._policy,
        )

    def _close(self, ended: _Pose | None = None) -> None:
        """Record the step under way; a human's only where its whole motion is known."""
        step, began = self._open, self._began
        self._open = self._began = None
        if step is None:
            return
        if step.intervention:
            if began is None or ended is None:
                return
            step = replace(step, action=self._human_action(began, ended))
            if not self._asked and np.abs(step.action[:6]).max() < _STILL:
                return
        self._sink.record(step)

    def _human_action(self, began: _Pose, ended: _Pose) -> np.ndarray:
        """[7] in [-1, 1]: those actions, one after the other, bring training's controller as far as the human went."""
        law = self._law  # a step that begins between two ticks is done as a whole one: it is the way that counts
        moved = self._to_training @ (ended.position - began.position) / (law.share * law.position_scale)
        turned = _rotation_vector(began.quaternion, ended.quaternion) / (law.share * law.rotation_scale)
        turned = self._to_training @ turned
        if began.width is not None and ended.width is not None and abs(ended.width - began.width) > _SAME_WIDTH:
            self._grip = 1.0 if ended.width < began.width else -1.0
        return np.clip(np.concatenate([moved, turned, [self._grip]]), -1.0, 1.0)


def _rotation_vector(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The turn from one orientation to another in the base frame [3], rad; quaternions x, y, z, w."""
    u, w = after[:3], after[3]
    v, s = -before[:3], before[3]
    vector, scalar = w * v + s * u + np.cross(u, v), w * s - u @ v
    if scalar < 0:
        vector, scalar = -vector, -scalar
    length = float(np.linalg.norm(vector))
    return vector * (2.0 if length < 1e-9 else 2.0 * float(np.arctan2(length, scalar)) / length)
