"""Presets, published key names and counts, our folders and those of openpi and LeRobot, prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.checkpoint import load_policy, save_policy
from embodied_rl.policies.pi0.config import Pi0ModelConfig, nano, pi0_base, pi05_base, pi05_libero, preset, tiny
from embodied_rl.policies.pi0.hf_format import load_published, read_statistics, save_published
from embodied_rl.policies.pi0.hf_keys import OURS_ALONE, to_published
from embodied_rl.policies.pi0.model import Pi0Model
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.pi0.prompt import Pi0Prompt, state_bins, state_prompt, word_tokenizer
from tests.policies.pi0_models import KINDS, decision_rng, observation, statistics, tiny_policy

FLOW = FlowSettings(exploration="flow_noise", num_inference_steps=3, noise_range=(0.1, 0.2), loss_samples=2)
LMHEAD = "paligemma_with_expert.paligemma.lm_head.weight"
TWIN = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
EXPERT_HEAD = "paligemma_with_expert.gemma_expert.lm_head.weight"


def _meta(config: Pi0ModelConfig) -> Pi0Model:
    with torch.device("meta"):
        return Pi0Model(config)


def _published_shapes(adaptive: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of the published files, written out from their layout."""
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, wide: int, narrow: int, *, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (wide, narrow)
        if bias:
            shapes[f"{name}.bias"] = (wide,)

    base = "paligemma_with_expert."
    tower = f"{base}paligemma.model.vision_tower.vision_model."
    shapes |= {
        f"{tower}embeddings.patch_embedding.weight": (1152, 3, 14, 14),
        f"{tower}embeddings.patch_embedding.bias": (1152,),
        f"{tower}embeddings.position_embedding.weight": (256, 1152),
        f"{tower}post_layernorm.weight": (1152,),
        f"{tower}post_layernorm.bias": (1152,),
    }
    for layer in range(27):
        at = f"{tower}encoder.layers.{layer}."
        for norm in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{at}{norm}.weight": (1152,), f"{at}{norm}.bias": (1152,)}
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{at}self_attn.{part}", 1152, 1152)
        linear(f"{at}mlp.fc1", 4304, 1152)
        linear(f"{at}mlp.fc2", 1152, 4304)
    linear(f"{base}paligemma.model.multi_modal_projector.linear", 2048, 1152)
    shapes[LMHEAD] = (257152, 2048)
    shapes[EXPERT_HEAD] = (257152, 1024)
    for stream, width, hidden, adapted in (
        (f"{base}paligemma.model.language_model.", 2048, 16384, False),
        (f"{base}gemma_expert.model.", 1024, 4096, adaptive),
    ):
        norms = [f"{stream}norm"]
        for layer in range(18):
            at = f"{stream}layers.{layer}."
            norms += [f"{at}input_layernorm", f"{at}post_attention_layernorm"]
            for part, out in (("q_proj", 2048), ("k_proj", 256), ("v_proj", 256)):
                linear(f"{at}self_attn.{part}", out, width, bias=False)
            linear(f"{at}self_attn.o_proj", width, 2048, bias=False)
            linear(f"{at}mlp.gate_proj", hidden, width, bias=False)
            linear(f"{at}mlp.up_proj", hidden, width, bias=False)
            linear(f"{at}mlp.down_proj", width, hidden, bias=False)
        for norm in norms:
            if adapted:
                linear(f"{norm}.dense", 3 * width, width)
            else:
                shapes[f"{norm}.weight"] = (width,)
    linear("action_in_proj", 1024, 32)
    linear("action_out_proj", 32, 1024)
    if adaptive:
        linear("time_mlp_in", 1024, 1024)
        linear("time_mlp_out", 1024, 1024)
    else:
        linear("state_proj", 1024, 32)
        linear("action_time_mlp_in", 1024, 2048)
        linear("action_time_mlp_out", 1024, 1024)
    return shapes


@pytest.mark.parametrize(
    ("config", "parameters", "count"), [(pi0_base(), 3_501_372_176, 777), (pi05_base(), 3_616_757_520, 812)]
)
def test_the_published_models(config: Pi0ModelConfig, parameters: int, count: int) -> None:
    """LeRobot's logs say 3501372176 and 3616757520 parameters; pi05_base's file has 812 tensors."""
    published = {name: tuple(tensor.shape) for name, tensor in to_published(_meta(config).state_dict()).items()}
    assert published == _published_shapes(config.adaptive)
    assert len(published) == count
    assert sum(int(np.prod(shape)) for shape in published.values()) == parameters
    ours = sum(p.numel() for name, p in _meta(config).named_parameters() if not name.startswith(OURS_ALONE))
    assert ours == parameters


