"""Which initial states a policy was trained on, and how many of the evaluated ones are among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.types import EpisodeSpec

TRAINED_STATES = "train_states"
"""Key of a checkpoint's provenance: {task: [initial states]}, all that any stage of its training drew from."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many of the evaluated episodes start where the policy was trained.

    seen: task -> its initial states that are both trained on and evaluated; None when the checkpoint does not say what
    it was trained on. episodes: all that are evaluated; shared: those of them that start from a seen state.
    """

    seen: dict[str, list[int]] | None
    shared: int
    episodes: int

    def describe(self) -> str:
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


def join_states(
    earlier: Mapping[str, Sequence[int]] | None, more: Mapping[str, Sequence[int]]
) -> dict[str, list[int]] | None:
    """What a policy was trained on that goes on with the states `more`; None (unknown) where `earlier` is."""
    if earlier is None:
        return None
    names = [*earlier, *(name for name in more if name not in earlier)]
    return {name: sorted({*earlier.get(name, ()), *more.get(name, ())}) for name in names}


def demonstrated_states(collected: Mapping[str, Any]) -> dict[str, list[int]] | None:
    """Where a dataset's demonstrations start, from what `collect` recorded about itself: {task: [initial states]}.

    Empty when its states were drawn for it alone, so that none of a suite's is among them; None when it does not say.
    """
    return {} if collected.get("split") == "fresh" else collected.get(TRAINED_STATES)


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
