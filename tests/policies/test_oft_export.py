"""OpenVLA-OFT's published files: the parts beside the weights, FiLM under peft's names, and the three variants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.openvla import hf_format
from embodied_rl.policies.openvla.checkpoint import export_policy, load_policy
from embodied_rl.policies.openvla.hf_format import LoadOptions
from embodied_rl.policies.openvla_oft.config import VARIANTS, Variant
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.types import Observation
from tests.policies import oft_reference as reference
from tests.policies.published_files import (
    DIM,
    INSTRUCTIONS,
    SIZE,
    STATISTICS,
    oft_head,
    oft_proprio,
    originals,
    published_state,
    tiny_7b,
    write_oft_folder,
)

KEY = "libero_spatial_no_noops"
# The tiny images are smaller than what a crop could keep apart, so most tests see the whole image.
OFFICIAL = replace(VARIANTS["official"], center_crop=None)


@pytest.fixture(autouse=True)
def _small_towers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_format, "openvla_7b", tiny_7b)


def _options(variant: Variant) -> LoadOptions:
    return LoadOptions(architecture="openvla_oft", unnorm_key=KEY, variant=variant)


def _film(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(the vision_backbone file with FiLM inside peft's wrappers, the plain tensors that it amounts to)."""
    generator = torch.Generator().manual_seed(7)
    file: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not name.startswith("vision_backbone."):
            continue
        plain[name] = tensor
        parts = name.split(".")
        if "blocks" in parts:
            parts.insert(parts.index("blocks") + 2, "block")
        wrapped = tensor.ndim == 2
        if state.get(name.replace(".bias", ".weight"), tensor).ndim == 2:
            parts.insert(-1, "base_layer")
        file["module." + ".".join(parts)] = tensor
        if wrapped:
            stem = "module." + ".".join(parts[:-2])
            down = torch.randn(32, tensor.shape[1], generator=generator) * 0.05
            up = torch.randn(tensor.shape[0], 32, generator=generator) * 0.05
            file |= {f"{stem}.lora_A.default.weight": down, f"{stem}.lora_B.default.weight": up}
            plain[name] = tensor + 0.5 * up @ down  # alpha 16 over rank 32
    for tower, blocks in (("featurizer", 3), ("fused_featurizer", 3)):
        for block in range(blocks):
            for part in ("scale", "shift"):
                for kind, shape in (("weight", (32, DIM)), ("bias", (32,))):
                    name = f"vision_backbone.{tower}.blocks.{block}.{part}.{kind}"
                    plain[name] = file[f"module.{name}"] = torch.randn(shape, generator=generator) * 0.2
    return file, plain


def _observation(policy: OpenVLAOFTPolicy) -> Observation:
    generator, cameras = np.random.default_rng(0), policy.config.num_cameras
    images = generator.integers(0, 256, (3, cameras, SIZE, SIZE, 3), dtype=np.uint8)
    return Observation.from_numpy(images, generator.standard_normal((3, 8)).astype(np.float32) * 2, INSTRUCTIONS)


def _load(folder: Path, variant: Variant) -> OpenVLAOFTPolicy:
    policy = load_policy(folder, _options(variant))
    assert isinstance(policy, OpenVLAOFTPolicy)
    return policy


@torch.no_grad()
def _matches_reference(policy: OpenVLAOFTPolicy) -> None:
    obs = _observation(policy)
    images, proprio = obs.images, obs.proprio
    hidden = policy._hidden(images, proprio, obs.instruction)
    torch.testing.assert_close(hidden, reference.hidden_states(policy, obs), rtol=1e-5, atol=2e-5)


def test_official_checkpoint_with_proprio_wrist_and_l1_head(tmp_path: Path) -> None:
    head, proprio = oft_head(), oft_proprio()
    write_oft_folder(
        tmp_path / "ck",
        {"action_head": {f"module.{name}": tensor for name, tensor in head.items()}, "proprio_projector": proprio},
    )
    policy = _load(tmp_path / "ck", OFFICIAL)
    loaded = policy.model.state_dict()
    for name, tensor in head.items():
        assert torch.equal(loaded[f"action_head.{name}"], tensor)
    for name, tensor in proprio.items():
        assert torch.equal(loaded[f"proprio_projector.{name}"], tensor)
    assert (policy.config.num_cameras, policy.config.proprio_dim, policy.chunk_len) == (2, 8, 8)
    assert policy.config.stop_token == 2
    _matches_reference(policy)
    # proprio is mapped from its percentiles, not by mean and deviation (which are zero there)
    unit = policy.statistics.normalise_proprio(torch.tensor([[-1.0] * 4 + [1.5, 0.25, 9.0, -9.0]]))
    torch.testing.assert_close(unit, torch.tensor([[-1.0] * 4 + [1.0, 0.0, 1.0, -1.0]]))


