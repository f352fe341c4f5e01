"""The example of a wrapped network, registered: the commands train, resume, evaluate and export it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import embodied_rl as erl
from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import policy_folder
from embodied_rl.telemetry.metrics import read_metrics
from tests.embodied_rl.data.by_hand import make
from tests.embodied_rl.test_plugins import MODULE, PACKAGE, SMALL, line
from tests.registered import modules_of

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMED = ("point_pictures", "--policy", "tiny_vla", "--import", MODULE, "--import", "wrapped_policy")

PPO = ("--algorithm.critic-warmup-iterations", "0", "--num-threads", "1")


@pytest.fixture(scope="module", autouse=True)
def _modules() -> Iterator[None]:
    with modules_of(PACKAGE), modules_of(EXAMPLES):
        yield


def trained(folder: Path, *words: str) -> Path:
    assert main(["train", *NAMED, *SMALL, *words, "--output", str(folder)]) == 0
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(policy_folder(str(folder)) / "model.safetensors")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by PPO of two updates. Tests must not change it."""
    return trained(tmp_path_factory.mktemp("wrapped") / "run", "--iterations", "2", *PPO)


def test_a_resumed_run_is_the_whole_one(run: Path, tmp_path: Path) -> None:
    part = trained(tmp_path / "part", *PPO)
    assert main(["train", "--resume", str(part), "--iterations", "2"]) == 0
    one, two = weights(run), weights(part)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_checkpoint_is_the_policy_again_and_so_is_its_export(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    assert main(["export", "--checkpoint", str(run), "--layout", "native", "--out", str(out)]) == 0
    kept = weights(run)
    for source in (run, out):
        state = erl.load_policy(source).state_dict()
        assert all(torch.equal(state[key], value) for key, value in kept.items())
    assert json.loads((out / "config.json").read_text())["class"] == "wrapped_policy.TinyVLA with ActionTokens"
    assert main(["eval", "--checkpoint", str(out), "--states-per-task", "1", "--json", str(tmp_path / "e.json")]) == 0


@pytest.mark.parametrize("words", [("--algorithm", "grpo"), ("--scheduler", "pipelined")], ids=" ".join)
def test_groups_and_a_replica_train_it_too(words: tuple[str, ...], tmp_path: Path) -> None:
    more = ("--rollout.episodes-per-iteration", "32")
    folder = trained(tmp_path / "run", *words, *more)
    (row,) = [row for row in read_metrics(folder / "metrics.jsonl") if "train/loss" in row]
    assert row["train/num_samples"] > 0


def test_another_networks_checkpoint_is_refused_in_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import wrapped_policy as example  # type: ignore[import-not-found]

    info = erl.load_policy(run).made_for.info
    other = erl.wrap_policy(example.TinyVLA(info), erl.GaussianActions(info, chunk_len=4))
    with pytest.raises(UserError, match=r"holds wrapped_policy\.TinyVLA with ActionTokens, not .* GaussianActions"):
        erl.load_policy(run, into=other)
    assert main(["export", "--checkpoint", str(run), "--out", "nowhere"]) == 2
    assert line(capsys) == "a custom policy has no published layout: take --layout native."


STEPS = ("--batch-size", "8", "--warmup", "1", "--val-every", "20", "--lr", "3e-3", "--threads", "1")


def test_imitation_begins_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command gives the same weights; PPO goes on from them."""
    data = make(tmp_path / "data", sizes=dict.fromkeys(("top", "hand"), (64, 64)))
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = ["sft", str(data), "--policy", "tiny_vla", *NAMED[3:], "--steps", "20", "--validation", "0.34", *STEPS]
    assert main([*words, "--out", str(whole)]) == 0
    history = json.loads((whole / "provenance.json").read_text())["history"]
    assert history[-1]["loss"] < 2.0  # of log(9) at the start
    assert "val_token_accuracy" in history[-1]
    assert "tiny_vla: 0.34 M parameters, chunks of 4 steps" in capsys.readouterr().out
    assert main([*words, "--out", str(out)]) == 0
    assert all(torch.equal(weights(whole)[name], value) for name, value in weights(out).items())
    assert weights(trained(tmp_path / "run", *PPO, "--policy.checkpoint", str(out))).keys() == weights(out).keys()


def test_a_robots_own_units_come_back(tmp_path: Path) -> None:
    """Fourteen joints beyond 1, one camera: the data's extremes are the bounds of actions."""
    data, out = make(tmp_path / "data", fps=50, actions=14, scale=3.0, sizes={"top": (64, 64)}), tmp_path / "out"
    words = ["sft", str(data), "--gripper", "none", "--policy", "tiny_vla", *NAMED[3:], "--steps", "2", *STEPS]
    assert main([*words, "--out", str(out)]) == 0
    policy = erl.load_policy(out)
    info = policy.made_for.info
    assert (info.action_dim, info.cameras, info.control_hz) == (14, ("top",), 50)
    assert max(info.action_high) > 1.5
    torch.testing.assert_close(policy.offset + policy.scale, torch.tensor(info.action_high))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "tiny_vla", "--preset", "nano"), "--preset does not apply to 'tiny_vla'"),
        (("--policy", "tiny_vla", "--checkpoint", "x"), "--checkpoint does not apply to 'tiny_vla'"),
        (("--policy", "tiny_vlo"), "unknown policy 'tiny_vlo'. Did you mean 'tiny_vla'?"),
    ],
)
def test_what_imitation_of_it_does_not_take_is_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", str(tmp_path), "--out", str(tmp_path / "out"), *words, *NAMED[3:]]) == 2
    assert line(capsys).startswith(said)


def test_imitation_from_its_checkpoint_says_what_to_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", str(tmp_path), "--out", str(tmp_path / "out"), "--checkpoint", str(run)]) == 2
    assert line(capsys).endswith("and sft can't go on from one: it begins anew, --policy NAME.")
