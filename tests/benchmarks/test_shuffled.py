"""The bench of shuffled rewards: outcomes change episodes and none is lost, and what `runs compare` says counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.benchmarks import shuffled
from embodied_rl.benchmarks.shuffled import Shuffled, shuffle_outcomes
from embodied_rl.types import EpisodeResult, EpisodeSpec, RolloutBatch

LENGTHS = [3, 1, 4, 2, 2, 3]


def batch_of(lengths: list[int]) -> RolloutBatch:
    """Episodes of so many rows, without rewards."""
    rows = sum(lengths)
    specs = [EpisodeSpec(at, "reach", 0, at, at) for at in range(len(lengths))]
    return RolloutBatch(
        images=torch.zeros(rows, 1),
        proprio=torch.zeros(rows, 1),
        instruction=["reach"] * rows,
        replay={},
        log_prob=torch.zeros(rows, 1),
        value=None,
        reward=torch.zeros(rows),
        mask=torch.ones(rows, 1, dtype=torch.bool),
        episode=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        episodes=[EpisodeResult(spec, True, True, False, 1.0, 1, 1) for spec in specs],
        version=1,
    )


def test_outcomes_change_episodes_and_none_is_lost() -> None:
    moved = 0
    for seed in range(5):
        batch, ends = batch_of(LENGTHS), np.cumsum(LENGTHS) - 1
        batch.reward[ends] = torch.tensor([1.0, 0, 1, 0, 0, 1])
        shuffle_outcomes(batch, np.random.default_rng(seed))
        assert batch.reward.sum() == batch.reward[ends].sum() == 3
        moved += batch.reward[ends].tolist() != [1, 0, 1, 0, 0, 1]
    assert moved >= 3


@pytest.mark.parametrize(
    ("honest", "codes", "end"), [(False, [1, 1], 0), (False, [1, 0], 1), (True, [0, 0], 0), (True, [0, 1], 1)]
)
def test_a_run_that_lies_where_it_should_not_is_said(
    honest: bool, codes: list[int], end: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(codes)

    def command(words: list[str]) -> Any:
        return 0 if words[0] == "train" else next(said)

    monkeypatch.setattr(shuffled, "command", command)
    assert shuffled.main(Shuffled(runs=2, honest=honest, output=Path("nowhere"))) == end
    assert f"outside the band: {sum(codes)} of 2" in capsys.readouterr().out
