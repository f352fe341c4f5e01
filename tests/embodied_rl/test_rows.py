"""Rows cut and joined: every field of a dataclass goes along, also one that is added later."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from embodied_rl.learner import batches
from embodied_rl.learner.batches import join_batches, split_groups
from embodied_rl.types import (
    ActOutput,
    EpisodeResult,
    EpisodeSpec,
    Observation,
    RolloutBatch,
    concatenate,
    join_rows,
    take_rows,
)


@dataclass(slots=True)
class TouchObservation(Observation):
    """One field more than today's."""

    touch: Tensor | None = None


@dataclass(slots=True)
class TouchAct(ActOutput):
    """One field more than today's."""

    hidden: Tensor = field(default_factory=lambda: torch.zeros(0))


@dataclass(slots=True)
class TouchBatch(RolloutBatch):
    """One field more than today's, that has an entry a row."""

    touch: Tensor | None = None


def observation(rows: int) -> TouchObservation:
    number = torch.arange(rows)
    return TouchObservation(
        number.to(torch.uint8).reshape(rows, 1, 1, 1, 1).expand(rows, 1, 2, 2, 3),
        number[:, None].float(),
        [str(row) for row in range(rows)],
        number[:, None].float() + 0.5,
        number[:, None] * 2,
    )


def act(rows: int) -> TouchAct:
    number = torch.arange(rows).float()[:, None]
    return TouchAct(number[:, None], number + 1, number[:, 0] + 2, {"drawn": number + 3}, number + 4)


def same(one: object, two: object) -> bool:
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and torch.equal(one, two)
    if isinstance(one, dict):
        return isinstance(two, dict) and one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return one == two


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_what_is_cut_and_joined_is_what_it_was(sizes: list[int]) -> None:
    ends = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    wholes: list[Any] = [observation(ends[-1]), act(ends[-1])]
    for whole in wholes:
        joined = concatenate([take_rows(whole, slice(*pair)) for pair in pairwise(ends)])
        for each in fields(whole):
            assert same(getattr(joined, each.name), getattr(whole, each.name)), each.name
    few = observation(ends[-1]).rows([ends[-1] - 1, 0])
    assert isinstance(few, TouchObservation)
    assert few.touch is not None
    assert few.touch.flatten().tolist() == [2 * (ends[-1] - 1), 0]
    assert few.instruction == [str(ends[-1] - 1), "0"]


def test_parts_that_do_not_fit_are_refused() -> None:
    """Nothing is dropped because one part lacks it."""
    one, other = observation(2), observation(2)
    other.state = None
    with pytest.raises(ValueError, match="only some parts have state"):
        concatenate([one, other])
    with pytest.raises(ValueError, match="only some parts have state"):
        concatenate([other, one])
    with pytest.raises(ValueError, match="parts differ in the keys of replay"):
        join_rows([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}], "replay")


def test_a_batch_keeps_every_field_that_has_an_entry_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "RolloutBatch", TouchBatch)
    number, lengths = torch.arange(6), (2, 1, 3)
    whole = TouchBatch(
        images=number.to(torch.uint8).reshape(6, 1, 1, 1, 1),
        proprio=number[:, None].float(),
        instruction=list("abcdef"),
        replay={"tokens": number[:, None].clone()},
        log_prob=number[:, None] + 0.1,
        value=number + 0.2,
        reward=number + 0.3,
        mask=number[:, None] % 2 == 0,
        episode=torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)),
        episodes=[
            EpisodeResult(EpisodeSpec(group, "t", 0, group, group), True, True, False, 1.0, length, length)
            for group, length in enumerate(lengths)
        ],
        version=4,
        row_version=number % 3,
        log_importance=number[:, None] * 0.5,
        final_images=torch.arange(3, dtype=torch.uint8).reshape(3, 1, 1, 1, 1),
        touch=number[:, None] * 2,
    )
    joined = join_batches(list(split_groups(whole)))
    for each in fields(whole):
        assert same(getattr(joined, each.name), getattr(whole, each.name)), each.name
    (first, second, _) = split_groups(whole)
    second.row_version = None
    with pytest.raises(ValueError, match="only some parts have row_version"):
        join_batches([first, second])
