"""Published OpenVLA checkpoints: loaded whole and strictly, equal to transformers' models, written back bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints import shards
from embodied_rl.policies.checkpoints.folder import read_json
from embodied_rl.policies.checkpoints.hub import is_repository, resolve, source_name
from embodied_rl.policies.checkpoints.shards import read_sharded
from embodied_rl.policies.openvla import hf_format
from embodied_rl.policies.openvla.checkpoint import export_policy, load_policy, save_policy
from embodied_rl.policies.openvla.config import nano, openvla_7b
from embodied_rl.policies.openvla.hf_format import LoadOptions
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation
from tests.policies.published_files import (
    INSTRUCTIONS,
    SIZE,
    STATISTICS,
    VOCAB,
    Originals,
    originals,
    published_state,
    tiny_7b,
    write_folder,
    write_json,
)

KEY = "libero_spatial_no_noops"
OPTIONS = LoadOptions(architecture="openvla", unnorm_key=KEY)


@pytest.fixture(scope="module")
def models() -> Originals:
    return originals()


@pytest.fixture(autouse=True)
def _small_towers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published config.json names its towers and not their widths."""
    monkeypatch.setattr(hf_format, "openvla_7b", tiny_7b)


@pytest.fixture
def folder(models: Originals, tmp_path: Path) -> Path:
    write_folder(tmp_path / "published", published_state(models))
    return tmp_path / "published"


def _observation(policy: OpenVLAPolicy, rows: int = 3) -> Observation:
    generator, config = np.random.default_rng(0), policy.config
    images = generator.integers(0, 256, (rows, config.num_cameras, SIZE, SIZE, 3), dtype=np.uint8)
    return Observation.from_numpy(images, generator.standard_normal((rows, 8)).astype(np.float32), INSTRUCTIONS[:rows])


def _patches(models: Originals, image: np.ndarray) -> Tensor:
    """One image through both of transformers' towers: the block before the last, without class and register tokens."""
    pixels = torch.from_numpy(image).float().permute(2, 0, 1)[None] / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    dino = models.dino((pixels - mean[:, None, None]) / std[:, None, None], output_hidden_states=True)
    siglip = models.siglip((pixels - 0.5) / 0.5, output_hidden_states=True)
    return torch.cat([dino.hidden_states[-2][:, 5:], siglip.hidden_states[-2]], dim=-1)[0]


def _reference_log_probs(models: Originals, policy: OpenVLAPolicy, obs: Observation, tokens: Tensor) -> Tensor:
    """Row by row and token by token: BOS, patches, prompt, then each action token in turn."""
    table, out = models.llama.get_input_embeddings().weight, []
    for row, instruction in enumerate(obs.instruction):
        patches = models.projector(_patches(models, obs.images[row, 0].numpy()))
        bos, ids = table[policy.tokenizer.bos_id][None], policy.tokenizer.ids(instruction)
        x = torch.cat([bos, patches, torch.stack([table[i] for i in ids])])
        for token in tokens[row].tolist():
            logits = models.llama(inputs_embeds=x[None]).logits[0, -1, VOCAB - 256 : VOCAB]
            out.append(logits.log_softmax(-1)[token])
            x = torch.cat([x, table[VOCAB - 256 + token][None]])
    return torch.stack(out).view(tokens.shape)


@torch.no_grad()
def test_a_loaded_policy_equals_transformers_models(models: Originals, folder: Path) -> None:
    policy = load_policy(folder, OPTIONS)
    obs = _observation(policy)
    out = policy.act(obs, DecisionRng(np.arange(3), np.zeros(3, int)), "sample")
    expected = _reference_log_probs(models, policy, obs, out.replay["tokens"].long())
    torch.testing.assert_close(out.log_prob, expected, rtol=1e-5, atol=1e-5)
    images, proprio = obs.images, obs.proprio
    again = policy.evaluate(images, proprio, obs.instruction, out.replay)
    torch.testing.assert_close(again.log_prob, expected, rtol=1e-5, atol=1e-5)


