"""The order in which the policy acts for env groups, and in which they commit what came of it."""

from __future__ import annotations

from collections import deque

from embodied_rl.scheduler.pipeline.env_group import EnvGroup, EnvGroupView

Turn = EnvGroup | EnvGroupView
"""Act for an env group, or value the last observations of truncated episodes."""


class Turns:
    """Env groups that line up for the policy, and those that workers step. Not thread-safe.

    in_turn: the policy acts for half of the `count` env groups at a time (one of two or three), in the order in which
    they lined up, and they commit in the order in which it acted for them. So timing decides nothing. Otherwise it acts
    for all that are ready.
    """

    def __init__(self, count: int, *, in_turn: bool) -> None:
        self._half = max(1, count // 2)
        self._in_turn = in_turn
        self._waiting: deque[Turn] = deque()
        self._stepping: deque[EnvGroup] = deque()

    @property
    def busy(self) -> bool:
        """Whether any env group is not parked, or something is to be valued."""
        return bool(self._waiting or self._stepping)

    def line_up(self, turn: Turn) -> None:
        """Wait for the policy. An env group may do so before it is rendered."""
        self._waiting.append(turn)

    def ready(self) -> list[Turn]:
        """What the policy may do now."""
        finals = [turn for turn in self._waiting if isinstance(turn, EnvGroupView)]
        groups = [turn for turn in self._waiting if isinstance(turn, EnvGroup)]
        if not self._in_turn:
            return [*finals, *(group for group in groups if group.view is not None)]
        # One alone: which others are ready depends on timing, and rows that are valued together round together.
        if finals:
            return [finals[0]]
        head = groups[: self._half]
        # Fewer than half only if no other group can still line up.
        complete = len(head) == self._half or not self._stepping
        return [*head] if complete and all(group.view is not None for group in head) else []

    def take(self) -> list[Turn]:
        """Begin what is ready; its env groups are then with the workers."""
        turns = self.ready()
        for turn in turns:
            self._waiting.remove(turn)
        self._stepping += [turn for turn in turns if isinstance(turn, EnvGroup)]
        return turns

    def may_commit(self, env_group: EnvGroup) -> bool:
        """Whether it is this group's turn to commit."""
        return not self._in_turn or self._stepping[0] is env_group

    def commit(self, env_group: EnvGroup) -> None:
        """The group leaves the workers."""
        self._stepping.remove(env_group)
