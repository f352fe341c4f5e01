"""Batches whose frames are partly elsewhere: splitting and joining them keeps each row's own."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.learner.batches import frames_elsewhere, join_batches, split_groups, without_frames
from embodied_rl.rollout.observation_pool import StepRecord, Trajectory, gather
from embodied_rl.types import ActOutput, EpisodeResult, EpisodeSpec, Observation, RolloutBatch

OF_THE_WHOLE = {"advantage", "returns", "info"}
"""What is said of a batch as a whole, after its rows were gathered."""


def batch_of(lengths: list[int]) -> RolloutBatch:
    """One group an episode; row i of the batch has the number i everywhere."""
    rows = sum(lengths)
    number = torch.arange(rows)
    episodes = [
        EpisodeResult(EpisodeSpec(group, "t", 0, group, group), True, True, False, 1.0, length, length)
        for group, length in enumerate(lengths)
    ]
    return RolloutBatch(
        images=number.to(torch.uint8).reshape(rows, 1, 1, 1, 1),
        proprio=number[:, None].float(),
        instruction=[str(row) for row in range(rows)],
        replay={"tokens": number[:, None].clone()},
        log_prob=number[:, None].float(),
        value=number.float(),
        reward=number.float(),
        mask=torch.ones(rows, 1, dtype=torch.bool),
        episode=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        episodes=episodes,
        final_images=torch.arange(len(lengths), dtype=torch.uint8).reshape(-1, 1, 1, 1, 1),
    )


@given(st.lists(st.integers(1, 4), min_size=1, max_size=7), st.integers(1, 4), st.integers(0, 1))
def test_a_row_keeps_its_own_frame_wherever_the_others_are(lengths: list[int], size: int, kept: int) -> None:
    whole = batch_of(lengths)
    for rank in range(size):
        parts = [
            group if number % size == rank else frames_elsewhere(group, kept)
            for number, group in enumerate(split_groups(whole))
        ]
        joined = join_batches(parts)
        again = join_batches(list(split_groups(joined)))
        for found in (joined, again):
            assert torch.equal(found.reward, whole.reward)
            assert torch.equal(found.proprio, whole.proprio)
            assert found.final_images is not None
            assert found.final_images.flatten().tolist() == list(range(len(lengths))), "each episode its own"
            frame_row = torch.arange(len(found)) if found.frame_row is None else found.frame_row
            here = frame_row >= 0
            assert torch.equal(found.images[frame_row[here]], whole.images[here])
            assert torch.equal(found.replay["tokens"][frame_row[here]], whole.replay["tokens"][here])
            groups = torch.arange(len(lengths))[found.episode]
            assert bool(here[groups % size == rank].all())
            assert int(here[groups % size != rank].sum()) == kept * sum(g % size != rank for g in range(len(lengths)))


def test_final_images_are_joined_only_where_all_have_them() -> None:
    one = batch_of([2, 1])
    other = replace(one, final_images=None)
    assert join_batches([one, other]).final_images is None
    assert without_frames(one).final_images is None
    (first, _) = split_groups(other)
    assert first.final_images is None


def test_no_field_of_a_batch_is_lost_when_it_is_split_and_joined() -> None:
    """A field that is added to `RolloutBatch` fails here until this batch has it, and then where it is not carried."""
    rows = batch_of([2, 1])
    whole = replace(rows, row_version=rows.episode, log_importance=rows.log_prob, frame_row=torch.arange(3))
    names = [each.name for each in fields(RolloutBatch) if each.name not in OF_THE_WHOLE]
    for found in (whole, *split_groups(whole), join_batches(list(split_groups(whole)))):
        assert [name for name in names if getattr(found, name) is None] == []


def test_no_field_of_what_a_rollout_records_is_lost_when_it_is_gathered() -> None:
    """But the state, of which a policy that reads it keeps what it needs in `ActOutput.replay`."""
    seen = Observation(torch.ones(2, 1, 1, 1, 3), torch.ones(2, 1), ["a", "b"], state=torch.ones(2, 1))
    act = ActOutput(torch.ones(2, 1, 1), torch.ones(2, 1), torch.ones(2), {"tokens": torch.ones(2, 1)})
    step = StepRecord(seen, seen, act, torch.ones(2), torch.ones(2, 1) > 0, refcount=2, version=7)
    result = EpisodeResult(EpisodeSpec(0, "t", 0, 0), True, True, False, 1.0, 1, 1)
    batch = gather([Trajectory(result, [(step, 1)], torch.ones(1, 1, 1, 3))], 8)
    later = {"log_importance", "frame_row"} | OF_THE_WHOLE
    assert [each.name for each in fields(RolloutBatch) if getattr(batch, each.name) is None] == [
        each.name for each in fields(RolloutBatch) if each.name in later - {"info"}
    ]
    assert (batch.instruction, batch.row_version) == (["b"], torch.tensor([7]))
    carried = {each.name for each in fields(RolloutBatch)} | {"act", "obs", "block", "refcount", "version"}
    parts = {each.name for part in (Observation, ActOutput, StepRecord) for each in fields(part)}
    assert parts - carried == {"state", "actions"}
