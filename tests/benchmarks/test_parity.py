"""The comparison with the OpenVLA authors' code: what counts as agreement, what it says of a checkout, what ours does.

Their code itself needs an environment of its own; docs/policies.md has the command.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.benchmarks import parity
from embodied_rl.benchmarks.parity_authors import Authors, Cases, Decisions, revision
from embodied_rl.errors import UserError
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.preprocessing.tokens import decode_tokens, unnormalise_actions

DRAW = np.random.default_rng(0)
THEIRS = Decisions(DRAW.uniform(-1, 1, (3, 1, 7)), DRAW.integers(0, 256, (3, 7)), DRAW.normal(size=(3, 7)))


def test_only_rounding_is_agreement(capsys: pytest.CaptureFixture[str]) -> None:
    assert THEIRS.tokens is not None
    assert THEIRS.log_prob is not None
    other, shifted, less = THEIRS.tokens.copy(), THEIRS.actions.copy(), THEIRS.log_prob.copy()
    other[1, 2] += 1
    shifted[0, 0, 3] += 1e-4
    less[2, 6] -= 1e-3
    assert parity.judge("same", THEIRS, replace(THEIRS, actions=THEIRS.actions + 1e-7))
    assert not parity.judge("token", THEIRS, replace(THEIRS, tokens=other))
    assert not parity.judge("action", THEIRS, replace(THEIRS, actions=shifted))
    assert not parity.judge("log-prob", THEIRS, replace(THEIRS, log_prob=less))
    assert not parity.judge("nothing", THEIRS, replace(THEIRS, actions=THEIRS.actions * np.nan))
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("NOT rounding") for line in lines] == [False, True, True, True, True]
    assert "other tokens 1, log-prob 0 (21 of 21 numbers differ" in lines[1]


@pytest.mark.process
def test_a_checkout_names_its_revision_and_whether_it_was_changed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkout of git"):
        revision(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "code.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x", "--date", "2025-03-23T12:00:00"]):
        subprocess.run([*git, *words], check=True)
    said = revision(tmp_path)
    assert len(said.split()[0]) == 40
    assert not said.endswith("changed")
    (tmp_path / "code.py").write_text("2")
    assert revision(tmp_path) == f"{said}, changed"


def test_ours_are_the_tokens_of_the_policy_before_clipping_and_gripper() -> None:
    instructions = ["turn on the stove", "open it"]
    policy = OpenVLAPolicy.fresh(nano(), instructions, unnorm_key="x")
    policy.statistics = replace(policy.statistics, q01=np.full(7, -3.0, np.float32), q99=np.full(7, 5.0, np.float32))
    size, cameras = policy.config.image_size, policy.config.num_cameras
    images = DRAW.integers(0, 256, (2, cameras, size, size, 3), dtype=np.uint8)
    proprio = DRAW.normal(size=(2, policy.config.proprio_dim)).astype(np.float32)
    acted, updated = parity.decide(policy, Cases(images, proprio, instructions, []))
    assert acted.tokens is not None
    assert updated.log_prob is not None
    shape = (2, policy.chunk_len, 7)
    assert np.array_equal(
        acted.actions, unnormalise_actions(decode_tokens(acted.tokens).reshape(shape), policy.statistics)
    )
    assert np.abs(acted.actions).max() > 1
    assert parity.judge("ours", acted, updated)
    assert not parity.judge("ours", acted, replace(updated, log_prob=updated.log_prob + 0.01))


def test_what_can_not_be_compared_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity.main(["openvla_oft", "--reference", str(tmp_path)]) == 2
    assert parity.main(["openvla", "--reference", str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "openvla_oft needs --transformers" in said[0]
    assert "no checkout of git" in said[1]
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with pytest.raises(UserError, match=r"cannot be imported .*pip install --no-deps transformers==4.40.1"):
        Authors("openvla", tmp_path, None)
