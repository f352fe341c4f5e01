"""A policy acts in a gymnasium env with the cameras, units and rate that it learned, or one line says why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import embodied_rl as erl
from embodied_rl.cli import main
from embodied_rl.config.env import GymnasiumConfig
from embodied_rl.factory.policies import load_policy, policy_folder
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import view_of
from embodied_rl.policies.checkpoints.folder import read_json, read_provenance
from embodied_rl.types import Observation
from embodied_rl.vec_env import EnvInfo
from tests.embodied_rl.data.by_hand import make
from tests.embodied_rl.jobs.test_collect_by_policy import expert
from tests.registered import modules_of
from tests.sim.gymnasium.faulty_envs import Constant, make_id
from tests.sim.gymnasium.test_reading import ARMS, LEROBOT, PACKAGES

SFT = [
    *("--gripper", "none", "--steps", "2", "--batch-size", "4", "--warmup", "1", "--threads", "1", "--val-every", "2"),
    *("--validation", "0", "--shift", "0"),
]
SMALL = [
    *("--videos", "0", "--num-threads", "1", "--env.num-envs", "2", "--rollout.episodes-per-iteration", "2"),
    *("--evaluation.states-per-task", "1", "--evaluation.every", "0", "--checkpoint.every", "1", "--iterations", "1"),
]


def said(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The line by which a command is refused."""
    assert main(words) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


class TwoCameras(Constant):
    """Images top and wrist, as gymnasium sorts them, at 25 Hz."""

    metadata: ClassVar[dict[str, Any]] = {"render_fps": 25}
    task_description = "lift"

    def __init__(self) -> None:
        super().__init__(space=LEROBOT)


class OtherCamera(TwoCameras):
    """An image of another name."""

    def __init__(self) -> None:
        space = gymnasium.spaces.Dict({"pixels": LEROBOT["pixels"]["top"], "agent_pos": LEROBOT["agent_pos"]})  # type: ignore[index]
        Constant.__init__(self, space)


def vectors(actions: int) -> tuple[Any, Any]:
    """Of 24 frames: 14 joints, and so many actions beyond 1."""
    rng = np.random.default_rng(0)
    return rng.uniform(-2, 2, (24, 14)), rng.uniform(-2, 2, (24, actions))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Learned from wrist and top, in this order, at 25 Hz."""
    root = tmp_path_factory.mktemp("start")
    data = make(
        root / "data", fps=25, sizes=dict.fromkeys(("top", "wrist"), (24, 32)), kind="image", vectors=vectors(1)
    )
    words = ["sft", str(data), "--policy", "openvla", "--cameras", "wrist", "top", "--chunk-len", "4", *SFT]
    assert main([*words, "--out", str(root / "start")]) == 0
    return str(root / "start")


def test_cameras_come_in_the_order_that_was_learned(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, run = make_id("TwoCameras", TwoCameras), tmp_path / "run"
    train = ["train", "gymnasium", "--task", task, "--policy", "openvla", "--policy.checkpoint", start, *SMALL]
    swapped = ["--env.cameras", "top", "wrist"]
    assert "learned from the cameras wrist, top, and suite 'gymnasium' shows top, wrist: say by" in said(
        capsys, [*train, *swapped, "--output", str(run)]
    )
    assert not run.exists()
    assert main([*train, "--output", str(run)]) == 0
    reads = json.loads((run / "run.json").read_text())[-1]["simulator"]["reads"]
    assert [line.partition(":")[0] for line in reads[:2]] == ["camera wrist", "camera top"]
    wrote = read_provenance(policy_folder(str(run)))
    assert (wrote["cameras"], wrote["control_hz"]) == (["wrist", "top"], 25)
    evaluate = ["eval", "gymnasium", "--task", task, "--checkpoint", str(run), "--states-per-task", "1"]
    refused = said(capsys, [*evaluate, *swapped, "--output", str(tmp_path / "swapped")])
    assert "learned from the cameras wrist, top" in refused
    faster = said(capsys, [*evaluate, "--env.control-hz", "50", "--output", str(tmp_path / "fast")])
    assert "learned from 25 actions a second, the simulator takes 50" in faster
    assert main([*evaluate, "--videos", "0", "--output", str(tmp_path / "evaluation")]) == 0


def test_other_cameras_are_refused_until_they_are_named(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_id("OtherCamera", OtherCamera)
    evaluate = ["eval", "gymnasium", "--task", task, "--checkpoint", start, "--states-per-task", "1"]
    refused = said(capsys, [*evaluate, "--output", str(tmp_path / "evaluation")])
    assert "--env.cameras wrist: the observation has no such image; it has" in refused


@pytest.mark.parametrize("command", ["eval", "demo"])
def test_an_evaluation_asks_for_the_rate(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = make_id("TwoCameras", TwoCameras)
    config = {"tasks": [task], "env": {"name": "gymnasium"}}
    teacher = expert(tmp_path / "policy", 14, np.zeros(1, np.float32), control_hz=10, config=config)
    words = {
        "eval": ["eval", "gymnasium", "--task", task, "--states-per-task", "1", "--output", str(tmp_path / "out")],
        "demo": ["demo", "--suite", "gymnasium", "--task", task, "--out", str(tmp_path / "demo.mp4")],
    }[command]
    assert "learned from 10 actions a second, the simulator takes 25" in said(capsys, [*words, "--checkpoint", teacher])


class Net(nn.Module):
    """Reads the joints alone."""

    def __init__(self, info: EnvInfo) -> None:
        super().__init__()
        self.action_head = nn.Linear(info.proprio_dim, 2 * info.action_dim)

    def forward(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Means [N, 2, A] and features [N, 14]."""
        return self.action_head(obs.proprio).view(len(obs.proprio), 2, -1), obs.proprio


