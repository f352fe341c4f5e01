"""Whether what the policy answers would move the arm: asked before it is armed, and said while it runs. No ROS."""

from __future__ import annotations

from embodied_rl.real_robot.ros2.inference_client import InferenceReport
from embodied_rl.real_robot.ros2.loop import ControlLoop

_SILENCES = 3
"""So many in a few seconds are no hiccup: the arm would hold again and again."""
_GONE_S = 1.0


def policy_problem(report: InferenceReport, loop: ControlLoop, now_ns: int) -> str:
    """Why the policy would not keep the arm moving; '' where it would.

    Judged by the answers of the last seconds, as the executor and the watchdog judge them, whatever the arm does.

    Args:
        report: Of who asks.
        loop: What became of the answers.
        now_ns: The time.
    """
    if report.refused:
        return report.refused
    why = f": {report.last_error}" if report.last_error else ""
    silent_s = loop.policy_silent_s(now_ns)
    if silent_s is None:
        return f"no answer of it could be used yet{why}"
    if silent_s > max(_GONE_S, loop.robot.watchdog.policy_silence_s):
        return f"it has been silent for {silent_s:.0f} s{why}"
    problem = loop.pace.problem or _silences(loop, now_ns)
    return problem + why if problem and report.last_error not in problem else problem


def _silences(loop: ControlLoop, now_ns: int) -> str:
    count, most = loop.silences(now_ns), loop.robot.watchdog.policy_silence_s
    if count < _SILENCES:
        return ""
    advice = "ask with more --requests, or raise watchdog.policy_silence_s"
    return f"{count} times in 4 s no answer could be used for {most:g} s, and an arm that runs holds then: {advice}"