@pytest.mark.parametrize(("name", "stop"), [("simplevla", 2), ("rlinf", None)])
def test_discrete_variants(tmp_path: Path, name: str, stop: int | None) -> None:
    write_oft_folder(tmp_path / "ck", {})
    policy = _load(tmp_path / "ck", replace(VARIANTS[name], center_crop=None))
    assert (policy.config.head, policy.config.stop_token, policy.config.use_proprio) == ("tokens", stop, False)
    assert _load(tmp_path / "ck", VARIANTS[name]).config.center_crop == 0.9
    _matches_reference(policy)


def test_film_checkpoint_is_unwrapped_and_merged(tmp_path: Path) -> None:
    file, plain = _film(published_state(originals()))
    write_oft_folder(
        tmp_path / "ck", {"action_head": oft_head(), "proprio_projector": oft_proprio(), "vision_backbone": file}
    )
    policy = _load(tmp_path / "ck", replace(OFFICIAL, film=True))
    loaded = policy.model.state_dict()
    for name, tensor in plain.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=1e-6, atol=1e-6)
    _matches_reference(policy)


@pytest.mark.parametrize("film", [False, True])
def test_save_load_save_is_bit_identical(tmp_path: Path, film: bool) -> None:
    parts: dict[str, dict[str, Tensor]] = {"action_head": oft_head(), "proprio_projector": oft_proprio()}
    if film:
        parts["vision_backbone"] = _film(published_state(originals()))[0]
    write_oft_folder(tmp_path / "ck", parts)
    policy = _load(tmp_path / "ck", replace(OFFICIAL, film=film))
    export_policy(policy, tmp_path / "a", {}, None)
    again = load_policy(tmp_path / "a")
    export_policy(again, tmp_path / "b", {}, None)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    for one, two in zip(policy.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)
    head = torch.load(tmp_path / "a" / "action_head--latest_checkpoint.pt", weights_only=True)
    assert head.keys() == oft_head().keys()
    if film:
        written = torch.load(tmp_path / "a" / "vision_backbone--latest_checkpoint.pt", weights_only=True)
        assert {f"module.{name}" for name in written} == parts["vision_backbone"].keys()
        assert not any(tensor.any() for name, tensor in written.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("parts", "variant", "message"),
    [
        ({}, OFFICIAL, r"no action_head--\*_checkpoint\.pt, which this variant needs"),
        ({"action_head": {}}, VARIANTS["simplevla"], r"150000_checkpoint\.pt, which this variant does not use"),
        ({"action_head": {}, "proprio_projector": {}}, replace(OFFICIAL, film=True), "no vision_backbone--"),
        ({"action_head": {"fc": 3}, "proprio_projector": {}}, OFFICIAL, "holds no state dict"),
        ({"action_head": {}, "proprio_projector": {}}, OFFICIAL, r"missing proprio_projector\.fc1\.weight"),
    ],
)
def test_parts_that_do_not_fit_the_variant(tmp_path: Path, parts: Any, variant: Variant, message: str) -> None:
    write_oft_folder(tmp_path / "ck", parts)
    with pytest.raises(UserError, match=message):
        _load(tmp_path / "ck", variant)


def test_parts_that_are_damaged_or_doubled(tmp_path: Path) -> None:
    write_oft_folder(tmp_path / "ck", {"action_head": oft_head(), "proprio_projector": oft_proprio()})
    file = tmp_path / "ck" / "action_head--150000_checkpoint.pt"
    (tmp_path / "ck" / "action_head--50000_checkpoint.pt").write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="has 2 files action_head--"):
        _load(tmp_path / "ck", OFFICIAL)
    (tmp_path / "ck" / "action_head--50000_checkpoint.pt").unlink()
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read"):
        _load(tmp_path / "ck", OFFICIAL)


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    write_oft_folder(tmp_path / "ck", {"proprio_projector": oft_proprio()})

    class Bad:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"model.fc1.weight": Bad()}, tmp_path / "ck" / "action_head--1_checkpoint.pt")
    with pytest.raises(UserError, match="cannot be read"):
        _load(tmp_path / "ck", OFFICIAL)
    assert not (tmp_path / "ran").exists()


def test_exports_say_themselves_how_they_decode(tmp_path: Path) -> None:
    write_oft_folder(tmp_path / "ck", {})
    policy = _load(tmp_path / "ck", VARIANTS["rlinf"])
    policy.temperature = 1.6
    export_policy(policy, tmp_path / "out", {}, None)
    again = load_policy(tmp_path / "out")
    assert isinstance(again, OpenVLAOFTPolicy)
    assert (again.config, again.temperature, again.unnorm_key) == (policy.config, 1.6, KEY)
    with pytest.raises(UserError, match="leave the variant out"):
        load_policy(tmp_path / "out", _options(VARIANTS["rlinf"]))
    with pytest.raises(UserError, match="holds openvla_oft, not openvla"):
        load_policy(tmp_path / "out", LoadOptions(architecture="openvla"))
    other = load_policy(tmp_path / "out", LoadOptions(unnorm_key="libero_goal_no_noops", center_crop=0.5))
    assert other.statistics.q99[0] == np.float32(STATISTICS["libero_goal_no_noops"]["action"]["q99"][0])
    assert other.config.center_crop == 0.5
