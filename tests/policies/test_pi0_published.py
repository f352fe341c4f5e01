"""What a published pi0's config.json says, what the user typed and what runs agree, or are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.policies.pi0 import checkpoint
from embodied_rl.policies.pi0.checkpoint import Pi0Options, load
from embodied_rl.policies.pi0.hf_format import save_published
from embodied_rl.policies.pi0.policy import Pi0Policy
from tests.policies.pi0_models import decision_rng, observation, tiny_config, tiny_policy


@pytest.fixture(autouse=True)
def _tiny_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"pi0_base": "pi0", "pi05_libero": "pi05_no_state"}
    monkeypatch.setattr(checkpoint, "preset", lambda name: replace(tiny_config(kinds[name]), expert_head_rows=0))


def _folder(path: Path, layout: Any, kind: str = "pi0", **changes: Any) -> Path:
    """A published folder, with `changes` to its config.json; None takes a key out."""
    policy = tiny_policy(kind)
    save_published(policy, path, layout, ("image", "wrist"), {})
    policy.prompt.tokenizer.save(str(path / "tokenizer.json"))
    file = path / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


def _load(folder: Path, **options: Any) -> Pi0Policy:
    given: dict[str, Any] = {
        "preset": "pi0_base",
        "tokenizer": str(folder / "tokenizer.json"),
        "normalisation": "quantiles",
    }
    return load(folder, Pi0Options(**(given | options)))


def _mapping(state: str, action: str, visual: str = "IDENTITY") -> dict[str, Any]:
    return {"normalization_mapping": {"STATE": state, "ACTION": action, "VISUAL": visual}}


LEROBOT: list[tuple[dict[str, Any], str]] = [
    ({"chunk_size": 50}, "chunk_size 50, and what would run has 5"),
    ({"type": "pi05"}, "type 'pi05', and what would run has 'pi0'"),
    ({"max_action_dim": 32}, "max_action_dim 32"),
    ({"max_state_dim": 32}, "max_state_dim 32"),
    ({"image_resolution": [448, 448]}, "image_resolution"),
    ({"adapt_to_pi_aloha": True}, "adapt_to_pi_aloha True"),
    ({"use_delta_joint_actions_aloha": True}, "use_delta_joint_actions_aloha True"),
    ({"use_relative_actions": True}, "use_relative_actions True, but not for which dimensions"),
    ({"n_obs_steps": 2}, "n_obs_steps 2"),
    ({"n_action_steps": 9}, "chunk_len must lie in 1..horizon, got 9"),
    ({"n_action_steps": "3"}, "must be whole numbers"),
    ({"num_inference_steps": 1}, "too few"),
    ({"output_features": {"action": {"type": "ACTION", "shape": [7]}}}, r"action shape \[7\], .* has \[3\]"),
    ({"input_features": {}}, "cameras in input_features 0, and what would run has 2"),
    ({"input_features": {"observation.images.a": {}}}, "is unusable"),
    (_mapping("MIN_MAX", "MIN_MAX"), "config.json normalises STATE by MIN_MAX, and what would run by QUANTILES"),
    (_mapping("QUANTILES", "MEAN_STD"), "config.json normalises ACTION by MEAN_STD"),
    (_mapping("QUANTILES", "QUANTILES", "MEAN_STD"), "config.json normalises VISUAL by MEAN_STD"),
]


@pytest.mark.parametrize(("changes", "message"), LEROBOT)
def test_lerobots_config_is_heeded(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", "lerobot", **(_mapping("QUANTILES", "QUANTILES") | changes))
    with pytest.raises(UserError, match=message):
        _load(folder)


def test_what_lerobots_config_says_runs(tmp_path: Path) -> None:
    changes: Any = _mapping("QUANTILES", "QUANTILES") | {"n_action_steps": 4, "num_inference_steps": 7, "chunk_size": 9}
    folder = _folder(tmp_path / "a", "lerobot", **changes)
    policy = _load(folder, horizon=9)
    assert (policy.config.horizon, policy.chunk_len, policy.flow.num_inference_steps) == (9, 4, 7)
    assert _load(folder, horizon=9, chunk_len=2).chunk_len == 2
    with pytest.raises(UserError, match="normalises STATE by QUANTILES, and what would run by MEAN_STD"):
        _load(folder, horizon=9, normalisation="mean_std")


def test_one_camera_more_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    for name, refused in (("empty_camera_0", False), ("third", True)):
        folder = _folder(tmp_path / name, "lerobot", **_mapping("QUANTILES", "QUANTILES"))
        file = folder / "config.json"
        config = json.loads(file.read_text())
        config["input_features"][f"observation.images.{name}"] = {"type": "VISUAL", "shape": [3, 28, 28]}
        file.write_text(json.dumps(config))
        if refused:
            with pytest.raises(UserError, match="cameras in input_features 3"):
                _load(folder)
        else:
            assert _load(folder).config.num_cameras == 2


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            {"registry_name": "normalizer_processor", "config": {"norm_map": {"ACTION": "MIN_MAX"}}},
            "policy_preprocessor.json normalises ACTION by MIN_MAX",
        ),
        ({"registry_name": "relative_actions_processor", "config": {}}, "relative to the state, of which"),
        ({"registry_name": "delta_actions_processor", "config": {"enabled": False}}, ""),
    ],
)
def test_lerobots_pipelines_must_say_the_same(step: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", "lerobot", **_mapping("QUANTILES", "QUANTILES"))
    (folder / "policy_preprocessor.json").write_text(json.dumps({"steps": [step]}))
    if message:
        with pytest.raises(UserError, match=message):
            _load(folder)
    else:
        assert _load(folder).config.delta_dims == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_horizon": 50}, "action_horizon 50, and what would run has 5"),
        ({"action_dim": 32}, "action_dim 32"),
        ({"paligemma_variant": "gemma_2b"}, "paligemma_variant 'gemma_2b'"),
        ({"action_expert_variant": "gemma_300m_lora"}, "action_expert_variant"),
        ({"pi05": True}, "pi05 True"),
        ({"extra_delta_transform": None}, "say --extra-delta-transform True or --extra-delta-transform False"),
    ],
)
def test_openpis_config_is_heeded(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        _load(_folder(tmp_path / "a", "openpi", **changes))


def test_whether_actions_are_minus_the_state_comes_from_whoever_says_it(tmp_path: Path) -> None:
    said = _folder(tmp_path / "said", "openpi", extra_delta_transform=True)
    assert _load(said).config.delta_dims == 2
    assert _load(said, extra_delta_transform=True).config.delta_dims == 2
    with pytest.raises(UserError, match="says extra_delta_transform True, and --extra-delta-transform is False"):
        _load(said, extra_delta_transform=False)
    silent = _folder(tmp_path / "silent", "openpi", extra_delta_transform=None)
    assert _load(silent, extra_delta_transform=True).config.delta_dims == 2
    assert _load(silent, extra_delta_transform=False).config.delta_dims == 0
    libero = _folder(tmp_path / "libero", "openpi", "pi05_no_state", extra_delta_transform=None)
    assert _load(libero, preset="pi05_libero").config.delta_dims == 0
    relative = _folder(
        tmp_path / "relative", "lerobot", use_relative_actions=True, **_mapping("QUANTILES", "QUANTILES")
    )
    assert _load(relative, extra_delta_transform=True).config.delta_dims == 2
    with pytest.raises(UserError, match="says use_relative_actions True"):
        _load(relative, extra_delta_transform=False)


def test_the_state_is_added_to_all_but_the_gripper_before_clipping() -> None:
    plain, delta = tiny_policy(), tiny_policy(delta_dims=2)
    obs = observation(4)
    obs.proprio *= 0.1
    one, two = (policy.act(obs, decision_rng(4), "greedy") for policy in (plain, delta))
    wanted = one.actions + torch.nn.functional.pad(obs.proprio[:, None, :2], (0, 1))
    inside = one.actions.abs() < 1  # the others were clipped before the state could be added
    assert inside.float().mean() > 0.5
    np.testing.assert_allclose(two.actions[inside], wanted.clamp(-1, 1)[inside], atol=1e-6)
    assert not np.allclose(two.actions, one.actions)
    assert torch.equal(one.log_prob, two.log_prob)
    obs.proprio[0] = 50.0
    assert (delta.act(obs, decision_rng(4), "greedy").actions[0, :, :2] == 1).all()


def test_imitation_of_actions_minus_the_state_is_that_of_their_differences() -> None:
    plain, delta = tiny_policy(), tiny_policy(delta_dims=2)
    obs = observation(3)
    actions = torch.rand(3, 5, 3) - 0.5
    state = torch.nn.functional.pad(obs.proprio[:, None, :2], (0, 1))
    inputs = obs.images, obs.proprio, obs.instruction
    one, two = (
        policy.eval().sft_loss(*inputs, wanted).item()
        for policy, wanted in ((plain, actions), (delta, actions + state))
    )
    assert one == pytest.approx(two, rel=1e-5)


def test_an_own_folder_says_it_itself(tmp_path: Path) -> None:
    checkpoint.save_policy(tiny_policy(delta_dims=2), tmp_path / "own", {})
    assert load(tmp_path / "own", Pi0Options()).config.delta_dims == 2
    options: list[dict[str, Any]] = [{"extra_delta_transform": True}, {"horizon": 5}, {"normalisation": "quantiles"}]
    for option in options:
        with pytest.raises(UserError, match=f"leave the option {next(iter(option)).replace('_', '-')} out"):
            load(tmp_path / "own", Pi0Options(**option))
