"""`export --verify`: an export acts as its source, in transformers too; one that doesn't is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.jobs import verify_export
from embodied_rl.jobs.verify_export import observations, verify
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.hf_format import assign_published, save_published
from embodied_rl.policies.pi0.hf_keys import canonical, from_published
from embodied_rl.policies.pi0.policy import Pi0Policy
from tests.policies.pi0_models import tiny_policy


def tamper(folder: Path) -> None:
    """Another bias of the last layer."""
    path = next(folder.glob("*.safetensors"))
    state = load_file(path)
    (name,) = [name for name in state if name.endswith("action_out_proj.bias")]
    state[name] = state[name] + 0.5
    save_file(state, path)


@pytest.fixture
def pi0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Pi0Policy, Path]:
    """A pi0 of published architecture, and its export; its size is none of the presets', so the reader gets it."""
    policy = tiny_policy(flow=FlowSettings(num_inference_steps=4), expert_head_rows=320)
    out = tmp_path / "exported"
    save_published(policy, out, "lerobot", ("a", "b"), {})
    monkeypatch.setattr(verify_export, "load_policy", lambda folder, _: from_export(folder))
    return policy, out


def from_export(folder: Path) -> Pi0Policy:
    policy = tiny_policy(flow=FlowSettings(num_inference_steps=4), expert_head_rows=320, seed=5)
    found = canonical(load_file(next(folder.glob("*.safetensors"))), folder)
    assign_published(policy, from_published(found, policy.model.state_dict(), folder), torch.float32)
    return policy


def test_pi0_acts_alike_in_transformers_and_a_changed_file_is_found(pi0: tuple[Pi0Policy, Path]) -> None:
    policy, out = pi0
    found = verify(policy, out, "lerobot", "", None)
    assert [item.reader for item in found] == ["embodied-rl, from the files alone", "transformers' PI0"]
    assert found[0].difference == 0.0
    assert found[1].difference < 1e-4
    tamper(out)
    with pytest.raises(UserError, match="OTHER ACTIONS read back by embodied-rl"):
        verify(policy, out, "lerobot", "", None)


def test_a_small_policy_is_verified_by_the_command(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "--checkpoint", str(checkpoint), "--layout", "native", "--verify"]
    assert main([*words, "--out", str(tmp_path / "same")]) == 0
    assert "the same actions read back by embodied-rl" in capsys.readouterr().out


@pytest.mark.usefixtures("stand_in")
def test_observations_are_those_of_the_suite_or_drawn(checkpoint: Path) -> None:
    from embodied_rl.factory.policies import open_policy

    policy = open_policy(str(checkpoint), "cpu")
    recorded, drawn = observations(policy, "tabletop_object"), observations(policy, "")
    for obs in (recorded, drawn):
        obs.check()
        assert len(obs.instruction) == 8
        assert obs.images.shape[1:] == (
            policy.config.num_cameras,
            policy.config.image_size,
            policy.config.image_size,
            3,
        )
    assert not torch.equal(recorded.images, drawn.images)
    assert "basket" in recorded.instruction[0]
