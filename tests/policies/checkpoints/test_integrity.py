"""Which files decide actions, that a changed one is noticed, and that what is not finite is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.errors import UserError
from embodied_rl.factory.policies import LoadRequest, PublishedOptions, load_policy, save_policy
from embodied_rl.policies.checkpoints.folder import verify_checksums
from embodied_rl.policies.checkpoints.integrity import CHECKSUMS, files_digest, require_finite
from embodied_rl.policies.openvla import hf_format
from embodied_rl.policies.openvla.checkpoint import adapt_policy
from embodied_rl.policies.openvla.checkpoint import load_policy as load_openvla
from embodied_rl.policies.openvla.hf_format import LoadOptions
from tests.policies import pi0_models, smolvla_models
from tests.policies.published_files import originals, published_state, tiny_7b, write_folder

KEY = "libero_goal_no_noops"


@pytest.fixture(autouse=True)
def _small_towers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_format, "openvla_7b", tiny_7b)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_folder(root / "published", published_state(originals()))
    save_policy(pi0_models.tiny_policy(), root / "pi0", {})
    save_policy(smolvla_models.tiny_policy(), root / "smolvla", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_format, "openvla_7b", tiny_7b)
        policy = load_openvla(root / "published", LoadOptions(architecture="openvla", unnorm_key=KEY))
    adapt_policy(policy, root / "published", 2)
    save_policy(policy, root / "lora", {})
    return root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """All of `made`, to be changed; the adapters name the base beside them."""
    shutil.copytree(made, tmp_path / "made")
    path = tmp_path / "made" / "lora" / "config.json"
    path.write_text(path.read_text().replace(str(made), str(tmp_path / "made")))
    for folder in (tmp_path / "made").iterdir():
        (folder / CHECKSUMS).unlink(missing_ok=True)
    return tmp_path / "made"


def _given(folder: Path) -> LoadRequest | None:
    if folder.name != "published":
        return None
    return PublishedOptions(unnorm_key=KEY).options_for(folder, "openvla")


def _digest(folder: Path) -> str:
    return files_digest(load_policy(folder, _given(folder)).source_files, folder)


def _bump(path: Path) -> None:
    """Change one tensor a little, or some harmless white space of a JSON file."""
    if path.suffix == ".safetensors":
        state = load_file(path)
        name = sorted(state)[0]
        save_file(state | {name: state[name] + 1e-3}, path)
    else:
        path.write_text(path.read_text() + " ")


DECIDING = [
    ("published", "model-00001-of-00002.safetensors"),
    ("published", "model.safetensors.index.json"),
    ("published", "dataset_statistics.json"),
    ("published", "tokenizer.json"),
    ("published", "config.json"),
    ("lora", "lora_adapter/adapter_model.safetensors"),
    ("lora", "trained.safetensors"),
    ("lora", "dataset_statistics.json"),
    ("lora", "tokenizer.json"),
    ("pi0", "model.safetensors"),
    ("pi0", "dataset_statistics.json"),
    ("smolvla", "tokenizer.json"),
]


@pytest.mark.parametrize(("folder", "file"), DECIDING)
def test_every_file_that_decides_actions_is_in_the_digest(folder: str, file: str, copy: Path) -> None:
    before = _digest(copy / folder)
    _bump(copy / folder / file)
    assert _digest(copy / folder) != before


def test_the_base_of_adapters_is_in_the_digest_and_files_that_are_not_read_are_not(copy: Path) -> None:
    before = _digest(copy / "published")
    save_file({"x": torch.zeros(1)}, copy / "published" / "model.safetensors")  # the index names others
    (copy / "published" / "README.md").write_text("words")
    assert _digest(copy / "published") == before
    files = load_policy(copy / "lora").source_files
    assert {path.name for path in files if path.parent == copy / "published"} >= {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    _bump(copy / "published" / "model-00002-of-00002.safetensors")
    with pytest.raises(UserError, match="adapts other weights"):
        load_policy(copy / "lora")


def test_a_moved_folder_keeps_its_digest(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "pi0", tmp_path / "elsewhere")
    assert _digest(tmp_path / "elsewhere") == _digest(made / "pi0")


def test_an_index_may_not_name_files_elsewhere(copy: Path) -> None:
    path = copy / "published" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = sorted(index["weight_map"])[0]
    index["weight_map"][name] = "../" + index["weight_map"][name]
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match="outside its folder"):
        load_policy(path.parent, _given(path.parent))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "dataset_statistics.json"])
def test_flipped_bytes_are_found_by_the_list_in_the_folder(file: str, made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made / "pi0", tmp_path / "pi0")
    verify_checksums(folder)
    data = bytearray((folder / file).read_bytes())
    data[-3] ^= 1
    (folder / file).write_bytes(data)
    with pytest.raises(UserError, match=rf"is corrupt \({file} has changed"):
        load_policy(folder)
    (folder / file).unlink()
    with pytest.raises(UserError, match=rf"{file} is missing"):
        load_policy(folder)


def test_flipped_bytes_are_found_by_the_list_of_a_run(copy: Path, tmp_path: Path) -> None:
    iteration = tmp_path / "iter-000001"
    iteration.mkdir()
    folder = shutil.copytree(copy / "pi0", iteration / "policy")
    (iteration / "trainer.pt").write_bytes(b"")
    good = files_digest([folder / "model.safetensors"], folder)
    with pytest.raises(UserError, match=r"state\.json is missing"):
        load_policy(folder)
    (iteration / "state.json").write_text(json.dumps({"sha256": {}}))
    with pytest.raises(UserError, match="lists no SHA-256"):
        load_policy(folder)
    (iteration / "state.json").write_text(json.dumps({"sha256": {"policy/model.safetensors": good}}))
    with pytest.raises(UserError, match=r"model\.safetensors has changed, by the SHA-256 in state\.json"):
        load_policy(folder)


def _spoil(path: Path, value: float) -> str:
    state = load_file(path)
    name = sorted(state)[-1]
    spoilt = state[name].clone()
    spoilt.view(-1)[-1] = value
    save_file(state | {name: spoilt}, path)
    return name


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("folder", "file"),
    [
        ("published", "model-00002-of-00002.safetensors"),
        ("lora", "trained.safetensors"),
        ("lora", "lora_adapter/adapter_model.safetensors"),
        ("pi0", "model.safetensors"),
        ("smolvla", "model.safetensors"),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_file_and_tensor(
    folder: str, file: str, value: float, copy: Path
) -> None:
    name = _spoil(copy / folder / file, value)
    with pytest.raises(UserError) as error:
        load_policy(copy / folder, _given(copy / folder))
    assert str(copy / folder / file) in str(error.value)
    assert f"tensor {name} has numbers that are not finite" in str(error.value)


def test_every_number_format_is_looked_at() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        fine = torch.ones(3, 2).to(dtype)
        require_finite({"a": fine, "empty": fine[:0], "whole": torch.ones(2, dtype=torch.int64)}, Path("x"))
        with pytest.raises(UserError, match="tensor b"):
            require_finite({"a": fine, "b": torch.tensor([[1.0, float("nan")]]).to(dtype)}, Path("x"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_statistics_that_are_not_finite_are_refused(value: float, copy: Path) -> None:
    def change(folder: str, edit: Any) -> Path:
        path = copy / folder / "dataset_statistics.json"
        data = json.loads(path.read_text())
        edit(data)
        path.write_text(json.dumps(data))
        return copy / folder

    def openvla(data: Any) -> None:
        data[KEY]["action"]["q99"][2] = value

    def pi0(data: Any) -> None:
        data["default"]["action"]["q01"][1] = value

    for folder, edit, message in (
        ("published", openvla, r"action\.q99 has numbers that are not finite"),
        ("lora", openvla, r"action\.q99 has numbers that are not finite"),
        ("pi0", pi0, r"dataset_statistics\.json, 'default\.action': the statistics' q01 has numbers"),
    ):
        where = change(folder, edit)
        with pytest.raises(UserError, match=message):
            load_policy(where, _given(where))


@pytest.mark.parametrize("value", ["NaN", "0", "-1", "Infinity"])
def test_a_temperature_that_is_none_is_refused(value: str, copy: Path) -> None:
    path = copy / "lora" / "config.json"
    text = path.read_text()
    assert '"temperature": 1.0' in text
    path.write_text(text.replace('"temperature": 1.0', f'"temperature": {value}'))
    with pytest.raises(UserError, match="must be positive and finite"):
        load_policy(copy / "lora")