def net(info: EnvInfo) -> Any:
    return erl.wrap_policy(Net(info), erl.GaussianActions(info, chunk_len=2, features=info.proprio_dim, std=0.05))


@pytest.fixture
def _arms() -> Iterator[None]:
    with modules_of(PACKAGES / "gym_two_arms"):
        erl.register_policy("net", net)
        yield
    gymnasium.registry.pop(ARMS, None)
    sys.modules.pop("gym_two_arms", None)


def opened(checkpoint: Path) -> EnvInfo:
    """The env as a command opens it for the policy of `checkpoint`."""
    env = GymnasiumConfig(num_envs=1)
    with open_tasks(load("gymnasium", (ARMS,), env), env, view_of(load_policy(policy_folder(str(checkpoint))))) as seen:
        return seen.info


@pytest.mark.usefixtures("_arms")
def test_a_policy_of_ones_own_keeps_the_units_of_its_data(tmp_path: Path) -> None:
    """Imitation, then a run that goes on from it, then an evaluation: actions are in rad throughout."""
    data = make(tmp_path / "data", fps=50, sizes={"top": (96, 96)}, kind="image", vectors=vectors(14))
    begun, run, anew = tmp_path / "begun", tmp_path / "run", tmp_path / "anew"
    assert main(["sft", str(data), "--policy", "net", *SFT, "--out", str(begun)]) == 0
    in_rad = opened(begun).action_high
    assert max(in_rad) == pytest.approx(3.14)
    train = ["train", "gymnasium", "--task", ARMS, "--policy", "net", *SMALL]
    assert main([*train, "--policy.checkpoint", str(begun), "--output", str(run)]) == 0
    made: Any = load_policy(policy_folder(str(run)))
    assert made.made_for.info.action_high == in_rad == opened(run).action_high
    was: Any = load_policy(begun)
    torch.testing.assert_close(made.scale, was.scale)
    assert main([*train, "--output", str(anew)]) == 0
    assert set(opened(anew).action_high) == {1.0}
    _without_the_field(begun)
    assert opened(begun).action_high == in_rad


def _without_the_field(folder: Path) -> None:
    """As an earlier version wrote it."""
    config = read_json(folder / "config.json")
    del config["own_units"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "checksums.json").unlink(missing_ok=True)
