"""Sites that are drawn only while a joint is in a range: a stove's burner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.task import Indicator, JointRange
from embodied_rl.types import Array

FIRST_GROUP = 3
"""Indicator i's site is drawn with site group FIRST_GROUP + i; sites of other groups are never drawn."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One indicator's rule in the terms of a physics model: qpos addresses int64 [J], and the range."""

    addresses: Array
    when: JointRange

    def on(self, qpos: Array) -> bool:
        """Whether the site is drawn at these joint positions, float64 [nq]."""
        values, bound = qpos[self.addresses], self.when.threshold
        above, below = values > bound, values < bound
        holds = (above if self.when.above else below) | ((values == bound) & self.when.inclusive)
        return bool(holds.all() if self.when.need_all else holds.any())


def compile_switches(indicators: Sequence[Indicator], model: mujoco.MjModel) -> tuple[Switch, ...]:
    """Look up the joints. UserError for more indicators than there are site groups to draw them with."""
    if len(indicators) > mujoco.mjNGROUP - FIRST_GROUP:
        raise UserError(f"a task has {len(indicators)} indicators; {mujoco.mjNGROUP - FIRST_GROUP} can be drawn")
    return tuple(
        Switch(np.array([int(model.joint(name).qposadr[0]) for name in each.when.joints], np.int64), each.when)
        for each in indicators
    )


def lit_groups(switches: Sequence[Switch], qpos: Array) -> tuple[int, ...]:
    """The site groups to draw."""
    return tuple(FIRST_GROUP + i for i, switch in enumerate(switches) if switch.on(qpos))
