"""ACT beside LeRobot's own class: the same chunks, losses and averages, and each reads the other's folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.act import policy as act_policy
from embodied_rl.policies.act.checkpoint import ACTOptions, load
from embodied_rl.policies.act.config import act_base
from embodied_rl.policies.act.hf_format import save_published
from embodied_rl.policies.act.model import ACTModel
from embodied_rl.policies.act.policy import ACTPolicy
from embodied_rl.policies.act.resnet import FrozenBatchNorm2d
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation
from tests.policies.act_models import published_policy

ROOT = Path(__file__).parents[3]
LEROBOT = Path(sys.prefix) / "lerobot"
"""Where .ci/install-lerobot puts it."""
CAMERAS = ("top", "front")
OURS_ALONE = ("model.log_std", "model.value_head.")

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where act_side.py ran, in a process of its own, beside a folder that we wrote."""
    if not (LEROBOT / ".installed").exists() and os.environ.get("CI") != "true":
        pytest.skip(f"LeRobot is not installed: sh .ci/install-lerobot {sys.executable}")
    work = tmp_path_factory.mktemp("act")
    save_published(published_policy(), work / "ours", CAMERAS, {})
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(LEROBOT)]),
        "HF_HOME": str(work / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).with_name("act_side.py"))]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return work


def read(folder: Path, name: str, options: ACTOptions | None = None) -> tuple[ACTPolicy, dict[str, Any]]:
    """Our policy of LeRobot's files of a case, which executes all that it predicts, and what LeRobot computed."""
    policy = load(folder / name, options or ACTOptions(chunk_len=6))
    with np.load(folder / f"{name}.npz") as stored:
        return policy, dict(stored)


def observed(policy: ACTPolicy, images: np.ndarray, state: np.ndarray) -> Observation:
    """LeRobot's frames in the middle of squares, as our cameras give them."""
    (height, width), size = policy.config.frame, policy.config.image_size
    square = np.full((*images.shape[:2], size, size, 3), 77, np.uint8)
    top, left = (size - height) // 2, (size - width) // 2
    square[:, :, top : top + height, left : left + width] = images
    return Observation.from_numpy(square, state, [""] * len(images))


def chunk(policy: ACTPolicy, numbers: dict[str, Any], decision: int = 0) -> Tensor:
    obs, rows = observed(policy, numbers["images"], numbers["state"]), np.arange(len(numbers["state"]))
    return policy.act(obs, DecisionRng(rows, np.full_like(rows, decision)), "greedy").actions


@pytest.mark.parametrize("name", ["mean_std", "min_max"])
def test_chunks_and_losses_are_lerobots(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Post-norm with a VAE and mean and deviation; pre-norm without one and the ends."""
    policy, numbers = read(folder, name)
    np.testing.assert_allclose(chunk(policy, numbers), numbers["chunk"], rtol=0, atol=1e-5)
    assert load(folder / name, ACTOptions()).chunk_len == 4
    noise = torch.from_numpy(numbers["noise"])[:, None]
    monkeypatch.setattr(act_policy, "loss_noise", lambda *_: (noise, None))
    policy.train(True)
    obs = observed(policy, numbers["images"], numbers["state"])
    actions, mask = (torch.from_numpy(numbers[key]) for key in ("actions", "mask"))
    loss = policy.sft_loss(obs.images, obs.proprio, obs.instruction, actions, None, mask)
    assert float(loss.detach()) == pytest.approx(float(numbers["loss"]), rel=1e-5)


def test_averaged_chunks_are_lerobots_by_statistics_among_the_weights(folder: Path) -> None:
    """Nine steps of chunks of six, so that some have left the average again."""
    policy, numbers = read(folder, "ensemble", ACTOptions())
    assert policy.config.temporal_ensemble_coeff == 0.01
    for step in range(len(numbers["acted"])):
        now = {key: numbers[key][step] for key in ("images", "state")}
        np.testing.assert_allclose(chunk(policy, now, step)[:, 0], numbers["acted"][step], rtol=0, atol=1e-5)
    plain, _ = read(folder, "ensemble", ACTOptions(chunk_len=1))
    last = {key: numbers[key][-1] for key in ("images", "state")}
    assert (chunk(plain, last)[:, 0] - torch.from_numpy(numbers["acted"][-1])).abs().max() > 1e-3


def test_lerobot_reads_what_we_write(folder: Path) -> None:
    with np.load(folder / "ours.npz") as stored:
        numbers = dict(stored)
    policy = published_policy()
    assert (tuple(numbers["cameras"]), int(numbers["steps"])) == (CAMERAS, policy.chunk_len)
    expected = torch.from_numpy(numbers["chunk"])[:, : policy.chunk_len]
    torch.testing.assert_close(chunk(policy, numbers), expected, rtol=0, atol=1e-5)
    again = load(folder / "ours", ACTOptions())
    torch.testing.assert_close(chunk(again, numbers), expected, rtol=0, atol=1e-5)


def test_the_published_size(folder: Path) -> None:
    theirs = {name: tuple(shape) for name, shape in json.loads((folder / "published.json").read_text()).items()}
    assert theirs.pop("model.vae_encoder_pos_enc") == (1, 102, 512)
    config = replace(act_base(), frame=(480, 640), num_cameras=1, action_dim=14, proprio_dim=14)
    with torch.device("meta"):
        ours = ACTModel(config).state_dict()
    named = {f"model.{name}": tuple(tensor.shape) for name, tensor in ours.items()}
    assert {name: shape for name, shape in named.items() if not name.startswith(OURS_ALONE)} == theirs


def test_lerobots_files_written_again_are_the_same(folder: Path, tmp_path: Path) -> None:
    policy = load(folder / "mean_std", ACTOptions())
    save_published(policy, tmp_path / "a", CAMERAS, {})
    save_published(load(tmp_path / "a", ACTOptions()), tmp_path / "b", CAMERAS, {})
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def _thawed(policy: ACTPolicy) -> None:
    for module in policy.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.running_mean.zero_()


def _other_side(policy: ACTPolicy) -> None:
    policy.configure(replace(policy.config, image_mean=policy.config.image_mean[::-1]))


def _no_places(policy: ACTPolicy) -> None:
    policy.model.encoder_1d_feature_pos_embed.weight.data.zero_()


@pytest.mark.parametrize("break_it", [_thawed, _other_side, _no_places])
def test_a_broken_network_is_told(break_it: Any, folder: Path) -> None:
    policy, numbers = read(folder, "mean_std")
    break_it(policy)
    assert np.abs(chunk(policy, numbers).numpy() - numbers["chunk"]).max() > 1e-3


def test_every_wrong_parameter_is_named(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder / "mean_std", tmp_path / "copy")
    state = load_file(tmp_path / "copy" / "model.safetensors")
    del state["model.action_head.bias"]
    save_file(state | {"model.more": torch.zeros(1)}, tmp_path / "copy" / "model.safetensors")
    with pytest.raises(UserError, match=r"missing model\.action_head\.bias; unexpected model\.more"):
        load(tmp_path / "copy", ACTOptions())