def test_presets() -> None:
    count = {name: sum(p.numel() for p in _meta(preset(name)).parameters()) for name in ("nano", "tiny", "nano_pi05")}
    assert 0.8e6 < count["nano"] < 1.3e6
    assert 0.8e6 < count["nano_pi05"] < 1.5e6
    assert 3e6 < count["tiny"] < 8e6
    assert (pi05_libero().horizon, pi05_libero().state_input, pi0_base().horizon) == (10, "none", 50)
    assert (nano().adaptive, pi05_base().adaptive, tiny().state_input) == (False, True, "token")
    with pytest.raises(UserError, match="Did you mean 'pi0_base'"):
        preset("pi0_bas")


@pytest.mark.parametrize("kind", KINDS)
def test_save_load_save_is_bit_identical(kind: str, tmp_path: Path) -> None:
    policy = tiny_policy(kind, FLOW)
    policy.robots = {"tabletop_goal": policy.robots["default"]}
    policy.select("tabletop_goal")
    save_policy(policy, tmp_path / "a", {"command": "test", "seed": 1})
    loaded = load_policy(tmp_path / "a")
    save_policy(loaded, tmp_path / "b", read_provenance(tmp_path / "a"))
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    data = ["dataset_statistics.json", "model.safetensors", "provenance.json", "tokenizer.json"]
    assert names == ["checksums.json", "config.json", *data]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert (loaded.flow, loaded.config, loaded.unnorm_key) == (FLOW, policy.config, "tabletop_goal")
    obs, rng = observation(2), decision_rng(2)
    np.testing.assert_array_equal(policy.act(obs, rng, "sample").actions, loaded.act(obs, rng, "sample").actions)
    frozen = {name for name, p in loaded.model.named_parameters() if not p.requires_grad}
    assert frozen == {"expert_head.weight"}
    loaded.sft_loss(obs.images, obs.proprio, obs.instruction, torch.zeros(2, 5, 3)).backward()


def test_every_wrong_parameter_of_our_folder_is_named(tmp_path: Path) -> None:
    save_policy(tiny_policy(), tmp_path / "ck", {})
    state = load_file(tmp_path / "ck" / "model.safetensors")
    del state["projector.bias"]
    state |= {"projector.base": torch.zeros(2), "state_proj.bias": torch.zeros(5)}
    save_file(state, tmp_path / "ck" / "model.safetensors")
    with pytest.raises(UserError) as error:
        load_policy(tmp_path / "ck")
    for part in ("missing projector.bias", "unexpected projector.base", "state_proj.bias is [5], expected [16]"):
        assert part in str(error.value)


def test_wrong_configs_of_our_folder(tmp_path: Path) -> None:
    save_policy(tiny_policy(), tmp_path / "ck", {})
    path = tmp_path / "ck" / "config.json"
    original = json.loads(path.read_text())
    for changes, message in (
        ({"architecture": "openvla"}, "architecture 'openvla', not 'pi0'"),
        ({"model": original["model"] | {"horizn": 2}}, "unknown key 'model.horizn'.*Did you mean 'horizon'"),
        ({"model": original["model"] | {"chunk_len": 99}}, "no usable model.*1..horizon"),
        ({"flow": {"exploration": "flow_ode"}}, "flow_ode"),
        ({"unnorm_key": "defualt"}, "Did you mean 'default'"),
    ):
        path.write_text(json.dumps(original | changes))
        with pytest.raises(UserError, match=message):
            load_policy(tmp_path / "ck")


def _exported(policy: Pi0Policy, folder: Path, layout: Any) -> Path:
    """The published files of `policy`, and beside them the tokenizer, which belongs to neither layout."""
    save_published(policy, folder, layout, ("image", "wrist_image"), {"command": "test"})
    policy.prompt.tokenizer.save(str(folder.parent / "tokenizer.json"))
    return folder


def _imported(folder: Path, policy: Pi0Policy, **options: Any) -> Pi0Policy:
    stats = read_statistics(folder, "quantiles", policy.config)
    options = {"flow": policy.flow, "unnorm_key": policy.unnorm_key} | options
    return load_published(folder, policy.config, stats, folder.parent / "tokenizer.json", **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["openpi", "lerobot"])
