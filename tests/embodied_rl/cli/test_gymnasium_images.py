"""An environment with images in LeRobot's form, by its id alone: train, resume, eval; what is refused by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.factory.policies import load_policy, policy_folder
from embodied_rl.policies.checkpoints.folder import read_provenance
from tests.embodied_rl.data.by_hand import make
from tests.sim.gymnasium import faulty_envs
from tests.sim.gymnasium.test_reading import ARMS, LEROBOT, PACKAGES

SMALL = [
    *("--videos", "0", "--num-threads", "1", "--env.num-envs", "4", "--rollout.episodes-per-iteration", "4"),
    *("--evaluation.states-per-task", "2", "--evaluation.every", "0", "--checkpoint.every", "1"),
]


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment's package can be imported, as if it were installed; its ids are unknown until then."""
    monkeypatch.syspath_prepend(str(PACKAGES / "gym_two_arms"))
    yield
    gymnasium.registry.pop(ARMS, None)
    sys.modules.pop("gym_two_arms", None)


def train(folder: Path, *words: str) -> int:
    return main(["train", "gymnasium", "--task", ARMS, "--iterations", "1", "--output", str(folder), *SMALL, *words])


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("openvla", ("--algorithm", "grpo", "--algorithm.group-size", "2")),
        ("openvla_oft", ()),
        ("pi0", ("--scheduler", "pipelined")),
        ("smolvla", ("--policy.chunk-len", "2")),
        ("act", ("--policy.initial-std", "0.5")),
    ],
)
def test_every_policy_of_images_trains_by_the_id_alone(tmp_path: Path, policy: str, words: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    assert train(run, "--policy", policy, *words) == 0
    made = load_policy(policy_folder(str(run)))
    config: Any = made.config
    assert (config.action_dim, config.proprio_dim, config.num_cameras) == (14, 14, 1)
    assert made.chunk_len == (2 if policy == "smolvla" else 4)
    reads = json.loads((run / "run.json").read_text())[-1]["simulator"]["reads"]
    assert reads[:2] == [
        "camera top: observation['pixels']['top'], 96x96",
        "proprio: observation['agent_pos'], 14 numbers",
    ]
    assert reads[2] == "rate: 50 Hz, metadata['render_fps']"
    evaluate = ["eval", "gymnasium", "--task", ARMS, "--checkpoint", str(run), "--states-per-task", "2"]
    assert main([*evaluate, "--output", str(tmp_path / "evaluation")]) == 0


@pytest.mark.parametrize("policy", ["openvla", "pi0"])
def test_what_imitates_a_robots_data_trains_and_acts_in_an_env_of_its_sizes(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two data sets, for the second one's robot; at another rate than the env's it is refused."""
    rng = np.random.default_rng(0)
    words = ["sft"]
    for name, fps in (("slow", 10), ("arms", 50)):
        joints = rng.uniform(-2, 2, (2, 24, 14)).astype(np.float32)
        make(tmp_path / name, fps=fps, sizes={"top": (96, 96)}, vectors=(joints[0], joints[1]))
        words.append(str(tmp_path / name))
    start, run = tmp_path / "start", tmp_path / "run"
    words += ["--policy", policy, "--gripper", "none", "--steps", "2", "--chunk-len", "4", "--val-every", "2"]
    assert main([*words, "--batch-size", "4", "--val-samples", "4", "--threads", "1", "--out", str(start)]) == 0
    begin = ["--policy", policy, "--policy.checkpoint", str(start), "--policy.lora-rank", "2"]
    assert train(run, *begin) == 2
    assert "learned from 10 actions a second, the simulator takes 50" in capsys.readouterr().err
    assert train(run, *begin, "--policy.unnorm-key", "arms") == 0
    made = load_policy(policy_folder(str(run)))
    assert made.base is not None
    assert made.unnorm_key == "arms"
    robots = read_provenance(policy_folder(str(run)))["robots"]  # what holds for the other robot is not forgotten
    assert {name: robot["control_hz"] for name, robot in robots.items()} == {"slow": 10, "arms": 50}
    evaluate = ["eval", "gymnasium", "--task", ARMS, "--checkpoint", str(run), "--states-per-task", "2"]
    assert main([*evaluate, "--output", str(tmp_path / "evaluation")]) == 0


def test_a_resumed_run_of_images_goes_on_exactly(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert train(whole, "--policy", "openvla", "--iterations", "2") == 0
    assert train(halves, "--policy", "openvla") == 0
    assert main(["train", "--resume", str(halves), "--iterations", "2"]) == 0
    one, other = (load_policy(policy_folder(str(run))).model.state_dict() for run in (whole, halves))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_state_policy_reads_the_numbers_beside_the_images(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "--policy", "mlp") == 0
    made: Any = load_policy(policy_folder(str(run)))
    assert made.config.observation_dim == 14


class Silent(faulty_envs.Constant):
    """Says nothing of what is to be done."""

    def __init__(self) -> None:
        super().__init__(space=LEROBOT)


class Unbounded(faulty_envs.Constant):
    """Takes any number."""

    task = "go anywhere"

    def __init__(self) -> None:
        super().__init__(space=LEROBOT)
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Blind(faulty_envs.Constant):
    """Shows a state."""

    def __init__(self) -> None:
        super().__init__(space=gymnasium.spaces.Box(-1, 1, (3,), np.float32))


@pytest.mark.parametrize(
    ("entry", "words", "expected"),
    [
        (Silent, (), "says none: give one by --env.instruction TEXT"),
        (Silent, ("--env.cameras", "left"), "--env.cameras left: the observation has no such image; it has top, wrist"),
        (Silent, ("--env.instruction", "lift", "--policy.lora-rank", "4"), "name it by --policy.checkpoint"),
        (Unbounded, (), "action 0 of suite 'gymnasium' has no bounds"),
        (Blind, (), "policy openvla reads images, and suite 'gymnasium' shows a state: train it with mlp"),
    ],
)
def test_what_an_env_does_not_offer_is_refused_in_one_line(
    tmp_path: Path, entry: type, words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = faulty_envs.make_id(entry.__name__, entry)
    output = tmp_path / "run"
    given = ["train", "gymnasium", "--task", name, "--policy", "openvla", "--output", str(output), *SMALL, *words]
    assert main(given) == 2
    shown = capsys.readouterr().err.strip().splitlines()
    assert expected in shown[-1]
    assert not output.exists()
