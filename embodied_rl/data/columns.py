"""What reinforcement learning reads of a data set beside what is seen and done: rewards, ends, decisions, who acted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from embodied_rl.data.layout import DECISION, DONE, INTERVENTION, REWARD, SUCCESS
from embodied_rl.types import Array

STEP_COLUMNS = {REWARD: "float32", DONE: "bool", SUCCESS: "bool", INTERVENTION: "bool", DECISION: "int32"}
"""Names and dtypes, as LeRobot, RLinf and verl-vla call them where they have them."""


@dataclass(slots=True)
class StepColumns:
    """Of F frames, each [F]: what the step after a frame came to, and who decided it.

    reward: float32. done: bool, it ended the episode. success: bool, it ended it in success. human: bool, a person
    acted. decision: int32, its number in the episode; a chunk begins where it changes.
    """

    reward: Array
    done: Array
    success: Array
    human: Array
    decision: Array


def step_columns(table: pa.Table, starts: Array, success: Array) -> StepColumns:
    """The columns that `table` has; neutral values for those that it lacks, or has as something else than a number.

    Neutral is what holds of demonstrations: a reward of 1 for the last step of an episode that ends in success, no
    person, and a decision for each frame.

    Args:
        table: F rows, in order.
        starts: int64 [E+1], rows of each episode.
        success: bool [E], it ends in success.
    """
    count, lengths = int(starts[-1]), np.diff(starts)
    last = np.zeros(count, np.bool_)
    last[starts[1:] - 1] = True
    solved = last & np.repeat(success, lengths)
    neutral = {
        REWARD: solved.astype(np.float32),
        DONE: last,
        SUCCESS: solved,
        INTERVENTION: np.zeros(count, np.bool_),
        DECISION: (np.arange(count) - np.repeat(starts[:-1], lengths)).astype(np.int32),
    }
    found = [_column(table, name, dtype, neutral[name]) for name, dtype in STEP_COLUMNS.items()]
    return StepColumns(*found)


def _column(table: pa.Table, name: str, dtype: str, neutral: Array) -> Array:
    if name not in table.column_names:
        return neutral
    column = table.column(name).combine_chunks()
    if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):  # some write a scalar as a list of 1
        column = column.flatten()
    kind = column.type
    is_number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if not is_number or len(column) != len(neutral) or column.null_count:
        return neutral
    return column.to_numpy(zero_copy_only=False).astype(dtype)


@dataclass(frozen=True, slots=True)
class ChunkTransitions:
    """Decisions of episodes as transitions, by rows of their frames: no picture is copied.

    row: int64 [D], first frame of each chunk. steps: int32 [D], control steps that ran. reward: float32 [D], their
    discounted sum. discount: float32 [D], of the value at `next_row`: gamma to the power of `steps`, 0 where the
    episode ended. next_row: int64 [D], first frame of the next chunk, -1 where the episode ended. human: bool [D], a
    person acted in it.
    """

    row: Array
    steps: Array
    reward: Array
    discount: Array
    next_row: Array
    human: Array


def chunk_transitions(columns: StepColumns, starts: Array, gamma: float) -> ChunkTransitions:
    """The decisions of all episodes.

    Args:
        columns: of F frames.
        starts: int64 [E+1], rows of each episode.
        gamma: discount of a control step, in [0, 1]. Running out of time is an end like any other: what comes after the
            last step was not seen.
    """
    first = np.zeros(len(columns.decision), np.bool_)
    first[starts[:-1]] = True
    first[1:] |= np.diff(columns.decision) != 0
    row = np.flatnonzero(first)
    ends = np.append(row[1:], len(first))
    steps = ends - row
    weight = gamma ** (np.arange(len(first)) - np.repeat(row, steps)).astype(np.float64)
    over = np.isin(ends, starts[1:])
    return ChunkTransitions(
        row=row,
        steps=steps.astype(np.int32),
        reward=np.add.reduceat(columns.reward * weight, row).astype(np.float32),
        discount=np.where(over, 0.0, gamma**steps).astype(np.float32),
        next_row=np.where(over, -1, ends),
        human=np.logical_or.reduceat(columns.human, row),
    )
