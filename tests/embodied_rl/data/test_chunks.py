"""Chunks, split, batch order and augmentation, by hand and by property."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.data.chunks import action_chunks, batch_samples, drop_history_rows, random_shift, split, undisturbed
from embodied_rl.data.layout import Episode
from embodied_rl.data.lerobot import Demonstrations, load
from embodied_rl.errors import UserError


def _demonstrations(episodes: list[Episode]) -> Demonstrations:
    starts = np.cumsum([0] + [len(e.images) for e in episodes])
    return Demonstrations(
        np.concatenate([e.images for e in episodes]),
        np.concatenate([e.state for e in episodes]),
        np.concatenate([e.action for e in episodes]),
        np.concatenate([(e.action != e.executed).any(axis=1) for e in episodes]),
        starts,
        np.ones(len(episodes), bool),
        [e.instruction for e in episodes for _ in e.images],
        ("a", "b"),
        {},
        Path(),
    )


def test_chunks_and_padding_by_hand() -> None:
    action = np.array([[0.1, -0.2, -1], [0.3, 0.4, 1], [0.5, 0.6, 1], [9.0, 0.8, -1]], np.float32)
    # Episode one is rows 0..2, after which the arm stays; episode two is row 3.
    rows, ends, stays = np.array([0, 1, 2, 3]), np.array([3, 3, 3, 4]), np.array([True, True, True, False])
    chunks = action_chunks(action, rows, ends, 3, stays)
    stay = [0.0, 0.0, 1.0]  # no motion, the gripper stays closed
    np.testing.assert_allclose(chunks[0], action[0:3])
    np.testing.assert_allclose(chunks[1], [[0.3, 0.4, 1], [0.5, 0.6, 1], stay], rtol=1e-6)
    np.testing.assert_allclose(chunks[2], [[0.5, 0.6, 1], stay, stay], rtol=1e-6)
    np.testing.assert_allclose(chunks[3], [[9.0, 0.8, -1]] * 3, rtol=1e-6)
    assert action[3, 0] == 9.0  # the data itself stays as it was


def test_no_chunk_goes_on_from_a_person_to_the_policy(new_episode: Callable[[int, int], Episode]) -> None:
    """Episode 0: the policy, then a person for frames 3 to 5, then the policy; episode 1 is a person's to its end."""
    data = _demonstrations([new_episode(0, 8), new_episode(1, 4)])
    data.columns.human[3:6] = True
    data.columns.human[8:] = True
    train, _ = split(data, 4, validation=0.0, seed=0)
    mask = train.batch(np.arange(12)).action_mask
    assert mask is not None
    for row in range(12):
        known = min((6 if 3 <= row < 6 else 8 if row < 8 else 12) - row, 6 - row if row in (1, 2) else 4, 4)
        assert mask[row].tolist() == [step < known for step in range(4)], row
    assert train.targets().masked == int((~mask).sum())


def test_past_the_end_of_an_episode_nothing_is_learned(new_episode: Callable[[int, int], Episode]) -> None:
    """Of the 80 targets of 10 steps with chunks of 8, 28 (35 %) lie past the end: 7 + 6 + ... + 1 = 28.

    Also after a success: targets that say 'stay' are answered a little before it, and there the policy would stay.
    """
    data = _demonstrations([new_episode(0, 10), new_episode(1, 10)])
    data.success[0] = False
    train, _ = split(data, 8, validation=0.0, seed=0)
    targets = train.targets()
    assert (targets.total, targets.masked) == (160, 56)
    assert targets.describe() == [
        "56 of 160 targets (35%) lie past the end of their episode, or of a person's part, and are left out"
    ]
    mask = train.batch(np.arange(20)).action_mask
    assert mask is not None
    left = [8, 8, 8, 7, 6, 5, 4, 3, 2, 1]
    assert mask.sum(1).tolist() == left + left
    assert all(mask[row, :count].all() for row, count in enumerate(left))
    assert train.batch(np.array([0, 1, 2, 10])).action_mask is None  # a batch that knows all is as it always was


