"""The emergency stop's buttons: one bit for each publisher, and which of them has fallen silent or is gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

NANOSECONDS = 1_000_000_000
LEAST_AGE_NS = 500_000_000
"""A button that repeats may be silent for so long, or for `PERIODS` of its periods where that is longer."""
PERIODS = 3
_REPEATS, _LONGEST_NS = 3, 2 * NANOSECONDS
"""So many repetitions, each after so long at most, make a button one that repeats."""


@dataclass
class Button:
    """One publisher's button, as it was heard last."""

    key: bytes
    name: str
    pressed: bool
    heard_ns: int
    number: int | None
    gaps_ns: deque[int] = field(default_factory=lambda: deque[int](maxlen=8))
    """Between the last messages that changed nothing."""
    first_ns: int = 0
    """When it was heard first."""
    gone_ns: int | None = None
    """Since when its publisher is gone; None while it is there."""

    @property
    def repeats(self) -> bool:
        """Whether it says where it is all the time, not only when it moves."""
        return len(self.gaps_ns) >= _REPEATS

    @property
    def most_age_ns(self) -> int:
        """How long it may be silent, where it repeats."""
        return max(LEAST_AGE_NS, PERIODS * max(self.gaps_ns, default=0))

    @property
    def rate_hz(self) -> float:
        """How often it repeats; 0 where it does not."""
        return len(self.gaps_ns) * NANOSECONDS / max(1, sum(self.gaps_ns)) if self.repeats else 0.0


class Buttons:
    """All buttons that were heard.

    One that is pressed stays so until the same publisher says otherwise, or, where that is gone, one in its place that
    is let out: of the same name and heard first after its last word, or of any name and heard first after it had gone.

    Example:
        >>> buttons = Buttons()
        >>> buttons.heard("a", "cell_button", True, now_ns)
        True
        >>> buttons.pressed
        ('cell_button',)
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Button] = {}

    @property
    def pressed(self) -> tuple[str, ...]:
        """Names of those that are pressed."""
        return tuple(button.name for button in self._all if button.pressed)

    @property
    def present(self) -> tuple[Button, ...]:
        """Those that are not gone."""
        return tuple(button for button in self._all if button.gone_ns is None)

    @property
    def gone(self) -> tuple[Button, ...]:
        """Those whose publishers are gone."""
        return tuple(button for button in self._all if button.gone_ns is not None)

    @property
    def _all(self) -> tuple[Button, ...]:
        """A copy: threads look while another one hears of a new button."""
        return tuple(self._known.values())

    def heard(self, key: bytes, name: str, pressed: bool, now_ns: int, number: int | None = None) -> bool:
        """Note what a publisher says of its button.

        Args:
            key: Tells publishers apart.
            name: Of its node, for people.
            pressed: Whether the button is pressed.
            now_ns: When the message came.
            number: Of the publisher's messages, where it is known: a message that was heard already, or comes after a
                newer one, is left out.

        Returns:
            Whether it moved; one that is new was let out before.
        """
        button = self._known.get(key)
        if button is None:
            self._known[key] = Button(key, name, pressed, now_ns, number, first_ns=now_ns)
            self._replace()
            return pressed
        if number is not None and button.number is not None and number <= button.number:
            return False
        changed, gap_ns = pressed != button.pressed, now_ns - button.heard_ns
        if button.repeats:  # also after it moved; a silence that was a fault allows no other one like it
            button.gaps_ns.append(min(gap_ns, button.most_age_ns, _LONGEST_NS))
        elif changed or gap_ns > _LONGEST_NS:
            button.gaps_ns.clear()
        else:
            button.gaps_ns.append(gap_ns)
        button.name, button.pressed, button.heard_ns, button.number = name, pressed, now_ns, number
        button.gone_ns = None
        self._replace()
        return changed

    def publish(self, publishers: Mapping[bytes, str], now_ns: int) -> None:
        """Note who publishes at `now_ns`, node names by key: whoever is missing is gone."""
        for button in self._all:
            button.name = publishers.get(button.key, button.name)
            if button.key in publishers:
                button.gone_ns = None
            elif button.gone_ns is None:
                button.gone_ns = now_ns
        self._replace()

    def problem(self, now_ns: int) -> str:
        """Which button that repeats is silent; '' where none is."""
        silent = []
        for button in self._all:
            age_ns = now_ns - button.heard_ns
            if button.repeats and age_ns > button.most_age_ns:
                ages = f"{age_ns / NANOSECONDS:.3f} s, at most {button.most_age_ns / NANOSECONDS:.3f}"
                silent.append(f"{button.name} repeats and is silent for {ages}")
        return ", ".join(silent)

    def _replace(self) -> None:
        """Forget those that are gone and have a successor: its first word may come before it is known that they are."""
        free = [button for button in self.present if not button.pressed]
        for gone in self.gone:
            assert gone.gone_ns is not None
            if any(one.first_ns > (gone.heard_ns if one.name == gone.name else gone.gone_ns) for one in free):
                del self._known[gone.key]