def test_wrong_statistics_scale_the_action_wrongly(folder: Path) -> None:
    obs = _observation(load_policy(folder, OPTIONS))
    rng = DecisionRng(np.arange(3), np.zeros(3, int))
    one = load_policy(folder, OPTIONS).act(obs, rng, "greedy").actions
    other = load_policy(folder, LoadOptions(architecture="openvla", unnorm_key="libero_goal_no_noops"))
    two = other.act(obs, rng, "greedy").actions
    unit = (one[..., :6] + 0.5) / 1.2
    np.testing.assert_allclose(two[..., :6], np.clip(unit * 1.6 - 0.7, -1, 1), atol=1e-6)
    assert set(np.unique(one[..., 6])) <= {-1.0, 1.0}


def _export(source: Path, target: Path, options: LoadOptions | None = None) -> OpenVLAPolicy:
    policy = load_policy(source, options)
    export_policy(policy, target, {"command": "test"}, None)
    return policy


def _same_files(one: Path, two: Path) -> None:
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(two)) for path in two.rglob("*") if path.is_file())
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_save_load_save_is_bit_identical(models: Originals, folder: Path, tmp_path: Path) -> None:
    _export(folder, tmp_path / "a", OPTIONS)
    _export(tmp_path / "a", tmp_path / "b")
    _same_files(tmp_path / "a", tmp_path / "b")
    written = read_sharded(tmp_path / "a")
    for name, tensor in published_state(models).items():
        assert torch.equal(written.pop(name), tensor), name
    assert written == {}
    assert read_json(tmp_path / "a" / "dataset_statistics.json").keys() == STATISTICS.keys() | {"bridge_orig"}
    assert (tmp_path / "a" / "tokenizer_config.json").read_bytes() == (folder / "tokenizer_config.json").read_bytes()


def test_a_run_checkpoint_keeps_what_an_export_needs(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(folder, OPTIONS)
    save_policy(policy, tmp_path / "run", {})
    _export(tmp_path / "run", tmp_path / "a")
    _export(folder, tmp_path / "b", OPTIONS)
    _same_files(tmp_path / "a", tmp_path / "b")
    save_policy(load_policy(tmp_path / "run"), tmp_path / "again", {})
    _same_files(tmp_path / "run", tmp_path / "again")


def test_exports_are_sharded_as_transformers_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards.sharded_files, "__defaults__", (100_000,))
    _export(folder, tmp_path / "a", OPTIONS)
    index = read_json(tmp_path / "a" / "model.safetensors.index.json")
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    tensors = [load_file(tmp_path / "a" / file) for file in files]
    assert index["metadata"]["total_size"] == sum(t.nbytes for part in tensors for t in part.values())
    assert {name for part in tensors for name in part} == index["weight_map"].keys()
    _export(tmp_path / "a", tmp_path / "b")
    _same_files(tmp_path / "a", tmp_path / "b")


def test_export_command_casts_and_refuses(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "--checkpoint", str(folder), "--policy", "openvla", "--unnorm-key", KEY]
    assert main([*words, "--out", str(tmp_path / "half"), "--dtype", "bfloat16"]) == 0
    assert {t.dtype for t in read_sharded(tmp_path / "half").values()} == {torch.bfloat16}
    assert read_json(tmp_path / "half" / "config.json")["torch_dtype"] == "bfloat16"
    assert main([*words, "--out", str(tmp_path / "half")]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["export", "--out", str(tmp_path / "x")]) == 2
    assert "learned position vectors" in capsys.readouterr().err


def test_published_config_json_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    text = {"model_type": "llama", "pad_token_id": 32000, "torch_dtype": "bfloat16", "vocab_size": 32064}
    assert hf_format.model_config({"model_type": "openvla", "text_config": text}) == openvla_7b()
    other = hf_format.model_config({"text_config": text | {"rms_norm_eps": 1e-5, "rope_theta": 5e5}})
    assert (other.decoder.norm_eps, other.decoder.rope_theta) == (1e-5, 5e5)
    written = hf_format.public_config(openvla_7b(), "bfloat16")
    assert hf_format.model_config(written) == openvla_7b()
    assert written["timm_model_ids"][1] == "vit_so400m_patch14_siglip_224"
    for change in (
        {"arch_specifier": "no-align+gelu-mlp"},
        {"vision_backbone_id": "siglip-vit-so400m"},
        {"text_config": {"model_type": "mistral"}},
        {"text_config": {"rope_scaling": {"factor": 2}}},
    ):
        with pytest.raises(UserError, match="this version reads"):
            hf_format.model_config({"text_config": text} | change)


