"""A person at a real arm that trains: keys that stop it at any moment, set scenes up and say how episodes ended."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.states import Event
from embodied_rl.real_robot.deploy.dashboard import checklist
from embodied_rl.real_robot.deploy.keys import CONFIRM, Keys
from embodied_rl.real_robot.env.arm import ArmStoppedError
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.preflight import LIMITS, POLICY, STOP
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.signals import stop_asked

_LOOK_S = 0.1
_SETTLED_S = 2.0
"""After so long rates and ages of the topics are known."""
_READY, _SKIP = "s", "k"
_HELP = "[space] emergency stop  [x] reset it  [l] take the arm back from a person  [y] it succeeded  [q] stop training"


class ArmOperator:
    """Who resets a real arm's scene and judges its episodes, by single keys: an `ArmScene`.

    The space bar is the emergency stop while `watching`, whatever is asked or trained. A success may be said while the
    arm moves, which ends the episode; at the horizon it is asked.

    Args:
        instructions: What each task asks of the policy, by task.
        keys: Of the terminal.
        console: Where a person is told what to do.

    Example:
        >>> operator = ArmOperator({"arm/open the drawer": "open the drawer"}, Keys(), console)
        >>> arm = BridgeArm(session, options, operator)
        >>> with operator.watching(arm.bridge):
        ...     operator.confirm()
    """

    def __init__(self, instructions: Mapping[str, str], keys: Keys, console: Console) -> None:
        self._instructions, self._keys, self._console = instructions, keys, console
        self._pressed = queue.SimpleQueue[str]()
        self._bridge: Bridge
        """Set by `watching`."""
        self._stopping = threading.Event()

    @contextmanager
    def watching(self, bridge: Bridge) -> Iterator[None]:
        """Read the keys of the `with` block."""
        self._bridge = bridge
        thread = threading.Thread(target=self._watch, name="keys", daemon=True)
        with self._keys:
            thread.start()
            try:
                yield
            finally:
                self._stopping.set()
                thread.join(timeout=2.0)

    def confirm(self) -> None:
        """Show what is checked before the arm is armed, and wait until a person has read the limits that hold.

        Raises:
            UserError: A check failed; its button alone may still be missing.
            ArmStoppedError: The run is to end.
        """
        self._stopping.wait(_SETTLED_S)
        checks = [check for check in self._bridge.preflight() if check.name != POLICY]  # it is asked in this process
        self._console.print(checklist(checks))
        if not all(check.passed for check in checks if check.name != STOP):
            raise UserError("not armed: mend what is marked, and start again.")
        self._ask(f"read the {LIMITS}, above: [{CONFIRM}] confirms them. {_HELP}", CONFIRM)

    def reset(self, episode: EpisodeSpec) -> str:
        """See `ArmScene.reset`; waits until a person has set the scene up."""
        words = self._instructions[episode.task]
        where = f"set up initial state {episode.init_state}, keep clear"
        if self._ask(f"{words}: {where}, then [{_READY}]; [{_SKIP}] leaves it out for now", _READY + _SKIP) == _SKIP:
            raise ArmStoppedError("left out for now by a person")
        return words

    def succeeded(self) -> bool:
        """See `ArmScene.succeeded`: whether a person has said so by now."""
        return "y" in self._drained()

    def judge(self) -> bool:
        """See `ArmScene.judge`."""
        return self._ask("did it succeed? [y] [n]", "yn") == "y"

    def _ask(self, words: str, allowed: str) -> str:
        """The first of the `allowed` keys that is pressed from now on; ArmStoppedError where the run is to end."""
        self._drained()
        self._console.print(words, soft_wrap=True, markup=False, highlight=False)
        while not stop_asked():
            try:
                key = self._pressed.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._bridge.error is not None:
                    raise self._bridge.error from None
                continue
            if key in allowed:
                return key
        raise ArmStoppedError("the run was asked to stop")

    def _drained(self) -> str:
        """The keys that were pressed and not read yet."""
        found = ""
        while True:
            try:
                found += self._pressed.get_nowait()
            except queue.Empty:
                return found

    def _watch(self) -> None:
        while not self._stopping.is_set():
            key = self._keys.read(_LOOK_S)
            if key == " ":
                self._done("emergency stop", self._bridge.fire(Event.ESTOP))
            elif key == "x":
                self._done("reset", self._bridge.fire(Event.RESET))
            elif key == "l":
                self._done("release", self._bridge.release())
            elif key == "q":
                os.kill(os.getpid(), signal.SIGINT)
            elif key:
                self._pressed.put(key)

    def _done(self, what: str, refused: str) -> None:
        self._console.print(f"{what}: {refused or 'done'}", soft_wrap=True, markup=False, highlight=False)
