"""Batches as plain data: what goes to other processes of the learner."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import torch

from embodied_rl.learner.batches import from_dict, to_dict
from tests.embodied_rl.scheduler.toys import PPO, Setup, assert_same_rows, serial


def test_a_batch_survives_a_message_that_can_run_no_code(tmp_path: Path) -> None:
    (batch,) = serial(Setup(replace(PPO, bootstrap_truncated=True), iterations=1), tmp_path).batches
    batch.row_version = torch.zeros(len(batch), dtype=torch.int64)
    message = io.BytesIO()
    torch.save(to_dict(batch), message)
    message.seek(0)
    found = from_dict(torch.load(message, weights_only=True))
    assert_same_rows(batch, found)
    assert found.info == batch.info
    assert torch.equal(found.row_version, batch.row_version)  # type: ignore[arg-type]
