"""Whether a policy's answers come in time for an arm that moves: asked by the executor and before the arm is armed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

USUAL = 0.8
"""Share of answers that come no later than the delay that is expected: one slow one changes nothing."""
JUDGED, FEWEST = 40, 3
"""Answers by which is judged whether they come in time, at most and at least."""


def steps_in_time(observed: int, begins: int, chunk_len: int) -> range:
    """The control steps in which a chunk has an action on an arm that moves; none where all are past.

    The executor and the check before arming both ask this.

    Args:
        observed: The step of its observation.
        begins: The first step that has not begun when it comes.
        chunk_len: Its actions, K.
    """
    return range(begins, max(observed + chunk_len, begins))


@dataclass(frozen=True)
class Pace:
    """Whether an arm that moves is given an action in each control step, by the last answers.

    Args:
        answers: How many; the first after the start is not among them.
        used: Those that such an arm would use.
        steps: Control steps from the first of them to the last.
        reached: Steps in which one of them has an action.
        reason: Why the last unused one was not used.
    """

    answers: int
    used: int
    steps: int
    reached: int
    reason: str

    @classmethod
    def of(cls, answers: Sequence[tuple[range, str]]) -> Pace:
        """By the steps that each answer reaches (`steps_in_time`), and why it cannot be used, '' where it can."""
        reasons = [reason for _, reason in answers if reason]
        starts = [steps.start for steps, _ in answers] or [0]
        first, last = min(starts), max(starts)
        reached = {step for steps, reason in answers if not reason for step in steps if step < last}
        used = len(answers) - len(reasons)
        return cls(len(answers), used, last - first, len(reached), reasons[-1] if reasons else "")

    @property
    def share(self) -> float:
        """Of the steps that have an action, 0 to 1; 0 before there are any."""
        return self.reached / self.steps if self.steps else 0.0

    @property
    def problem(self) -> str:
        """Why an arm that moves would come to rest again and again; '' where it would not."""
        if self.answers < FEWEST:
            return "it has not answered often enough yet"
        if self.used < USUAL * self.answers:
            return f"{self.answers - self.used} of {self.answers} answers cannot be used: {self.reason}"
        if self.share < USUAL:
            return f"{self.share:.0%} of the control steps have an action: ask more often (--horizon, --requests)"
        return ""
