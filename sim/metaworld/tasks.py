"""MetaWorld's tasks: names, instructions, initial states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.rng import FixedSeed, philox
from embodied_rl.sim.task import SEEDED_HELDOUT, SEEDED_TRAIN, TaskSpec
from embodied_rl.utils.suites import as_names

SUITE = "metaworld"
HORIZON, CONTROL_HZ = 500, 80.0
INSTRUCTIONS = {
    "assembly-v3": "put the ring over the peg",
    "basketball-v3": "drop the ball into the hoop",
    "bin-picking-v3": "move the puck to the other bin",
    "box-close-v3": "put the lid on the box",
    "button-press-topdown-v3": "press the button down",
    "button-press-topdown-wall-v3": "press the button down behind the wall",
    "button-press-v3": "press the button in",
    "button-press-wall-v3": "press the button in behind the wall",
    "coffee-button-v3": "press the button of the coffee machine",
    "coffee-pull-v3": "pull the mug away from the coffee machine",
    "coffee-push-v3": "push the mug under the coffee machine",
    "dial-turn-v3": "turn the dial",
    "disassemble-v3": "take the ring off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door",
    "drawer-close-v3": "close the drawer",
    "drawer-open-v3": "open the drawer",
    "faucet-close-v3": "turn the faucet off",
    "faucet-open-v3": "turn the faucet on",
    "hammer-v3": "drive the nail in with the hammer",
    "hand-insert-v3": "put the hand into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up",
    "peg-insert-side-v3": "put the peg into the hole from the side",
    "peg-unplug-side-v3": "pull the peg out to the side",
    "pick-out-of-hole-v3": "lift the puck out of the hole",
    "pick-place-v3": "lift the puck to the goal",
    "pick-place-wall-v3": "lift the puck over the wall to the goal",
    "plate-slide-back-side-v3": "slide the plate out of the net to the side",
    "plate-slide-back-v3": "slide the plate out of the net",
    "plate-slide-side-v3": "slide the plate into the net from the side",
    "plate-slide-v3": "slide the plate into the net",
    "push-back-v3": "push the block back to the goal",
    "push-v3": "push the puck to the goal",
    "push-wall-v3": "push the puck around the wall to the goal",
    "reach-v3": "move the hand to the goal",
    "reach-wall-v3": "move the hand to the goal behind the wall",
    "shelf-place-v3": "put the block on the shelf",
    "soccer-v3": "push the ball into the net",
    "stick-pull-v3": "pull the jug with the stick",
    "stick-push-v3": "push the jug with the stick",
    "sweep-into-v3": "sweep the puck into the hole",
    "sweep-v3": "sweep the block off the table",
    "window-close-v3": "close the window",
    "window-open-v3": "open the window",
}
"""What policies are told, in this project's words."""
_DRAWN = 10_100


@dataclass(frozen=True, kw_only=True)
class MetaWorldTask(TaskSpec):
    """A task of MetaWorld; `init_states` are seeds of where the object and the goal are, int32 [S].

    Example:
        >>> load_tasks(["reach-v3"])[0].instruction
        'move the hand to the goal'
    """

    env_id: str


def load_tasks(names: str | Sequence[str]) -> list[MetaWorldTask]:
    """The tasks with these names, all 50 without names; UserError for one that there is not."""
    names = as_names(names)
    for name in names:
        if name not in INSTRUCTIONS:
            raise UserError(f"suite '{SUITE}' has no task '{name}'.{suggest(name, INSTRUCTIONS)}")
    return [_task(name) for name in names or INSTRUCTIONS]


def _task(name: str) -> MetaWorldTask:
    return MetaWorldTask(
        name=f"{SUITE}/{name}",
        suite=SUITE,
        instruction=INSTRUCTIONS[name],
        max_episode_steps=HORIZON,
        init_states=seeds(),
        train_states=SEEDED_TRAIN,
        heldout_states=SEEDED_HELDOUT,
        env_id=name,
    )


@cache
def seeds() -> np.ndarray[Any, np.dtype[np.int32]]:
    """The seed of every initial state, int32 [S], all different."""
    drawn = philox(FixedSeed.METAWORLD_STATES).choice(2**31 - 1, _DRAWN, replace=False)  # another count draws others
    return drawn[: SEEDED_HELDOUT.stop].astype(np.int32)
