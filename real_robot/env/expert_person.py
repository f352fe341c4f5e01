"""An arm's episodes of which a person, the twin's scripted expert, takes some over and ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from embodied_rl.real_robot.core.states import ArmState
from embodied_rl.real_robot.deploy.remote import TwinRemote
from embodied_rl.real_robot.env.arm import ArmFailedError, ArmStep, ArmView
from embodied_rl.real_robot.env.bridge import BridgeArm
from embodied_rl.types import Array, EpisodeSpec

_LOOK_S = 0.02
_REST_S, _TAKEN_S = 0.4, 5.0
"""How long the arm stands before the person takes it, and how long the person may take to do so; the twin's time."""


class ExpertPerson:
    """A `LiveArm` that runs another one; from some control step on the person has it, until the episode is over.

    What the person does comes over the takeover topics, as that of a person at a real arm.

    Args:
        arm: The twin's.
        twin: Told when the person acts.
        first_step: Of an episode, the control step that is the person's first, counted from 0; None: none is.
        patience: Control steps after which the person gives up and lets go, by task.

    Example:
        >>> arm = ExpertPerson(arm, remote, TakeoverRule("late", after=80).first_step, {"tabletop_goal/x": 150})
        >>> env = LiveVecEnv([arm], info)
    """

    def __init__(
        self,
        arm: BridgeArm,
        twin: TwinRemote,
        first_step: Callable[[EpisodeSpec], int | None],
        patience: dict[str, int],
    ) -> None:
        self._arm, self._twin = arm, twin
        self._first_step, self._patience = first_step, patience
        self._first: int | None = None
        self._steps, self._left = 0, 0

    def begin(self, episode: EpisodeSpec) -> str:
        """See `LiveArm.begin`."""
        self._first, self._steps, self._left = self._first_step(episode), 0, self._patience[episode.task]
        return self._arm.begin(episode)

    def see(self) -> ArmView:
        """See `LiveArm.see`."""
        return self._arm.see()

    def glance(self) -> ArmView:
        """See `LiveArm.glance`."""
        return self._arm.glance()

    def act(self, action: Array) -> ArmStep | None:
        """See `LiveArm.act`; what the policy asks for is not done where the person takes the arm first."""
        if self._steps == self._first:
            self._take()
            return None
        step = self._arm.act(action)
        self._steps += step is not None
        return step

    def follow(self) -> ArmStep | None:
        """See `LiveArm.follow`."""
        self._left -= 1
        if self._left == 0:
            self._twin.take_over(False)
            self._arm.bridge.release()
        return self._arm.follow()

    def resume(self) -> bool:
        """See `LiveArm.resume`; a person who gave up has ended the episode."""
        return False

    def judge(self) -> bool:
        """See `LiveArm.judge`."""
        return self._arm.judge()

    def end(self, success: bool | None) -> None:
        """See `LiveArm.end`."""
        self._arm.end(success)
        self._twin.take_over(False)

    def close(self) -> None:
        """See `LiveArm.close`."""
        self._arm.close()

    def _take(self) -> None:
        """Have the person take the arm once it rests."""
        loop, clock = self._arm.bridge.loop, self._arm.bridge.context.clock
        clock.sleep_until(clock.now_ns() + round(_REST_S * 1e9))
        until_ns = clock.now_ns() + round(_TAKEN_S * 1e9)
        self._twin.take_over()
        while loop.state is not ArmState.HUMAN:
            if clock.now_ns() > until_ns or loop.state is not ArmState.RUNNING:
                self._twin.take_over(False)
                raise ArmFailedError(f"the person did not take the arm, which is {loop.state}")
            threading.Event().wait(_LOOK_S)
