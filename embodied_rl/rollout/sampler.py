"""Which episode runs next: a deterministic sequence of groups, and counts of what became of them.

Group g is a pure function of (seed, g), of the initial states that the batches before found to break the simulator, and
if the sampler is adaptive of how these ended. So the sequence
does not depend on envs, workers or the order in which episodes end, and a resumed run needs only the number of groups
issued and what ended batches showed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.rng import RunStream, philox
from embodied_rl.rollout.adaptive import AdaptiveDraws
from embodied_rl.rollout.broken_states import BrokenStates, TaskStates
from embodied_rl.rollout.retries import FailureCause, RetryPolicy
from embodied_rl.types import EpisodeResult, EpisodeSpec

_SEED_RANGE = 2**63 - 1


@dataclass(slots=True)
class EpisodeCounts:
    """Episodes: issued = finished + outstanding. requeued: runs that were lost and run again."""

    issued: int = 0
    finished: int = 0
    requeued: int = 0
    outstanding: dict[int, EpisodeSpec] = field(default_factory=dict)


class EpisodeSampler:
    """Groups of `group_size` episodes that share task and initial state.

    Tasks come in rounds: each round names every task once, in a fresh random order, and each task walks through a
    fresh random order of its initial states before it repeats one. So any batch is balanced over tasks.
    tasks: initial states by task name. Episode ids count up from 0; episode e belongs to group e // group_size.
    adaptive: draws tasks and initial states by the success of earlier batches instead. perturb_share: share of the
    groups that are perturbed; which, follows from (seed, group) alone. in_order: a task walks through its initial
    states as they stand, since they were drawn at random; a run that goes on for longer may then have more of them.
    """

    def __init__(
        self,
        seed: int,
        tasks: TaskStates,
        group_size: int = 1,
        adaptive: AdaptiveDraws | None = None,
        perturb_share: float = 0.0,
        *,
        in_order: bool = False,
    ) -> None:
        if not tasks:
            raise UserError("there are no tasks to train on: name at least one.")
        empty = [name for name, states in tasks.items() if len(states) == 0]
        if empty:
            raise UserError(f"task '{empty[0]}' has no initial states to train on.")
        if group_size < 1:
            raise UserError(f"the group size must be at least 1, got {group_size}.")
        self.seed = seed
        self.group_size = group_size
        self.perturb_share = perturb_share
        self.counts = EpisodeCounts()
        self._tasks = {name: list(states) for name, states in tasks.items()}
        self._names = list(self._tasks)
        self.broken = BrokenStates(seed, self._tasks, "episodes" if group_size == 1 else "groups")
        self._next_group = 0
        self._attempts = RetryPolicy()
        self._adaptive = adaptive
        self._in_order = in_order

    def next_group(self, closed: int = 0) -> list[EpisodeSpec]:
        """Issue the next group, drawn from what the first `closed` batches showed.

        They show which initial states are broken, and to an adaptive sampler how often each was solved.
        """
        index = self._next_group
        drawn = self._in_turn(index) if self._adaptive is None else self._adaptive.draw(index, closed)
        group = self._group(index, *self.broken.draw(index, *drawn, closed))
        self._next_group += 1
        self.counts.issued += len(group)
        self.counts.outstanding.update((spec.episode_id, spec) for spec in group)
        return group

    def group(self, index: int) -> list[EpisodeSpec]:
        """Return group `index` of the sequence without issuing it, of a sampler that is not adaptive.

        No initial state is broken there.
        """
        return self._group(index, *self._in_turn(index))

    def _in_turn(self, index: int) -> tuple[str, int]:
        round_, place = divmod(index, len(self._names))
        task = int(philox(self.seed, RunStream.TASK_ORDER, round_).permutation(len(self._names))[place])
        states = self._tasks[self._names[task]]
        lap, step = divmod(round_, len(states))
        if self._in_order:
            return self._names[task], int(states[step])
        # Laps and tasks share one counter word; 2**32 laps of a task are out of reach.
        order = philox(self.seed, RunStream.STATE_ORDER, task * 2**32 + lap).permutation(len(states))
        return self._names[task], int(states[order[step]])

    def close_batch(self, batch: int, results: Sequence[EpisodeResult], lag: int = 0) -> dict[str, float]:
        """Batch `batch` has ended; return the sampler's metrics.

        Args:
            batch: its number.
            results: of its episodes.
            lag: later groups are drawn from what at most so many batches fewer showed.
        """
        if self._adaptive is None:
            return self.broken.metrics()
        self._adaptive.close_batch(batch, results, lag)
        drawn = Counter(result.spec.task for result in results)
        return {f"rollout/share/{task}": drawn[task] / len(results) for task in self._names} | self.broken.metrics()

    def finish(self, spec: EpisodeSpec) -> None:
        """Record that `spec` ended and counts; raise ValueError if it was not outstanding."""
        self._check_outstanding(spec)
        del self.counts.outstanding[spec.episode_id]
        self._attempts.forget(spec)
        self.counts.finished += 1

    def finish_group(self, index: int) -> None:
        """Record that every episode of a group ended elsewhere."""
        for episode in range(index * self.group_size, (index + 1) * self.group_size):
            self.finish(self.counts.outstanding[episode])

    def requeue(self, spec: EpisodeSpec, cause: FailureCause = FailureCause.SIMULATOR) -> EpisodeSpec | None:
        """Return what to run in place of `spec`, which was lost; None where it broke the simulator in every attempt.

        The first re-run is identical (a worker's crash is not the episode's doing); later ones draw a new seed (an
        action sequence that makes the physics diverge would do so again). A run that was lost with another episode's
        simulator counts as no attempt. Raises UserError after 5 attempts in which the policy gave actions that are not
        finite.
        """
        self._check_outstanding(spec)
        attempt = self._attempts.record_failure(spec, cause)
        if attempt is None:
            return None
        same = attempt == 1 or cause is FailureCause.LOST
        again = spec if same else self._spec(spec.episode_id, spec.task, spec.init_state, spec.group, attempt)
        self.counts.outstanding[spec.episode_id] = again
        self.counts.requeued += 1
        return again

    def requeue_uncounted(self, spec: EpisodeSpec) -> EpisodeSpec:
        """Return `spec`, to run again: its run was lost, but nothing says that it broke a simulator."""
        self._check_outstanding(spec)
        self.counts.requeued += 1
        return spec

    @property
    def position(self) -> int:
        """Index of the group that `next_group` issues next."""
        return self._next_group

    def state_dict(self, next_group: int | None = None) -> dict[str, Any]:
        """The position in the sequence; only between iterations, when no episode is outstanding.

        next_group: save as if nothing from that group on had been issued yet, although episodes may be in flight.
        """
        if next_group is None:
            if self.counts.outstanding:
                raise RuntimeError(f"{len(self.counts.outstanding)} episodes are in flight; save between iterations.")
            next_group = self._next_group
        back = (self._next_group - next_group) * self.group_size
        return {
            "seed": self.seed,
            "group_size": self.group_size,
            "tasks": self._tasks,
            "next_group": next_group,
            "issued": self.counts.issued - back,
            # Of those taken back, the outstanding ones were never counted as finished.
            "finished": self.counts.finished - (back - len(self.counts.outstanding)),
            "reissued": self.counts.requeued,
            **({"broken": self.broken.state_dict()} if self.broken.found else {}),
        } | ({} if self._adaptive is None else {"adaptive": self._adaptive.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` left off; raise UserError if it belongs to another stream of episodes."""
        tasks = self._tasks
        if self._in_order:  # there may be more now
            tasks = {name: states[: len(state["tasks"].get(name, ()))] for name, states in tasks.items()}
        for name, mine in (("seed", self.seed), ("group_size", self.group_size), ("tasks", tasks)):
            if state[name] != mine:
                raise UserError(f"the checkpoint's episodes have another {name}; resume with the run's own config.")
        if ("adaptive" in state) != (self._adaptive is not None):
            raise UserError("the checkpoint's episodes have another sampler; resume with the run's own config.")
        if self._adaptive is not None:
            self._adaptive.load_state_dict(state["adaptive"])
        self.broken.load_state_dict(state.get("broken", {"groups": 0, "found": []}))
        self._next_group = int(state["next_group"])
        self.counts = EpisodeCounts(int(state["issued"]), int(state["finished"]), int(state["reissued"]))
        self._attempts = RetryPolicy()

    def _group(self, index: int, task: str, init_state: int) -> list[EpisodeSpec]:
        first = index * self.group_size
        return [self._spec(first + member, task, init_state, index, attempt=0) for member in range(self.group_size)]

    def _spec(self, episode: int, task: str, init_state: int, group: int, attempt: int) -> EpisodeSpec:
        # the members of a group are compared, so their envs are alike, also in runs again: those of its first member
        world_seed = None if self.group_size == 1 else self._episode_seed(group * self.group_size, 0)
        seed = self._episode_seed(episode, attempt)
        return EpisodeSpec(episode, task, init_state, seed, group, self._perturb_seed(group), world_seed)

    def _episode_seed(self, episode: int, attempt: int) -> int:
        return int(philox(self.seed, RunStream.EPISODE, episode, attempt).integers(_SEED_RANGE))

    def _perturb_seed(self, group: int) -> int | None:
        if self.perturb_share == 0:
            return None
        draws = philox(self.seed, RunStream.PERTURB, group)
        return int(draws.integers(_SEED_RANGE)) if draws.random() < self.perturb_share else None

    def _check_outstanding(self, spec: EpisodeSpec) -> None:
        if self.counts.outstanding.get(spec.episode_id) != spec:
            raise ValueError(f"episode {spec.episode_id} is not outstanding: it never began or was counted already")


def evaluation_specs(tasks: TaskStates, seed: int) -> list[EpisodeSpec]:
    """Each task with each of its (held-out) initial states, exactly once, task by task.

    The same `seed` gives the same episodes, so that evaluations before and after training are paired.
    """
    return numbered_specs([(task, int(state)) for task, states in tasks.items() for state in states], seed)


def numbered_specs(pairs: Sequence[tuple[str, int]], seed: int) -> list[EpisodeSpec]:
    """An episode of each task and initial state, as often as they are there; their ids are their places."""
    return [
        EpisodeSpec(index, task, state, int(philox(seed, RunStream.EVALUATION, index).integers(_SEED_RANGE)), index)
        for index, (task, state) in enumerate(pairs)
    ]
