"""Which initial states are trained on and which are evaluated, and how much the two overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.types import EpisodeSpec

OFFICIAL_STATES = 50
"""Initial states of a LIBERO task that the official evaluation runs."""
DEFAULT_HELDOUT = 25
TRAINED_STATES = "train_states"
"""Key of a checkpoint's provenance: {task: [initial states]}, all that any stage of its training drew from."""


@dataclass(frozen=True, slots=True)
class StateSplit:
    """Rows of a task's initial states; no row is in both."""

    train: range
    heldout: range


def split_states(count: int = OFFICIAL_STATES, heldout: int = DEFAULT_HELDOUT) -> StateSplit:
    """Split `count` initial states: the last `heldout` are held out, the ones before are for training.

    Half and half by default: with 10 tasks that leaves 250 held-out episodes, whose interval at 90 % success is plus or
    minus 4 points; with 10 states a task it would be 6. LIBERO's states are independent draws, so their order does not
    matter, and the same rows are held out everywhere. UserError unless both parts get at least one state.
    """
    if not 1 <= heldout < count:
        raise UserError(f"of {count} initial states, 1 to {count - 1} can be held out, got {heldout}.")
    return StateSplit(range(count - heldout), range(count - heldout, count))


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many of the evaluated episodes start where the policy was trained.

    seen: task -> its initial states that are both trained on and evaluated; None when the checkpoint does not say what
    it was trained on. episodes: all that are evaluated; shared: those of them that start from a seen state.
    """

    seen: dict[str, list[int]] | None
    shared: int
    episodes: int

    def sentence(self) -> str:
        """For a report."""
        if self.seen is None:
            return "unknown: the checkpoint does not record the initial states that it was trained on"
        if not self.shared:
            return f"none: no evaluated episode ({self.episodes}) starts from a state that was trained on"
        return f"{self.shared} of {self.episodes} episodes start from a state that was trained on"

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return asdict(self)


def overlap(trained: Mapping[str, Sequence[int]] | None, specs: Sequence[EpisodeSpec]) -> Overlap:
    """Compare what a checkpoint was trained on (its provenance's `train_states`; None: not recorded) with `specs`."""
    if trained is None:
        return Overlap(None, 0, len(specs))
    known = {task: set(rows) for task, rows in trained.items()}
    seen: dict[str, set[int]] = {}
    shared = 0
    for spec in specs:
        if spec.init_state in known.get(spec.task, ()):
            seen.setdefault(spec.task, set()).add(spec.init_state)
            shared += 1
    return Overlap({task: sorted(rows) for task, rows in seen.items()}, shared, len(specs))


def trained_states(provenance: Mapping[str, Any]) -> dict[str, list[int]] | None:
    """What a checkpoint's provenance says that it was trained on; None when it says nothing.

    UserError when the entry is not {task: [rows]}: an unreadable record must not pass for 'no overlap'.
    """
    entry = provenance.get(TRAINED_STATES)
    if entry is None:
        return None
    good = isinstance(entry, dict) and all(
        isinstance(rows, list) and all(isinstance(row, int) and not isinstance(row, bool) for row in rows)
        for rows in entry.values()
    )
    if not good:
        raise UserError(
            f"the checkpoint's provenance.json holds an unreadable '{TRAINED_STATES}': it must be {{task: [rows]}}; "
            "restore the file from the checkpoint's source."
        )
    return {str(task): list(rows) for task, rows in entry.items()}