def test_batch_holds_frame_proprio_instruction_and_actions_of_one_moment(dataset: Path) -> None:
    data = load(dataset)
    train, val = split(data, 4, validation=0.0, seed=0)
    assert len(train) == 54  # all frames but frame 24, where the demonstrator was pushed
    assert 24 not in train.rows
    assert len(val) == 0
    batch = train.batch(np.array([6, 53]))  # frame 1 of episode 1, last frame of episode 4
    np.testing.assert_array_equal(batch.images.numpy(), data.images[[6, 54]])
    np.testing.assert_array_equal(batch.proprio.numpy(), data.state[[6, 54]])
    assert batch.instruction == ["push cube 1", "push cube 0"]
    np.testing.assert_array_equal(batch.actions[0].numpy(), data.action[6:10])
    np.testing.assert_array_equal(batch.actions[1, 0].numpy(), data.action[54])
    assert batch.action_mask is not None  # nobody says that these episodes end in success
    assert batch.action_mask.tolist() == [[True] * 4, [True, False, False, False]]


def test_split_is_by_episode_and_by_instruction(episodes: list[Episode]) -> None:
    data = _demonstrations(episodes)  # instruction 0: episodes 0, 2, 4; instruction 1: episodes 1, 3
    train, val = split(data, 2, validation=0.4, seed=3)
    in_train, in_val = (set(part.episode[part.rows]) for part in (train, val))
    assert in_train.isdisjoint(in_val)
    assert in_train | in_val == set(range(5))
    assert sorted(e % 2 for e in in_val) == [0, 1]  # one episode of each instruction
    again = split(data, 2, validation=0.4, seed=3)[1]
    np.testing.assert_array_equal(val.rows, again.rows)
    assert len(split(_demonstrations(episodes[:1]), 2, validation=0.9, seed=0)[0]) == 5  # never all of a task
    with pytest.raises(UserError, match="validation"):
        split(data, 2, validation=1.0, seed=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32))
def test_every_sample_comes_once_an_epoch(count: int, batch_size: int, seed: int) -> None:
    steps = -(-3 * count // batch_size)
    stream = np.concatenate([batch_samples(count, batch_size, step, seed) for step in range(steps)])
    for epoch in range(3):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_batch_order_depends_on_step_and_seed_only() -> None:
    late = batch_samples(1000, 16, 70, seed=5)
    for step in range(70):
        batch_samples(1000, 16, step, seed=5)
    np.testing.assert_array_equal(late, batch_samples(1000, 16, 70, seed=5))
    assert not np.array_equal(late, batch_samples(1000, 16, 70, seed=6))
    assert not np.array_equal(late, batch_samples(1000, 16, 71, seed=5))
    # A change of this sequence changes every published checkpoint: it must be on purpose.
    assert batch_samples(10, 10, 0, seed=0).tolist() == [0, 5, 8, 3, 4, 2, 1, 6, 9, 7]


def test_shift_moves_whole_images_by_at_most_that_many_pixels() -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (6, 2, 12, 12, 3), dtype=np.uint8))
    moved = random_shift(images, 2, seed=1, step=4)
    assert moved.dtype == torch.uint8
    seen = set()
    for n in range(6):
        for v in range(2):
            padded = np.pad(images[n, v].numpy(), ((2, 2), (2, 2), (0, 0)), mode="edge")
            fits = [
                (y, x)
                for y in range(5)
                for x in range(5)
                if np.array_equal(padded[y : y + 12, x : x + 12], moved[n, v].numpy())
            ]
            assert len(fits) == 1
            seen.add(fits[0])
    assert len(seen) > 4
    assert torch.equal(moved, random_shift(images, 2, seed=1, step=4))
    assert not torch.equal(moved, random_shift(images, 2, seed=1, step=5))
    assert random_shift(images, 0, seed=1, step=4) is images


def test_a_chunk_with_a_push_in_it_is_no_sample() -> None:
    pushed = np.array([False, False, True, False, False, False, True])
    ends = np.array([5, 5, 5, 5, 5, 7, 7])  # two episodes: rows 0..4 and 5..6
    usable = undisturbed(pushed, ends, 2)
    np.testing.assert_array_equal(usable, [True, False, False, True, True, False, False])
    assert not undisturbed(pushed, ends, 3)[0]


def test_blind_rows_are_a_share_and_a_function_of_the_step() -> None:
    assert drop_history_rows(8, 0.0, 0, 0) is None
    drawn = torch.stack([drop_history_rows(64, 0.25, 1, step) for step in range(100)])  # type: ignore[list-item]
    assert 0.2 < drawn.float().mean() < 0.3
    assert torch.equal(drawn[7], drop_history_rows(64, 0.25, 1, 7))  # type: ignore[arg-type]
    assert not torch.equal(drawn[7], drawn[8])
