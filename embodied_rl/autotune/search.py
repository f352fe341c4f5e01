"""Choosing a schedule: coordinate descent over what can be chosen, judged by `simulate.play` under a cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from embodied_rl.autotune.costs import Costs
from embodied_rl.autotune.simulate import Played, Work, play
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig

MAX_ROUNDS = 3
CLEARLY = 0.99
"""A choice replaces another only if it takes less than this share of its time: the simpler one comes first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run. placement: a key of `Space.placements`; microbatch: rows that are learned in one go."""

    placement: str
    scheduler: SchedulerConfig
    worlds: int
    microbatch: int


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be chosen, each list in order of preference among equals.

    placements: the cost model of each way to put the stages on devices. fits: whether a choice fits into memory.
    """

    placements: Mapping[str, Costs]
    schedulers: tuple[SchedulerConfig, ...]
    worlds: tuple[int, ...]
    microbatches: tuple[int, ...]
    fits: Callable[[Choice], bool] = lambda choice: True

    def all(self) -> Iterator[Choice]:
        """Every choice that fits."""
        for placement in self.placements:
            for scheduler in self.schedulers:
                for worlds in self.worlds:
                    for microbatch in self.microbatches:
                        choice = Choice(placement, scheduler, worlds, microbatch)
                        if _possible(choice) and self.fits(choice):
                            yield choice


@dataclass(frozen=True, slots=True)
class Found:
    """The choice and its prediction; tried: how many were predicted on the way."""

    choice: Choice
    played: Played
    tried: int


def ladder(most: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`, and `most` itself."""
    steps = {most, *(base << shift for shift in range(most.bit_length()) for base in (2, 3)), 1}
    return tuple(sorted(step for step in steps if step <= most))


def schedulers(
    overlaps: tuple[Any, ...], stages: tuple[int, ...], ahead: int | None = None
) -> tuple[SchedulerConfig, ...]:
    """Serial, and the pipelined schedulers of these overlaps with these numbers of stages.

    ahead: of `async` also with so many groups ahead.
    """
    pipelined = (
        PipelinedConfig(env_groups=count, mode=overlap, max_lookahead=groups)
        for overlap in overlaps
        for groups in ((None, ahead) if overlap == "async" and ahead else (None,))
        for count in stages
    )
    return SerialConfig(), *pipelined


def predict(space: Space, work: Work, choice: Choice, *, measured: int = 2) -> Played:
    """`work` under `choice`."""
    asked = replace(work, worlds=choice.worlds, microbatch=choice.microbatch)
    return play(space.placements[choice.placement], asked, choice.scheduler, measured=measured)


def search(space: Space, work: Work) -> Found:
    """The best choice that coordinate descent finds, from the first and from the middle of each list.

    Raises ValueError if nothing fits.
    """
    known: dict[Choice, Played] = {}

    def cost(choice: Choice) -> float:
        if choice not in known:
            known[choice] = predict(space, work, choice)
        return known[choice].seconds_per_row

    fitting = list(space.all())
    if not fitting:
        raise ValueError("no choice fits")
    allowed = set(fitting)
    ends = [_descend(space, start, allowed, cost) for start in (fitting[0], fitting[len(fitting) // 2], fitting[-1])]
    best = ends[0]
    for end in ends[1:]:
        best = end if cost(end) < CLEARLY * cost(best) else best
    return Found(best, known[best], len(known))


def _descend(space: Space, start: Choice, allowed: set[Choice], cost: Callable[[Choice], float]) -> Choice:
    best = start
    for _ in range(MAX_ROUNDS):
        before = best
        for name, values in (
            ("placement", tuple(space.placements)),
            ("scheduler", space.schedulers),
            ("microbatch", space.microbatches),
            ("worlds", space.worlds),
        ):
            line = [choice for value in values if (choice := replace(best, **{name: value})) in allowed]
            least = min(cost(choice) for choice in line)
            best = next(choice for choice in line if cost(choice) * CLEARLY <= least)
        if best == before:
            break
    return best


def _possible(choice: Choice) -> bool:
    return not isinstance(choice.scheduler, PipelinedConfig) or (choice.scheduler.env_groups or 1) <= choice.worlds
