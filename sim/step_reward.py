"""What a control step pays in simulators that have a reward of their own: theirs, its progress, or success alone."""

from __future__ import annotations

from typing import Literal

from embodied_rl.errors import UserError

RewardMode = Literal["auto", "progress", "native", "success"]
"""What an episode is paid.

progress: how much the simulator's own reward grew in this step, over its scale, and 1 for success. The growth is a
potential (Ng et al. 1999, "Policy invariance under reward transformations"): the best behaviour is that of `success`.
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

    Example:
        >>> reward = StepReward("progress", scale=10.0)
        >>> [reward.pay(native, success) for native, success in ((2.0, False), (5.0, False), (10.0, True))]
        [0.0, 0.3, 1.5]
    """

    def __init__(self, mode: Literal["progress", "native", "success"], scale: float = 1.0) -> None:
        self.mode, self.scale = mode, scale
        self._last: float | None = None

    def reset(self) -> None:
        """An episode begins; its first step is the mark from which progress counts."""
        self._last = None

    def pay(self, native: float, success: bool) -> float:
        """The reward of a step that the simulator itself pays with `native`."""
        if self.mode == "native":
            return native
        bonus = float(success)
        if self.mode == "success":
            return bonus
        growth = 0.0 if self._last is None else (native - self._last) / self.scale
        self._last = native
        return growth + bonus
