"""What the bridge says of itself: its state at once, a status ten times and diagnostics once a second."""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any

import numpy as np

from embodied_rl.real_robot.core.gate import GateOutcome
from embodied_rl.real_robot.core.pace import USUAL
from embodied_rl.real_robot.core.states import ArmState
from embodied_rl.real_robot.record.events import AlarmRaised
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.adapters.stamps import set_time
from embodied_rl.real_robot.ros2.context import BridgeContext
from embodied_rl.real_robot.ros2.events import ActionTaken, Event, Intervened, StateChanged
from embodied_rl.real_robot.ros2.inputs import Inputs
from embodied_rl.real_robot.ros2.loop import Output
from embodied_rl.real_robot.ros2.metadata import unknown_task
from embodied_rl.real_robot.ros2.policy_health import policy_problem
from embodied_rl.real_robot.ros2.recording import BridgeRecording

_STATUS_S, _DIAGNOSTICS_S = 0.1, 1.0
_STEPS, _TICKS, _FEWEST = 40, 100, 20
"""By which is judged whether an arm that runs is moved: control steps, control ticks, and steps at least."""


class Reporter:
    """Publishes ~/state, ~/status and /diagnostics.

    Args:
        context: What is reported on.
        inputs: What comes in.
        recording: What is written; None where nothing is.
    """

    def __init__(self, context: BridgeContext, inputs: Inputs, recording: BridgeRecording | None) -> None:
        from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
        from std_msgs.msg import String

        self._context, self._inputs, self._recording, self._text = context, inputs, recording, String
        self._array, self._status, self._pair = DiagnosticArray, DiagnosticStatus, KeyValue
        node = context.session.node
        self._log = node.get_logger()
        self._states = node.create_publisher(String, "~/state", qos.latched())
        self._statuses = node.create_publisher(String, "~/status", qos.command())
        self._diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", qos.event(10))
        self._ticks: deque[int] = deque(maxlen=500)
        self._outcomes: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._steps: deque[int] = deque(maxlen=200)
        self._acts, self._taken = deque[bool](maxlen=_STEPS), deque[bool](maxlen=_TICKS)
        self._holds, self._interventions = 0, 0
        self._last_hold, self._last_intervention_ns = "", 0
        self._faults: list[str] = []
        context.loop.events.subscribe(self._on_event)
        self._states.publish(String(data=json.dumps({"state": str(context.loop.state), "event": "", "reason": ""})))
        node.create_timer(_STATUS_S, self._publish_status)
        node.create_timer(_DIAGNOSTICS_S, self._publish_diagnostics)

    def tick(self, output: Output, now_ns: int) -> None:
        """Note a control tick; called by the control thread."""
        self._ticks.append(now_ns)
        self._faults = [f"{fault.kind}: {fault.detail}" for fault in output.tick.faults]
        if output.tick.held is not None:
            self._holds, self._last_hold = self._holds + 1, output.tick.held.reason
        decision = output.tick.decision
        if output.tick.state is ArmState.RUNNING:
            self._taken.append(decision is not None and decision.outcome is not GateOutcome.BLOCK)
        if decision is not None:
            self._outcomes[str(decision.outcome)] += 1
            self._reasons.update(reason.kind for reason in decision.reasons)

    def status(self) -> dict[str, Any]:
        """All of it, in plain values."""
        context, now_ns = self._context, self._context.clock.now_ns()
        gaps = np.diff(list(self._ticks)) / 1e6  # list() of a deque is one step: others append meanwhile
        steps = np.diff(list(self._steps)) / 1e6
        answers, report = context.inference.report.answer_ms, context.inference.report
        return {
            "state": str(context.loop.state),
            "mode": context.options.mode,
            "faults": self._faults,
            "tick_ms": _spread(gaps),
            "step_ms": _spread(steps),
            "acting": float(np.mean(list(self._acts))) if self._acts else None,
            "answer_ms": _spread(np.array(answers)),
            "delay_steps": context.loop.delay_steps,
            "answers": report.answers,
            "unused": report.unused,
            "errors": report.errors,
            "last_error": report.last_error,
            "last_error_s": (now_ns - report.last_error_ns) / 1e9 if report.last_error else None,
            "warnings": self._warnings(now_ns),
            "outcomes": dict(self._outcomes),
            "reasons": dict(self._reasons),
            "holds": self._holds,
            "last_hold": self._last_hold,
            "interventions": self._interventions,
            "since_intervention_s": (now_ns - self._last_intervention_ns) / 1e9 if self._interventions else None,
            "instruction": context.observations.instruction,
            "policy": report.policy or context.metadata["policy"],
            "detector": self._detector(),
            "recording": None if self._recording is None else self._recording.status(),
            "buttons": self._inputs.buttons.report,
            "flows": {
                name: {"rate_hz": flow.rate_hz(now_ns), "age_ms": flow.age_ms, "problem": flow.problem}
                for name, flow in self._inputs.flows.items()
            },
        }

    def _warnings(self, now_ns: int) -> list[str]:
        """What is wrong beside the watchdog's faults: the policy's answers, what is published to the bridge."""
        inference, loop = self._context.inference, self._context.loop
        asked = inference.report.answers or inference.report.errors
        policy = (policy_problem(inference.report, loop, now_ns) or inference.report.last_error) if asked else ""
        unknown = unknown_task(self._context.observations.instruction, inference.metadata)
        asks = self._context.alarm.asks
        mine = [asks, self._inputs.instruction_problem, unknown, self._inputs.twist_problem]
        return [*([f"policy: {policy}"] if policy else []), *filter(None, mine), *self._idle(), *self._unrecorded()]

    def _detector(self) -> dict[str, Any] | None:
        """The server's failure detector, and the decisions of this or the last episode at which it raised an alarm."""
        name = self._context.inference.metadata.get("detector")
        return {"name": name, "alarms": self._context.alarm.alarms} if name else None

    def _idle(self) -> list[str]:
        """Why an arm that runs stands still."""
        if self._context.loop.state is not ArmState.RUNNING:
            return []
        acts, taken, found = list(self._acts), list(self._taken), list[str]()
        if len(acts) >= _FEWEST and (share := float(np.mean(acts))) < USUAL:
            found.append(f"{share:.0%} of the last {len(acts)} control steps had an action")
        if len(taken) == _TICKS and (share := float(np.mean(taken))) < USUAL:
            found.append(f"{share:.0%} of the last {_TICKS} ticks could do what the policy asked for: see the reasons")
        return found

    def _unrecorded(self) -> list[str]:
        """What the recording lacks."""
        recording = {} if self._recording is None else self._recording.status()
        lost = f"the recording lacks {recording['dropped']} events" if recording.get("dropped") else ""
        return (
            [f"the recording is not complete: {recording['problem']}"]
            if recording.get("problem")
            else [lost]
            if lost
            else []
        )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, StateChanged):
            transition = event.transition
            words = {
                "state": str(transition.after),
                "event": str(transition.event),
                "accepted": transition.accepted,
                "reason": transition.reason,
            }
            self._states.publish(self._text(data=json.dumps(words)))
            if transition.accepted:
                self._acts.clear()
                self._taken.clear()
        elif isinstance(event, Intervened) and event.began:
            self._interventions, self._last_intervention_ns = event.number, event.time_ns
        elif isinstance(event, AlarmRaised):
            words = f"decision {event.decision} of episode {event.episode} raised an alarm of the failure detector"
            self._log.warning(f"{words} ({event.kind} {event.index:.1f}, at most {event.limit:.1f})")
        elif isinstance(event, ActionTaken):
            self._steps.append(event.time_ns)
            self._acts.append(event.action is not None)

    def _publish_status(self) -> None:
        self._statuses.publish(self._text(data=json.dumps(self.status())))

    def _publish_diagnostics(self) -> None:
        status = self.status()
        stopped = status["state"] == str(ArmState.ESTOPPED)
        problems = [*status["faults"], *status["warnings"]]
        level = self._status.ERROR if stopped else self._status.WARN if problems else self._status.OK
        words = "; ".join(problems) or status["state"]
        pairs = [self._pair(key=key, value=str(value)) for key, value in status.items()]
        status = self._status(level=level, name="embodied_rl bridge", message=words, values=pairs)
        message = self._array(status=[status])
        set_time(message.header.stamp, self._context.clock.ros_ns())
        self._diagnostics.publish(message)


def _spread(values: np.ndarray) -> dict[str, float] | None:
    """Median, 99th percentile and largest; None without values."""
    if not len(values):
        return None
    return {"p50": float(np.median(values)), "p99": float(np.quantile(values, 0.99)), "max": float(values.max())}