def test_choices_that_are_missing_or_wrong(folder: Path) -> None:
    with pytest.raises(UserError, match="name its --policy"):
        load_policy(folder)
    with pytest.raises(UserError, match="Available: bridge_orig, libero_goal_no_noops, libero_spatial_no_noops"):
        load_policy(folder, LoadOptions(architecture="openvla"))
    with pytest.raises(UserError, match=r"no entry 'libero_spatial'.*Did you mean.*Available: bridge_orig, "):
        load_policy(folder, LoadOptions(architecture="openvla", unnorm_key="libero_spatial"))
    with pytest.raises(UserError, match="choose its variant, one of official, simplevla, rlinf"):
        load_policy(folder, LoadOptions(architecture="openvla_oft", unnorm_key=KEY))
    with pytest.raises(UserError, match="Did you mean 'openvla'"):
        load_policy(folder, LoadOptions(architecture="openvlla", unnorm_key=KEY))


def test_every_wrong_parameter_is_named(models: Originals, tmp_path: Path) -> None:
    state = published_state(models)
    del state["projector.fc1.bias"]
    state["projector.fc9.bias"] = torch.zeros(2)
    state["language_model.model.norm.weight"] = torch.zeros(5)
    state["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(6)  # old files have it: ignored
    write_folder(tmp_path / "ck", state)
    with pytest.raises(UserError) as error:
        load_policy(tmp_path / "ck", OPTIONS)
    for part in ("missing projector.fc1.bias", "unexpected projector.fc9.bias", "norm.weight is [5], expected [48]"):
        assert part in str(error.value)
    assert "inv_freq" not in str(error.value)


def test_index_and_shards_must_agree(folder: Path) -> None:
    index = read_json(folder / "model.safetensors.index.json")
    places = index["weight_map"]
    first, second = sorted(set(places.values()))
    moved = next(name for name, place in places.items() if place == first)
    write_json(folder / "model.safetensors.index.json", index | {"weight_map": places | {moved: second}})
    with pytest.raises(UserError, match=f"{first} has {moved}, unknown to the index; {second} lacks {moved}"):
        load_policy(folder, OPTIONS)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}})
    with pytest.raises(UserError, match="has no 'weight_map'"):
        load_policy(folder, OPTIONS)
    write_json(folder / "model.safetensors.index.json", index)
    (folder / second).write_bytes((folder / second).read_bytes()[:-8])
    with pytest.raises(UserError, match=f"{second} is corrupt"):
        load_policy(folder, OPTIONS)
    (folder / second).unlink()
    with pytest.raises(UserError, match=f"{second} is missing"):
        load_policy(folder, OPTIONS)


def test_rlinfs_critic_is_read(models: Originals, tmp_path: Path) -> None:
    """512 and 128 wide, its last layer without bias."""
    state, shapes = published_state(models), {"0": (512, 48), "2": (128, 512), "4": (1, 128)}
    for layer, shape in shapes.items():
        state[f"value_head.mlp.{layer}.weight"] = torch.randn(shape)
        if layer != "4":
            state[f"value_head.mlp.{layer}.bias"] = torch.randn(shape[0])
    write_folder(tmp_path / "ck", state)
    policy = load_policy(tmp_path / "ck", OPTIONS)
    x = torch.randn(3, 48)
    hidden = x
    for layer in ("0", "2"):
        weight, bias = (state[f"value_head.mlp.{layer}.{kind}"] for kind in ("weight", "bias"))
        hidden = torch.nn.functional.gelu(hidden @ weight.T + bias)
    expected = (hidden @ state["value_head.mlp.4.weight"].T)[:, 0]
    torch.testing.assert_close(policy.model.value(x), expected, rtol=1e-5, atol=1e-5)


