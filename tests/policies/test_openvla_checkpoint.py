"""Presets, published key names and counts, and strict all-or-nothing checkpoints."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.openvla.checkpoint import load_policy, save_policy
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, config_from_json, nano, openvla_7b, preset, tiny
from embodied_rl.policies.openvla.model import OpenVLAModel
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation
from embodied_rl.utils import output


def _policy(seed: int = 0) -> OpenVLAPolicy:
    config = nano(image_size=32, vision_dim=32, dim=64, mlp_dim=96, text_vocab=64, chunk_len=2)
    policy = OpenVLAPolicy.fresh(config, ["open the drawer", "close it"], seed=seed, unnorm_key="tabletop_goal")
    policy.temperature = 1.6
    return policy


def _meta(config: OpenVLAModelConfig) -> OpenVLAModel:
    with torch.device("meta"):
        return OpenVLAModel(config)


def test_7b_is_the_published_model() -> None:
    model = _meta(openvla_7b())
    published = {name: p for name, p in model.named_parameters() if not name.startswith("value_head")}
    assert sum(p.numel() for p in published.values()) == 7_541_237_184
    for name, shape in {
        "vision_backbone.featurizer.reg_token": (1, 4, 1024),
        "vision_backbone.featurizer.pos_embed": (1, 256, 1024),
        "vision_backbone.featurizer.blocks.23.ls2.scale_factor": (1024,),
        "vision_backbone.fused_featurizer.blocks.26.mlp.fc1.weight": (4304, 1152),
        "vision_backbone.fused_featurizer.attn_pool.latent": (1, 1, 1152),
        "vision_backbone.fused_featurizer.patch_embed.proj.weight": (1152, 3, 14, 14),
        "projector.fc1.weight": (8704, 2176),
        "projector.fc2.weight": (4096, 8704),
        "projector.fc3.bias": (4096,),
        "language_model.model.embed_tokens.weight": (32064, 4096),
        "language_model.model.layers.31.self_attn.q_proj.weight": (4096, 4096),
        "language_model.model.layers.0.mlp.down_proj.weight": (4096, 11008),
        "language_model.model.norm.weight": (4096,),
        "language_model.lm_head.weight": (32064, 4096),
    }.items():
        assert tuple(published[name].shape) == shape, name
    assert (model.action_rows.start, model.action_rows.stop) == (31744, 32000)


def test_parameters_that_never_run_are_frozen() -> None:
    model = _meta(openvla_7b())
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    prefixes = (
        "featurizer.blocks.23.",
        "featurizer.norm.",
        "fused_featurizer.blocks.26.",
        "fused_featurizer.norm.",
        "fused_featurizer.attn_pool.",
    )
    assert frozen
    assert all(name.removeprefix("vision_backbone.").startswith(prefixes) for name in frozen)


def test_small_presets_have_their_size() -> None:
    assert 0.6e6 < sum(p.numel() for p in _meta(nano()).parameters()) < 1.1e6
    assert 4e6 < sum(p.numel() for p in _meta(tiny()).parameters()) < 8e6
    with pytest.raises(UserError, match="Did you mean 'nano'"):
        preset("nanno")


@pytest.mark.parametrize("name", ["nano", "tiny", "7b"])
def test_config_json_round_trip(name: str) -> None:
    config = preset(name)
    assert config_from_json(json.loads(json.dumps(asdict(config))), type(config)) == config


def test_save_load_save_is_bit_identical(tmp_path: Path) -> None:
    policy = _policy()
    save_policy(policy, tmp_path / "a", {"command": "test", "seed": 1})
    loaded = load_policy(tmp_path / "a")
    save_policy(loaded, tmp_path / "b", read_provenance(tmp_path / "a"))
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    data = ["dataset_statistics.json", "model.safetensors", "provenance.json", "tokenizer.json"]
    assert names == ["checksums.json", "config.json", *data]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert (loaded.temperature, loaded.unnorm_key) == (1.6, "tabletop_goal")
    images, proprio = np.full((2, 2, 32, 32, 3), 7, np.uint8), np.ones((2, 8), np.float32)
    obs = Observation.from_numpy(images, proprio, ["open the drawer", "close it"])
    rng = DecisionRng(np.arange(2), np.zeros(2, int))
    one, two = policy.act(obs, rng, "sample"), loaded.act(obs, rng, "sample")
    assert torch.equal(one.log_prob, two.log_prob)
    assert torch.equal(one.replay["tokens"], two.replay["tokens"])
    assert all(p.requires_grad for p in loaded.parameters())


def test_saving_over_a_checkpoint_leaves_nothing_behind(tmp_path: Path) -> None:
    for seed in (0, 1):
        save_policy(_policy(seed), tmp_path / "ck", {"seed": seed})
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]
    assert read_provenance(tmp_path / "ck") == {"seed": 1}


def test_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_policy(_policy(), tmp_path / "ck", {"seed": 0})
    before = {path.name: path.read_bytes() for path in (tmp_path / "ck").iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(output.os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device.*previous checkpoint"):
        save_policy(_policy(1), tmp_path / "ck", {"seed": 1})
    assert {path.name: path.read_bytes() for path in (tmp_path / "ck").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]


def test_kill_between_the_renames_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _saved(tmp_path)
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if target == folder:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        save_policy(_policy(1), folder, {"seed": 1})
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"interrupted.*mv ") as error:
        load_policy(folder)
    Path(str(error.value).split("mv ")[1].split(" ")[0]).rename(folder)
    load_policy(folder)


def _saved(tmp_path: Path) -> Path:
    save_policy(_policy(), tmp_path / "ck", {})
    return tmp_path / "ck"


def test_every_wrong_parameter_is_named(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    state = load_file(folder / "model.safetensors")
    del state["projector.fc1.bias"]
    state["projector.fc9.bias"] = torch.zeros(2)
    state["projector.fc3.bias"] = torch.zeros(5)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(UserError) as error:
        load_policy(folder)
    for part in (
        "missing projector.fc1.bias",
        "unexpected projector.fc9.bias",
        "projector.fc3.bias is [5], expected [64]",
    ):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_truncated_weights(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors is corrupt"):
        load_policy(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "dataset_statistics.json"])
def test_missing_file(tmp_path: Path, name: str) -> None:
    folder = _saved(tmp_path)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        load_policy(folder)


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_wrong_configs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint folder"):
        load_policy(tmp_path / "nowhere")
    folder = _saved(tmp_path)
    original = (folder / "config.json").read_text()
    model = json.loads(original)["model"]
    for changes, message in (
        ({"architecture": "pi0"}, "architecture 'pi0', not 'openvla'"),
        ({"format": 99}, "format 99"),
        ({"model": {"chunk_len": 2}}, "lacks action_token_end"),
        ({"model": model | {"chunk_length": 2}}, "unknown key 'model.chunk_length'.*Did you mean 'chunk_len'"),
        ({"model": model | {"action_token_end": 3}}, "no usable model"),
        ({"unnorm_key": "tabletop_gaol"}, "Did you mean 'tabletop_goal'"),
    ):
        (folder / "config.json").write_text(original)
        _edit(folder / "config.json", **changes)
        with pytest.raises(UserError, match=message):
            load_policy(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        load_policy(folder)
