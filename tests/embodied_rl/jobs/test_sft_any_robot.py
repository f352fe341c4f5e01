"""`sft` on data of other robots: ALOHA-like, SO-100-like, both mixed; from own and published checkpoints, with LoRA."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.cli import sft as sft_command
from embodied_rl.data.chunks import split
from embodied_rl.data.lerobot import load
from embodied_rl.data.mixture import Augmentation, Mixture, Part
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import PublishedOptions, load_policy
from embodied_rl.policies.checkpoints.folder import read_json, read_provenance
from embodied_rl.policies.pi0 import checkpoint as pi0_checkpoint
from embodied_rl.policies.pi0.hf_format import save_published
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Array, Observation
from tests.embodied_rl.data.by_hand import ByHand, make, make_v21
from tests.hub import opened
from tests.policies.pi0_models import tiny_config, tiny_policy

ALOHA = ("top", "left_wrist", "right_wrist")
FAST = [
    *("--steps", "12", "--batch-size", "8", "--chunk-len", "4", "--warmup", "2", "--lr", "3e-3", "--threads", "1"),
    *("--val-every", "6", "--val-samples", "8", "--save-every", "5", "--validation", "0.34", "--shift", "1"),
]


def _motion(rows: int, joints: int, scale: float) -> tuple[Array, Array]:
    """Joint angles of a smooth motion, and the next ones as targets."""
    time = np.arange(rows + 1)[:, None] * 0.3
    angles = scale * np.sin(time + np.arange(joints)) + scale * 0.5 * np.arange(joints)
    return angles[:-1].astype(np.float32), angles[1:].astype(np.float32)


def _aloha(**changes: Any) -> ByHand:
    spec = ByHand(fps=50, sizes=dict.fromkeys(ALOHA, (48, 64)), instructions=("hand over the cube",))
    spec = replace(spec, vectors=_motion(sum(spec.lengths), 14, 1.2))
    return replace(spec, **changes)


def _so100(**changes: Any) -> ByHand:
    spec = ByHand(fps=30, sizes={"front": (32, 64)}, instructions=("put the lego brick into the box",))
    spec = replace(spec, vectors=_motion(sum(spec.lengths), 6, 60.0))
    return replace(spec, **changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make(root / "aloha", _aloha())
    make(root / "so100", _so100())
    return root


def _sft(out: Path, *words: str) -> int:
    return sft_command.main([*FAST, "--gripper", "none", "--out", str(out), *words])


def _losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_provenance(out)["history"]]


@pytest.mark.parametrize("policy", ["openvla", "openvla_oft", "pi0", "smolvla", "act"])
def test_fourteen_joints_and_three_cameras_at_50_hz(
    policy: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(data / "aloha"), "--policy", policy, "--cameras", *ALOHA]
    assert _sft(tmp_path / "ck", *words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "14 actions in the robot's own units, 14 states" in said
    assert "50 actions a second, by info.json" in said
    assert "images of 48 x 64 are resized to 64 x 64" in said
    losses = _losses(tmp_path / "ck")
    assert losses[-1] < losses[0]
    loaded: Any = load_policy(tmp_path / "ck")
    assert (loaded.action_dim, loaded.config.proprio_dim, loaded.config.num_cameras) == (14, 14, 3)
    assert not loaded.config.clip_actions
    assert read_provenance(tmp_path / "ck")["control_hz"] == 50
    state, action = _aloha().vectors  # type: ignore[misc]
    exact = action.astype(np.float64)
    entry = read_json(tmp_path / "ck" / "dataset_statistics.json")["default"]
    if policy in ("pi0", "smolvla", "act"):
        np.testing.assert_allclose(entry["action"]["mean"], exact.mean(0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(entry["action"]["std"], exact.std(0), rtol=1e-6)
        np.testing.assert_allclose(entry["state"]["std"], state.astype(np.float64).std(0), rtol=1e-6)
    else:
        np.testing.assert_allclose(entry["action"]["q01"], np.quantile(exact, 0.01, axis=0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(entry["action"]["q99"], np.quantile(exact, 0.99, axis=0), rtol=1e-6, atol=1e-6)
        assert all(entry["action"]["mask"])


def test_an_order_that_nothing_says_is_asked_for_by_all_names(data: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"has the cameras top, left_wrist, right_wrist: name .* --cameras top left_wr\S+ r"
    ):
        _sft(tmp_path / "ck", str(data / "aloha"), "--policy", "pi0")


def test_six_joints_in_degrees_and_one_camera(data: Path, tmp_path: Path) -> None:
    assert _sft(tmp_path / "ck", str(data / "so100"), "--policy", "pi0", "--preset", "nano_pi05") == 0
    policy: Any = load_policy(tmp_path / "ck")
    assert (policy.action_dim, policy.config.num_cameras) == (6, 1)
    entry = read_json(tmp_path / "ck" / "dataset_statistics.json")["default"]["action"]
    exact = _so100().vectors[1].astype(np.float64)  # type: ignore[index]
    np.testing.assert_allclose(entry["q99"], np.quantile(exact, 0.99, axis=0), rtol=1e-6)
    obs = _observation(policy, 1)
    acted = policy.act(obs, DecisionRng(np.zeros(1, np.int64), np.zeros(1, np.int64)), "greedy").actions
    assert acted.abs().max() > 2, "degrees are not clipped"


def _observation(policy: Any, rows: int) -> Observation:
    config = policy.config
    images = np.zeros((rows, config.num_cameras, config.image_size, config.image_size, 3), np.uint8)
    state = np.zeros((rows, config.proprio_dim), np.float32)
    return Observation.from_numpy(images, state, ["lift"] * rows)


@pytest.fixture
def _tiny_published(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(tiny_config(), expert_head_rows=0, max_action_dim=16, max_state_dim=16)
    monkeypatch.setattr(pi0_checkpoint, "preset", lambda name: config)


def _other_robot() -> Pi0Policy:
    return tiny_policy(max_action_dim=16, max_state_dim=16, expert_head_rows=0)


def _published(path: Path, layout: Any) -> Path:
    policy = _other_robot()
    save_published(policy, path, layout, ("image", "wrist"), {})
    policy.prompt.tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("layout", ["openpi", "lerobot"])
@pytest.mark.usefixtures("_tiny_published")
def test_a_published_checkpoint_of_another_robot_is_where_it_begins(
    layout: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = _published(tmp_path / "base", layout)
    begin = ["--checkpoint", str(base), "--preset", "pi0_base", "--tokenizer", str(base / "tokenizer.json")]
    words = [str(data / "aloha"), "--cameras", *ALOHA, *begin]
    assert _sft(tmp_path / "ck", *words, "--lr", "1e-3") == 0
    assert "begins from" in capsys.readouterr().out
    losses = _losses(tmp_path / "ck")
    assert losses[-1] < losses[0]
    assert _sft(tmp_path / "still", *words, "--lr", "1e-30") == 0
    plain, still = _other_robot(), load_policy(tmp_path / "still")
    for name, tensor in still.model.state_dict().items():
        if not name.startswith(("value_head", "noise_head")):
            assert torch.equal(tensor, plain.model.state_dict()[name]), name
    with pytest.raises(UserError, match="name its --preset"):
        _sft(tmp_path / "other", *words[:-4])


@pytest.mark.usefixtures("_tiny_published")
def test_lora_and_the_expert_alone_begin_from_a_published_checkpoint(data: Path, tmp_path: Path) -> None:
    base = _published(tmp_path / "base", "lerobot")
    begin = ["--checkpoint", str(base), "--preset", "pi0_base", "--tokenizer", str(base / "tokenizer.json")]
    for part in (["--lora-rank", "2"], ["--train-expert-only"], ["--lora-rank", "2", "--bf16"]):
        out = tmp_path / "-".join(part)
        assert _sft(out, str(data / "so100"), *begin, *part) == 0
        assert (out / "lora_adapter").is_dir() == ("--lora-rank" in part)
        trained, plain = (load_policy(out).model.state_dict(), _other_robot())
        frozen = "language.layers.0.mlp.up_proj" + (".base_layer" if "--lora-rank" in part else "") + ".weight"
        assert torch.equal(trained[frozen], plain.model.language.layers[0].mlp.up_proj.weight)  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["openvla", "pi0"])
def test_an_own_checkpoint_grows_to_another_robot(policy: str, data: Path, tmp_path: Path) -> None:
    assert _sft(tmp_path / "six", str(data / "so100"), "--policy", policy) == 0
    words = [str(data / "aloha"), "--cameras", *ALOHA, "--checkpoint", str(tmp_path / "six")]
    assert _sft(tmp_path / "lora", *words, "--lora-rank", "2") == 0
    assert _sft(tmp_path / "still", *words, "--lr", "1e-30") == 0
    before, after = (load_policy(tmp_path / name) for name in ("six", "still"))
    assert after.action_dim == 14
    for name, tensor in before.model.state_dict().items():
        grown = after.model.state_dict()[name]
        assert torch.equal(grown[tuple(map(slice, tensor.shape))], tensor), name
        assert not grown.abs().sum() > tensor.abs().sum() * 1.001, f"{name}: what is new begins at zero"
    adapted = load_policy(tmp_path / "lora")
    assert adapted.base is not None
    assert adapted.action_dim == 14
    known: Any = after
    words = known.prompt.tokenizer if policy == "pi0" else known.tokenizer.tokenizer
    assert words.token_to_id("cube") is not None, "the data's words are known"


def _mix(data: Path) -> list[str]:
    return [f"{data / 'aloha'}:3", f"{data / 'so100'}:1", "--policy", "pi0", "--cameras", "top/front", *ALOHA[1:]]


def test_two_robots_mixed_three_to_one(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _sft(tmp_path / "ck", *_mix(data)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "aloha 75%, so100 25%" in said
    assert "The policy acts as aloha" in said
    assert _losses(tmp_path / "ck")[-1] < _losses(tmp_path / "ck")[0]
    wrote = read_provenance(tmp_path / "ck")
    assert wrote["robots"]["so100"] == {"weight": 1.0, "cameras": ["front"], "control_hz": 30.0, "own_units": True}
    assert [each["path"].rpartition("/")[2] for each in wrote["datasets"]] == ["aloha", "so100"]
    for key, sizes in (("aloha", (14, 14, 3)), ("so100", (6, 6, 1))):
        options = PublishedOptions(unnorm_key=key).options_for(tmp_path / "ck", None)
        policy: Any = load_policy(tmp_path / "ck", options)
        assert (policy.action_dim, policy.config.proprio_dim, policy.config.num_cameras) == sizes
        acted = policy.act(_observation(policy, 2), DecisionRng(np.arange(2), np.arange(2)), "sample")
        assert acted.actions.shape == (2, 4, sizes[0])
        again = policy.evaluate(*_inputs(_observation(policy, 2)), acted.replay)
        torch.testing.assert_close(again.log_prob.detach(), acted.log_prob, rtol=0, atol=1e-4)
    table = read_json(tmp_path / "ck" / "dataset_statistics.json")
    exact = _so100().vectors[1].astype(np.float64)  # type: ignore[index]
    np.testing.assert_allclose(table["so100"]["action"]["mean"], exact.mean(0), rtol=1e-6)
    with pytest.raises(UserError, match=r"no statistics of 'so10'. Did you mean 'so100'"):
        load_policy(tmp_path / "ck", PublishedOptions(unnorm_key="so10").options_for(tmp_path / "ck", None))


def _inputs(obs: Observation) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    return obs.images, obs.proprio, obs.instruction


def test_a_mixed_run_that_was_stopped_goes_on_exactly(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _sft(tmp_path / "whole", *_mix(data)) == 0
    original, calls = Pi0Policy.sft_loss, []

    def interrupted(self: Pi0Policy, *args: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Pi0Policy, "sft_loss", interrupted)
        assert _sft(tmp_path / "part", *_mix(data)) == 130
    assert _sft(tmp_path / "part", *_mix(data)) == 0
    assert (tmp_path / "part/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_samples_are_drawn_by_weight_and_each_frame_as_often(data: Path) -> None:
    parts = []
    for name, weight in (("aloha", 3.0), ("so100", 1.0)):
        cameras = ALOHA if name == "aloha" else ()
        loaded = load(data / name, cameras)
        loaded.own_units = True
        parts.append(Part(split(loaded, 4, validation=0.0, seed=0)[0], name, weight))
    drawn: dict[str, list[int]] = {"aloha": [], "so100": []}
    mixture, again = Mixture(parts), Mixture(parts)
    for step in range(60):
        for batch in mixture.batch(step, 16, 7, Augmentation(0, 0.0)):
            drawn[batch.key] += [int(value) for value in batch.images[:, 0, 0, 0, 0]]
            assert batch.actions.shape[2] == (14 if batch.key == "aloha" else 6)
    count = {key: len(rows) for key, rows in drawn.items()}
    assert sum(count.values()) == 60 * 16
    assert 0.70 < count["aloha"] / (60 * 16) < 0.80
    often = np.unique(drawn["aloha"], return_counts=True)[1]
    assert often.max() - often.min() <= 1, "samples walk through permutations"
    one, two = again.batch(41, 16, 7, Augmentation(2, 0.5)), mixture.batch(41, 16, 7, Augmentation(2, 0.5))
    for left, right in zip(one, two, strict=True):
        assert torch.equal(left.images, right.images)
        assert torch.equal(left.actions, right.actions)


def test_joint_statistics_are_of_all_frames(data: Path, tmp_path: Path) -> None:
    other = _so100(vectors=tuple(2 * part + 5 for part in _so100().vectors))  # type: ignore[union-attr]
    make(tmp_path / "so100_b", other)
    words = [f"{data / 'so100'}:3", str(tmp_path / "so100_b"), "--policy", "openvla", "--statistics", "joint"]
    assert _sft(tmp_path / "ck", *words) == 0
    entry = read_json(tmp_path / "ck" / "dataset_statistics.json")
    assert list(entry) == ["joint"]
    both = np.concatenate([_so100().vectors[1], other.vectors[1]]).astype(np.float64)  # type: ignore[index]
    np.testing.assert_allclose(entry["joint"]["action"]["q99"], np.quantile(both, 0.99, axis=0), rtol=1e-6)
    assert _sft(tmp_path / "own", *words[:-2]) == 0
    assert sorted(read_json(tmp_path / "own" / "dataset_statistics.json")) == ["so100", "so100_b"]


@pytest.mark.parametrize("kind", ["aloha", "so100"])
def test_v21_reads_as_v30(kind: str, data: Path, tmp_path: Path) -> None:
    spec = _aloha() if kind == "aloha" else _so100()
    old, new = load(make_v21(tmp_path / "old", spec)), load(data / kind)
    for name in ("state", "action", "starts", "pushed", "success"):
        np.testing.assert_array_equal(getattr(old, name), getattr(new, name))
    assert (old.instruction, old.cameras) == (new.instruction, new.cameras)
    np.testing.assert_array_equal(old.images[:], new.images[:])
    assert _sft(tmp_path / "ck", str(tmp_path / "old"), *(["--cameras", *ALOHA] if kind == "aloha" else [])) == 0
    (tmp_path / "old/meta/tasks.jsonl").unlink()
    with pytest.raises(UserError, match=r"tasks.jsonl is missing"):
        load(tmp_path / "old")


def test_a_data_set_on_the_hub(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(data / "so100", tmp_path / "served")
    (tmp_path / "served" / "README.md").write_text("not wanted")
    monkeypatch.chdir(tmp_path)
    with opened(tmp_path / "cache") as hub:
        there = hub.add("datasets/lab/so100", tmp_path / "served")
        assert _sft(tmp_path / "ck", "lab/so100:2") == 0
        assert read_provenance(tmp_path / "ck")["dataset"]["path"] == f"lab/so100@{there.sha}"
        assert not [line for line in hub.asked if line.endswith("README.md")]
        with pytest.raises(UserError, match=r"lab/other is no folder here and cannot be had from the Hugging Face hub"):
            _sft(tmp_path / "other", "lab/other")


OWN = ["--gripper", "none"]
REFUSALS: list[tuple[Callable[[Path], list[str]], str]] = [
    (lambda d: [str(d / "aloha"), *OWN], "the cameras top, left_wrist, right_wrist.*--cameras top left"),
    (lambda d: [str(d / "so100")], "actions of 6 numbers and does not say what they are: --gripper none"),
    (lambda d: [str(d / "so100"), "--gripper", "signed"], "beyond -1 to 1 .* --gripper none where they are the robot"),
    (lambda d: [f"{d / 'so100'}:0", *OWN], "a weight above 0"),
    (lambda d: [f"{d / 'so100'}:x", *OWN], "a weight above 0"),
    (lambda d: [str(d / "so100"), str(d / "so100"), *OWN], "named twice"),
    (lambda d: [str(d / "so100"), str(d / "aloha"), *OWN], "the cameras top, left_wrist"),
    (lambda d: [*_mix(d)[:2], *OWN, "--cameras", "top/front", "wrist"], "no data set has a camera 'wrist'"),
    (lambda d: [*_mix(d), *OWN, "--statistics", "joint"], "--statistics joint is for data sets of one"),
    (lambda d: [*_mix(d), *OWN, "--policy", "openvla"], "openvla learns from one robot: so100 has 6 actions"),
    (lambda d: [str(d / "so100"), *OWN, "--train-expert-only"], "--train-expert-only is for the weights"),
    (lambda d: [str(d / "so100"), *OWN, "--checkpoint", str(d / "none")], "neither a checkpoint nor|no checkpoint"),
    (lambda d: OWN, "needs a data set"),
]


@pytest.mark.parametrize(("words", "message"), REFUSALS)
def test_refusals_are_one_line(
    words: Callable[[Path], list[str]], message: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", *words(data), "--out", str(tmp_path / "ck"), "--steps", "1"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert re.search(message, said), said
    assert not list(tmp_path.glob("ck*"))
