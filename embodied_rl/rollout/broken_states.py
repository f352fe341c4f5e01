"""Initial states from which the simulator breaks: left out, remembered, and an error where they are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embodied_rl.errors import UserError
from embodied_rl.rng import RunStream, philox

TaskStates = Mapping[str, Sequence[int]]
MAX_BROKEN_SHARE = 0.25
"""Largest share of the episodes, and of the initial states, that may break the simulator."""
_GRACE = 2
"""So many more groups are forgiven: of the first few, a larger share may break by chance."""
_NAMED = 8
"""Initial states of a task that an error names."""


class BrokenStates:
    """The initial states of training from which an episode broke the simulator in every attempt.

    What a batch showed counts from the next batch on (later where the rollout runs ahead), so draws do not depend on
    timing.

    Args:
        seed: of the run.
        tasks: initial states by task name.
        unit: what a group is called: 'groups', or 'episodes' where each is one.

    Attributes:
        found: the batch in which a state was found to be broken, by task and state.
        num_groups: groups that were left out so far.
    """

    def __init__(self, seed: int, tasks: TaskStates, unit: str) -> None:
        self.found: dict[tuple[str, int], int] = {}
        self.num_groups = 0
        self._seed = seed
        self._tasks = tasks
        self._unit = unit

    def draw(self, group: int, task: str, init_state: int, closed: int) -> tuple[str, int]:
        """Task and initial state for a group that was to have these, as the first `closed` batches showed.

        In place of a broken state it is any other of the task; where all of the task's are broken, of any task.
        """
        known = {state for state, batch in self.found.items() if batch < closed}
        if (task, init_state) not in known:
            return task, init_state
        for names in ([task], list(self._tasks)):
            sound = [(name, state) for name in names for state in self._tasks[name] if (name, state) not in known]
            if sound:
                return sound[int(philox(self._seed, RunStream.REDRAW, group).integers(len(sound)))]
        raise UserError(_complaint(len(known), len(known), "initial states", list(known)))

    def check(self, groups: int, open_batch: Sequence[tuple[str, int]]) -> None:
        """Raise UserError where more than a quarter of the groups so far broke.

        Args:
            groups: how many there were since the run began.
            open_batch: task and initial state of each that broke in batches that have not ended.
        """
        count = self.num_groups + len(open_batch)
        if count > MAX_BROKEN_SHARE * groups + _GRACE:
            raise UserError(_complaint(count, groups, self._unit, [*self.found, *open_batch]))

    def add(self, batch: int, broken: Sequence[tuple[str, int]]) -> None:
        """Take in which groups of batch `batch` broke; UserError where more than a quarter of all states do."""
        self.num_groups += len(broken)
        for state in broken:
            self.found.setdefault(state, batch)
        total = sum(len(set(states)) for states in self._tasks.values())
        if broken and len(self.found) > MAX_BROKEN_SHARE * total:
            raise UserError(_complaint(len(self.found), total, "initial states", list(self.found)))

    def metrics(self) -> dict[str, float]:
        """How many initial states are known to be broken; nothing where none is."""
        return {"rollout/broken_states_total": float(len(self.found))} if self.found else {}

    def found_in(self, batch: int) -> list[tuple[str, int]]:
        """Task and initial state of those that batch `batch` found."""
        return [state for state, found in self.found.items() if found == batch]

    def state_dict(self) -> dict[str, object]:
        """JSON of what is known."""
        return {"groups": self.num_groups, "found": [[*state, batch] for state, batch in self.found.items()]}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from `state`."""
        groups, found = state["groups"], state["found"]
        assert isinstance(groups, int)
        assert isinstance(found, list)
        self.num_groups = groups
        self.found = {(str(task), int(init_state)): int(batch) for task, init_state, batch in found}


def name_states(states: Sequence[tuple[str, int]]) -> str:
    """Tasks and initial states in words, as in: task 'reach', initial states 3, 8; task 'touch', initial state 5."""
    by_task: dict[str, set[int]] = {}
    for task, state in states:
        by_task.setdefault(task, set()).add(state)
    named = []
    for task, found in by_task.items():
        some, more = sorted(found)[:_NAMED], len(found) - _NAMED
        word = "state" if len(found) == 1 else "states"
        named.append(
            f"task '{task}', initial {word} {', '.join(map(str, some))}" + (f" and {more} more" if more > 0 else "")
        )
    return "; ".join(named)


def _complaint(count: int, total: int, what: str, states: Sequence[tuple[str, int]]) -> str:
    return (
        f"the simulator breaks in {count} of {total} {what} of training, which is more than a quarter: "
        f"{name_states(states)}. Mend the simulator or leave these out."
    )
