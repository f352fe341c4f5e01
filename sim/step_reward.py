"""What a control step pays in simulators that have a reward of their own: theirs, its progress, or success alone."""

from __future__ import annotations

from typing import Literal

from embodied_rl.errors import UserError

RewardMode = Literal["auto", "progress", "native", "success"]
"""What an episode is paid.

progress: 1 for success, and how much a potential grew: the simulator's own reward over its scale, 0 at the reset and
where the task ends. Over an episode that ends the growth sums to 0, discounted (Ng et al. 1999, "Policy invariance
under reward transformations"): what is best, and which of two episodes is better, is as of `success`. An episode that
runs out of time keeps the potential that it reached, for a learner that goes on from its last state's value.
native: the simulator's own reward; success is reported and does not end the episode, as an early end would cost the
rewards of the remaining steps.
success: 1 for success, else 0.
auto: progress where the task has a success, native where it has none.
"""


def choose_reward(
    wanted: RewardMode, has_success: bool, task: str, *, has_reward: bool = True
) -> Literal["progress", "native", "success"]:
    """`wanted` with 'auto' filled in.

    Args:
        wanted: what was asked for.
        has_success: whether the task says when it is done.
        task: its name.
        has_reward: whether its simulator pays anything itself.

    Raises:
        UserError: `task` has nothing of what is to be paid for.
    """
    if not has_success and not has_reward:
        raise UserError(f"{task} has neither a reward nor a success: there is nothing to learn, take another task.")
    if wanted == "auto":
        return "progress" if has_success else "native"
    if wanted != "native" and not has_success:
        raise UserError(f"reward '{wanted}' needs a success, and {task} has none: use the reward 'native'.")
    if wanted == "native" and not has_reward:
        raise UserError(f"reward 'native' of {task} is 0 in every step, its simulator has none: use 'success'.")
    return wanted


class StepReward:
    """The reward of one episode, step by step.

    Args:
        mode: how steps are paid.
        scale: what the simulator's own reward is divided by in mode 'progress', its largest value in a step.
        gamma: the learner's discount of a decision, in mode 'progress'. A chunk is discounted once, at its last step.

    Example:
        >>> reward = StepReward("progress", scale=10.0, gamma=0.5)
        >>> reward.begin_chunk(2)
        >>> [reward.pay(native, success=False, ended=False, late=False) for native in (2.5, 7.5)]
        [0.25, 0.125]
        >>> reward.begin_chunk(2)
        >>> reward.pay(10.0, success=True, ended=True, late=False)
        0.25
    """

    def __init__(self, mode: Literal["progress", "native", "success"], scale: float = 1.0, gamma: float = 1.0) -> None:
        self.mode, self.scale, self.gamma = mode, scale, gamma
        self.reset()

    def reset(self) -> None:
        """An episode begins."""
        self._potential, self._steps_left = 0.0, 0

    def begin_chunk(self, steps: int) -> None:
        """A decision of up to so many steps begins; fewer are run only where the episode is over."""
        self._steps_left = steps

    def pay(self, native: float, success: bool, *, ended: bool, late: bool) -> float:
        """The reward of a step.

        Args:
            native: what the simulator itself pays.
            ended: the task ended with this step.
            late: the episode ran out of time with it.
        """
        self._steps_left -= 1
        if self.mode == "native":
            return native
        bonus = float(success)
        if self.mode == "success":
            return bonus
        before, self._potential = self._potential, 0.0 if ended else native / self.scale
        return (1.0 if self._steps_left and not late else self.gamma) * self._potential - before + bonus