def test_a_fresh_critic_says_zero_and_trained_ones_survive_an_export(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(folder, OPTIONS)
    assert not policy.model.value(torch.randn(2, 48)).any()
    with torch.no_grad():
        policy.model.value_head.get_parameter("4.weight").fill_(0.5)
    export_policy(policy, tmp_path / "out", {}, None)
    assert not [name for name in read_sharded(tmp_path / "out") if "value_head" in name]
    again = load_policy(tmp_path / "out")
    for name, weight in policy.model.value_head.named_parameters():
        assert torch.equal(again.model.value_head.get_parameter(name), weight)


def _hub_cache(root: Path, name: str, revision: str) -> Path:
    """An empty snapshot in the layout of the Hugging Face hub's cache."""
    home = root / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(revision)
    return home / "snapshots" / revision


def test_hub_repository_from_the_cache(models: Originals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    revision = "31f090d05236101ebfc381b61c674dd4746d4ce0"
    snapshot = _hub_cache(tmp_path / "hub", "openvla/openvla-7b", revision)
    write_folder(snapshot, published_state(models))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for source in ("openvla/openvla-7b", f"openvla/openvla-7b@{revision}", "openvla/openvla-7b@main"):
        assert resolve(source) == snapshot
    assert source_name(snapshot) == f"openvla/openvla-7b@{revision}"
    assert load_policy(resolve("openvla/openvla-7b"), OPTIONS).unnorm_key == KEY
    with pytest.raises(UserError, match="openvla/openvla-8b is no folder here and cannot be had"):
        resolve("openvla/openvla-8b")


def test_paths_are_not_taken_for_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    assert resolve("runs/one") == Path("runs/one")
    for wrong in ("runs/oen", "/no/such", "a/b/c", "plain"):
        assert not is_repository(wrong)
        assert resolve(wrong) == Path(wrong), "what is wrong with it is its reader's to say"
    assert is_repository("openvla/openvla-7b")
    assert source_name(tmp_path / "runs") == str((tmp_path / "runs").resolve())
    monkeypatch.chdir(tmp_path / "runs" / "one")
    assert not is_repository("runs/one"), "a run of another folder than this one is not sought on the hub"


def test_small_presets_have_no_place_in_the_layout(tmp_path: Path) -> None:
    policy = OpenVLAPolicy.fresh(nano(), INSTRUCTIONS)
    with pytest.raises(UserError, match="learned position vectors"):
        export_policy(policy, tmp_path / "x", {}, None)
    assert not (tmp_path / "x").exists()


def test_a_fresh_model_of_the_published_architecture_can_be_exported(tmp_path: Path) -> None:
    base = tiny_7b()
    decoder = replace(
        base.decoder, vocab_size=VOCAB + 64, dim=16, layers=1, heads=2, kv_heads=2, head_dim=8, mlp_dim=32
    )
    config = replace(base, decoder=decoder, action_token_end=VOCAB, append_token=None)
    policy = OpenVLAPolicy.fresh(config, INSTRUCTIONS)
    export_policy(policy, tmp_path / "a", {}, None)
    _export(tmp_path / "a", tmp_path / "b")
    written = read_json(tmp_path / "b" / "config.json")
    assert written["pad_to_multiple_of"] == 64
    assert written["auto_map"]["AutoConfig"].startswith("openvla/openvla-7b--")
    loaded = load_policy(tmp_path / "b").model.state_dict()
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


def test_a_damaged_weight_file_is_no_silent_success(folder: Path) -> None:
    file = sorted(folder.glob("*.safetensors"))[0]
    state = load_file(file)
    name = next(iter(state))
    save_file({key: tensor for key, tensor in state.items() if key != name}, file)
    with pytest.raises(UserError, match=f"{file.name} lacks {name}"):
        load_policy(folder, OPTIONS)
