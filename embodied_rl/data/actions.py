"""Whether a data set's actions are in LIBERO's units: numbers from -1 to 1, the last the gripper's, 1 closed."""

from __future__ import annotations

from typing import Literal

import numpy as np

from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.types import Array

Gripper = Literal["auto", "signed", "one_opens", "one_closes", "none"]
MOST_BEYOND = 0.01
"""Share of a dimension's numbers that may lie beyond -1 to 1; they are cut off there."""
_ROUNDING = 1e-3
_ARM_AND_GRIPPER = 7
"""Numbers of an action of LIBERO's: three of motion, three of rotation, the gripper's."""


def share_beyond(action: Array) -> Array:
    """Share of the numbers beyond -1 to 1 in each dimension of `action` [F,A]: float64 [A]."""
    return (np.abs(action) > 1 + _ROUNDING).mean(axis=0)


def fit_actions(data: Demonstrations, gripper: Gripper) -> list[str]:
    """Bring the gripper of `data` to the simulator's -1 open, 1 closed, in place; check every dimension.

    Actions in the robot's own units stay as they are, and `data` says so afterwards.

    Args:
        data: what is to be learned; its actions may be changed.
        gripper: how the last dimension is meant. signed: -1 opens, 1 closes. one_opens: 0 closes, 1 opens. one_closes:
            0 opens, 1 closes. none: all dimensions are in the robot's own units, such as joint angles. auto: as
            `collect` says; else signed, where some number is below 0.

    Returns:
        What is to be said, a line each: what the last dimension was taken for where nothing says it, what is cut off.

    Raises:
        UserError: the actions are in other units.
    """
    if gripper == "auto" and "own_units" in data.source:  # `collect` says what its actions are
        gripper = "none" if data.source["own_units"] else "signed"
    if gripper == "none":
        data.own_units = True
        return []
    last, count = data.action[:, -1], data.action.shape[1]
    if gripper == "auto" and count != _ARM_AND_GRIPPER and not data.source:
        raise UserError(
            f"{data.root} has actions of {count} numbers and does not say what they are: --gripper none where they are "
            "the robot's own, such as joint angles; else the last is a gripper's: --gripper signed, one_opens or "
            "one_closes"
        )
    zero_one = last.min() >= 0 and last.max() <= 1 + _ROUNDING
    if gripper == "auto" and zero_one and last.min() < 1:
        raise UserError(
            f"{data.root}: the last action, the gripper's, goes from {last.min():g} to {last.max():g}, the simulator's "
            "from -1 (open) to 1 (closed): say what 1 means with --gripper one_opens or one_closes (signed: as it is)"
        )
    if gripper in ("one_opens", "one_closes"):
        if not zero_one:
            raise UserError(
                f"--gripper {gripper} is for numbers from 0 to 1, {data.root} has {last.min():g} to {last.max():g}"
            )
        data.action[:, -1] = 1 - 2 * last if gripper == "one_opens" else 2 * last - 1
    share = share_beyond(data.action)
    worst = int(share.argmax())
    if share[worst] > MOST_BEYOND:
        low, high = data.action[:, worst].min(), data.action[:, worst].max()
        raise UserError(
            f"{data.root}: {share[worst]:.0%} of action {worst} lies beyond -1 to 1 ({low:.3g} to {high:.3g}), where "
            "LIBERO's actions do not go: --gripper none where they are the robot's own, such as joint angles; else "
            "convert the data set first"
        )
    lines = []
    if gripper == "auto" and not data.source:
        lines.append(
            f"{count} actions in [-1, 1], the last the gripper's, -1 open and 1 closed: --gripper none if it is a joint"
        )
    if share.any():
        lines.append(f"{share.max():.2%} of action {worst} lies beyond -1 to 1 and is cut off there")
    return lines