def test_published_save_load_save_is_bit_identical(kind: str, layout: str, tmp_path: Path) -> None:
    policy = tiny_policy(kind, FLOW)
    folder = _exported(policy, tmp_path / "a", layout)
    loaded = _imported(folder, policy)
    for name, tensor in policy.model.state_dict().items():
        if not name.startswith(OURS_ALONE):
            assert torch.equal(tensor, loaded.model.state_dict()[name]), name
    again = _exported(loaded, tmp_path / "b", layout)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    statistics_file = "assets/default/norm_stats.json" if layout == "openpi" else "stats.json"
    assert names == sorted(["config.json", "model.safetensors", "provenance.json", statistics_file])
    for name in ("model.safetensors", statistics_file):
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name
    file = load_file(folder / "model.safetensors")
    assert all(name.startswith("model.") == (layout == "lerobot") for name in file)
    assert TWIN not in file


def _replaced(folder: Path, change: Any) -> None:
    state = load_file(folder / "model.safetensors")
    save_file(change(state), folder / "model.safetensors")


def test_fresh_heads_are_the_same_every_time_and_the_critic_starts_at_zero(tmp_path: Path) -> None:
    policy = tiny_policy()
    folder = _exported(policy, tmp_path / "a", "openpi")
    one, two = _imported(folder, policy), _imported(folder, policy)
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name]), name
    assert one.model.state_dict()["value_head.4.weight"].abs().max() == 0
    assert _imported(folder, policy, dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_the_tied_embedding_may_stand_under_either_name(tmp_path: Path) -> None:
    policy = tiny_policy()
    folder = _exported(policy, tmp_path / "a", "openpi")

    def both(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return state | {TWIN: state[LMHEAD].clone()}

    def only_input(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in state.items() if name != LMHEAD}

    def different(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return state | {LMHEAD: state[TWIN] + 1}

    for change in (both, only_input):
        _replaced(folder, change)
        loaded = _imported(folder, policy)
        assert torch.equal(loaded.model.language.embed_tokens.weight, policy.model.language.embed_tokens.weight)
    _replaced(folder, different)
    with pytest.raises(UserError, match="differ, but pi0 ties them"):
        _imported(folder, policy)


def test_the_unused_expert_head_may_be_missing(tmp_path: Path) -> None:
    policy = tiny_policy()
    folder = _exported(policy, tmp_path / "a", "lerobot")
    _replaced(folder, lambda s: {name: tensor for name, tensor in s.items() if not name.endswith(EXPERT_HEAD)})
    assert _imported(folder, policy).config.expert_head_rows == 0


def test_every_wrong_published_parameter_is_named(tmp_path: Path) -> None:
    policy = tiny_policy()
    folder = _exported(policy, tmp_path / "a", "openpi")

    def broken(state: dict[str, Tensor]) -> dict[str, Tensor]:
        del state["state_proj.bias"]
        tower = "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
        return state | {
            "time_mlp_in.bias": torch.zeros(3),
            f"{tower}encoder.layers.1.self_attn.k_proj.bias": torch.zeros(9),
        }

    _replaced(folder, broken)
    with pytest.raises(UserError) as error:
        _imported(folder, policy)
    for part in (
        "missing state_proj.bias",
        "unexpected time_mlp_in.bias",
        "encoder.layers.1.self_attn.k_proj.bias is [9], expected [16]",
    ):
        assert part in str(error.value)


def test_what_cannot_be_published_is_refused(tmp_path: Path) -> None:
    learned = tiny_policy(learned_positions=True)
    with pytest.raises(UserError, match="learned positions"):
        save_published(learned, tmp_path / "x", "openpi", ("a", "b"), {})
    with pytest.raises(UserError, match="2 cameras, 1 names"):
        save_published(tiny_policy(), tmp_path / "x", "lerobot", ("a",), {})
    assert list(tmp_path.iterdir()) == []


def test_lerobot_config_describes_the_policy(tmp_path: Path) -> None:
    config = json.loads((_exported(tiny_policy("pi05"), tmp_path / "a", "lerobot") / "config.json").read_text())
    assert config["type"] == "pi05"
    assert set(config["input_features"]) == {
        "observation.images.image",
        "observation.images.wrist_image",
        "observation.state",
    }
    assert (config["chunk_size"], config["n_action_steps"], config["num_inference_steps"]) == (5, 3, 4)
    assert config["normalization_mapping"] == {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "QUANTILES"}


def _table(length: int) -> dict[str, list[float]]:
    return {"mean": [0.1] * length, "std": [0.2] * length, "q01": [-0.3] * length, "q99": [0.4] * length}


def test_statistics_of_each_layout(tmp_path: Path) -> None:
    config = tiny_policy().config
    openpi = tmp_path / "pi" / "assets" / "physical-intelligence" / "libero" / "norm_stats.json"
    openpi.parent.mkdir(parents=True)
    openpi.write_text(json.dumps({"norm_stats": {"state": _table(32), "actions": _table(32)}}))
    lerobot = tmp_path / "le" / "policy_preprocessor_step_5_normalizer_processor.safetensors"
    lerobot.parent.mkdir()
    save_file(
        {
            f"{key}.{name}": torch.tensor(values)
            for key in ("observation.state", "action")
            for name, values in _table(3 if key == "action" else 2).items()
        },
        lerobot,
    )
    for source in (tmp_path / "pi", openpi, lerobot.parent, lerobot):
        stats = read_statistics(source, "mean_std", config)
        assert (stats.action.dim, stats.state.dim, stats.action.mode) == (3, 2, "mean_std")
        np.testing.assert_allclose(stats.state.stats["q99"], [0.4, 0.4])


def test_unclear_or_missing_statistics_are_refused(tmp_path: Path) -> None:
    config = tiny_policy().config
    with pytest.raises(UserError, match="has no statistics"):
        read_statistics(tmp_path, "quantiles", config)
    for name in ("trossen", "droid"):
        path = tmp_path / "assets" / name / "norm_stats.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"norm_stats": {"state": _table(2), "actions": _table(2)}}))
    with pytest.raises(UserError, match=r"several.*assets/droid/norm_stats\.json, assets/trossen/norm_stats\.json"):
        read_statistics(tmp_path, "quantiles", config)
    with pytest.raises(UserError, match=r"actions\.mean has shape \[2\], the model needs \[3\]"):
        read_statistics(path, "quantiles", config)
    path.write_text(json.dumps({"norm_stats": {"state": _table(2), "velocity": _table(3)}}))
    with pytest.raises(UserError, match="no statistics of actions or action, only of state, velocity"):
        read_statistics(path, "quantiles", config)
    table = {"mean": [0.0] * 3, "std": [1.0] * 3, "q01": None, "q99": None}
    path.write_text(json.dumps({"norm_stats": {"state": table, "actions": table}}))
    with pytest.raises(UserError, match="needs q01 and q99, the statistics have only mean, std"):
        read_statistics(path, "quantiles", config)


def test_prompts_are_openpis() -> None:
    state = np.array([-1.5, -1.0, -0.99, 0.0, 0.999, 2.0], np.float32)
    edges = np.linspace(-1, 1, 257)[:-1]
    bins = [max((i for i, edge in enumerate(edges) if edge <= value), default=-1) for value in state.tolist()]
    assert state_bins(state).tolist() == bins == [-1, 0, 1, 128, 255, 255]
    assert state_prompt(" pick_up\nit ", state_bins(state[2:4])) == "Task: pick up it, State: 1 128;\nAction: "
    words = {"<bos>": 0, "pick up it": 1, "\n": 2}
    prompt = Pi0Prompt(Tokenizer(models.WordLevel(words, unk_token="<bos>")), 3)
    assert prompt.batch(["pick_up it "], None)[0].tolist() == [[0, 1, 2]]
    with pytest.raises(UserError, match="has 3 tokens, the model 2"):
        Pi0Prompt(prompt.tokenizer, 2)
    with pytest.raises(UserError, match="none of <bos>"):
        Pi0Prompt(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), 3)


def test_word_tokenizer_knows_the_numbers_of_a_state() -> None:
    prompt = Pi0Prompt(word_tokenizer(["open the drawer"], 320, with_state=True), 320)
    unknown = prompt.tokenizer.token_to_id("<unk>")
    ids, lengths = prompt.batch(["open the drawer", "open"], np.array([[-2.0, 0.3], [0.999, -0.2]], np.float32))
    assert unknown not in ids
    assert lengths[0] > lengths[1]
    assert (ids[1, lengths[1] :] == ids[0, 0]).all()
    assert statistics().state.mode == "mean_std"
