"""`embodied-rl serve` as its users run it: a process of its own, the policy in the package, Ctrl-C."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.factory.policies import open_policy, policy_info
from embodied_rl.jobs import serve as job
from embodied_rl.jobs.describe import policy_words
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.policy import MLPPolicy
from embodied_rl.real_robot.server.observations import PolicySpec, Request, read_request
from embodied_rl.real_robot.server.served_policy import ServedPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Array, Observation
from tests.policies import act_models, oft_policies, pi0_models, smolvla_models
from tests.real_robot.openpi_like import OpenpiLike, libero_obs
from tests.real_robot.test_server import get
from tests.toy import ToyPolicy
from tests.toy_world import ACTION_DIM, CHUNK, SIZE

ROOT = Path(__file__).parents[2]


class Program:
    """The command in a process; `port` once it is ready."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "embodied_rl", "serve", "shipped", "--port", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )
        self.said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if found := re.match(r"ready: ws://127\.0\.0\.1:(\d+) ", line):
                self.port = int(found[1])
                return
        raise AssertionError(self.said)

    def end(self, number: int) -> int:
        """Exit code after that signal; the rest of the output is added to `said`."""
        self.process.send_signal(number)
        self.said += self.process.communicate(timeout=900)[0]
        return self.process.returncode


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    running = Program("--token", "s3cret", "--max-batch", "4", "--max-batch-delay-ms", "1000")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def in_process(obs: dict[str, Any]) -> Array:
    """What the policy answers where it is called directly, on pictures of its own size."""
    images = np.stack([obs["observation/image"], obs["observation/wrist_image"]])[None]
    proprio = obs["observation/state"].astype(np.float32)[None]
    policy = open_policy("shipped", "cpu")
    seen = Observation.from_numpy(images, proprio, [obs["prompt"]])
    return policy.act(seen, DecisionRng(np.zeros(1, np.int64), np.zeros(1, np.int64)), "greedy").actions[0].numpy()


@pytest.mark.parametrize(
    ("provenance", "embodiment", "tasks"),
    [
        ({}, None, None),
        ({"suite": "tabletop_goal", "config": {"tasks": ["turn_on_the_stove"]}}, "libero", ["turn on the stove"]),
        (
            {"suite": "libero_10", "train_states": {"libero_10/KITCHEN_SCENE3_turn_on_the_stove": [0]}},
            "libero",
            ["turn on the stove"],
        ),
        ({"suite": "libero_goal_lan", "train_states": {"libero_goal_lan/turn_on_the_stove": [0]}}, "libero", None),
        ({"suite": None, "instructions": ["wipe the table"]}, None, ["wipe the table"]),
        ({"suite": "PickCube-v1", "config": {"tasks": ["PickCube-v1"]}}, "PickCube-v1", None),
        ({"suite": None, "instructions": [str(number) for number in range(1025)]}, None, None),
    ],
)
def test_what_a_checkpoint_says_of_its_training(
    provenance: dict[str, Any], embodiment: str | None, tasks: list[str] | None
) -> None:
    assert job.trained_on(provenance) == {"embodiment": embodiment, "tasks": tasks, "views": None}
    assert job.trained_on(provenance | {"views": ["a", "b"]})["views"] == ["a", "b"]


def test_a_suite_without_a_choice_of_tasks_has_all_of_them() -> None:
    tasks = job.trained_on({"suite": "tabletop_goal"})["tasks"]
    assert len(tasks) == 7
    assert "open the drawer of the cabinet" in tasks


@pytest.mark.process
def test_the_program_from_ready_to_ctrl_c(program: Program) -> None:
    assert "programs of this machine only, with the token" in program.said
    assert "s3cret" not in program.said
    assert get(program.port, "/healthz") == (200, "OK\n")
    observations = [libero_obs(robot, size=64) for robot in range(4)]
    clients = [OpenpiLike(program.port, "s3cret") for _ in range(4)]
    about = clients[0].metadata
    assert (about["cameras"], about["image_size"], about["chunk_len"], about["action_dim"]) == (2, 64, 4, 7)
    assert (about["embodiment"], len(about["tasks"]), about["protocol"]) == ("libero", 5, 1)
    alone = [client.infer(obs)["actions"] for client, obs in zip(clients, observations, strict=True)]
    assert np.array_equal(alone[0], in_process(observations[0]))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pair: pair[0].infer(pair[1]), zip(clients, observations, strict=True)))
    assert max(answer["server_timing"]["batch_rows"] for answer in together) > 1
    for one, answer in zip(alone, together, strict=True):
        assert np.array_equal(answer["actions"], one)
    large = libero_obs(0, size=300)
    assert clients[0].infer(large)["actions"].shape == (4, 7)
    for client in clients:
        client.socket.close()
    assert program.end(signal.SIGINT) == 0
    assert "stopping: requests that are here are answered\n" in program.said
    assert program.said.endswith("stopped after 9 answers\n")
    assert "Traceback" not in program.said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("serve nowhere", "nowhere"),
        ("serve shipped --checkpoint x", "both name the policy"),
        ("serve --port 70000", "--port must lie in 0 to 65535"),
        ("serve --max-batch 0", "--max-batch must lie in 1"),
        ("serve --images jpeg", "--images"),
        ("serve --preset nano --port 0", "--preset does not apply"),
        ("serve --host no.such.host.example", "--host no.such.host.example"),
        ("serve --host 192.0.2.1", "cannot listen at 192.0.2.1"),
        ("serve --tokn x", "Did you mean '--token'"),
    ],
)
def test_what_cannot_be_served_is_one_line(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken_is_said_before_a_policy_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "nowhere", "--port", str(port)]) == 2
    assert f"port {port} (Address already in use)" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["", " x", "caf\u00e9", "a\nb"])
def test_a_token_that_no_header_carries_is_refused(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--token", token]) == 2
    assert "printable ASCII" in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    assert main(["serve", "--port", "0"]) == 2
    assert "serve needs msgpack: pip install 'embodied-rl[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "token", "text"),
    [
        ("127.0.0.1", None, "programs of this machine only, without a token"),
        ("0.0.0.0", "x" * 16, "whoever reaches this port and has the token; nothing is encrypted"),
        ("0.0.0.0", "x" * 15, "a short token is found by trying: `openssl rand -hex 16`"),
        ("0.0.0.0", None, "ANYBODY who reaches this port may use the policy"),
        ("::", None, "ANYBODY"),
    ],
)
def test_who_can_reach_it_is_said_plainly(host: str, token: str | None, text: str) -> None:
    assert text in job.access(host, token)


@pytest.mark.parametrize(
    ("provenance", "config", "architecture", "pipeline"),
    [
        ({"config": {"protocol": "openpi"}}, {}, "pi0", "openpi"),
        ({"dataset": {"collected": {"protocol": "rlinf"}}}, {}, "openvla_oft", "rlinf"),
        ({"seed": 0}, {}, "openvla", "as_rendered"),
        ({}, {"architecture": "openvla"}, "openvla", "as_rendered"),
        ({}, {"embodied_rl": {}}, "pi0", "as_rendered"),
        ({}, {"model_type": "openvla"}, "openvla", "openvla"),
        ({}, {}, "pi0", "openpi"),
        ({}, {}, "smolvla", "lerobot"),
        ({}, {}, "act", "lerobot"),
    ],
)
def test_the_pipeline_is_the_checkpoints(
    provenance: dict[str, Any], config: dict[str, Any], architecture: str, pipeline: str
) -> None:
    assert job.trained_pipeline(provenance, config, architecture) == pipeline


SPEC = PolicySpec(cameras=1, image_size=SIZE, proprio_dim=2, chunk_len=CHUNK, action_dim=ACTION_DIM)


def requests(count: int) -> list[Request]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 1, SIZE, SIZE, 3), np.uint8)
    proprio = rng.random((count, 2), np.float32)
    return [Request(images[i], proprio[i], "touch it", seed=i, decision=3 * i) for i in range(count)]


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_answers_do_not_depend_on_the_batch(mode: Any) -> None:
    served, rows = ServedPolicy(ToyPolicy(), SPEC, mode), requests(6)
    alone = [served.decide([row])[0] for row in rows]
    for together, one in zip([*served.decide(rows[:2]), *served.decide(rows[2:])], alone, strict=True):
        assert np.array_equal(together, one)


@pytest.mark.parametrize(
    "make", [oft_policies.policy, pi0_models.tiny_policy, smolvla_models.tiny_policy, act_models.tiny_policy]
)
def test_every_family_is_served(make: Any) -> None:
    policy = make()
    spec = job.spec_of(policy)
    rng, shape = np.random.default_rng(0), (spec.image_size, spec.image_size, 3)
    rows = []
    for seed in range(3):
        images = [rng.integers(0, 256, shape, np.uint8) for _ in range(spec.cameras)]
        message = {"images": images, "proprio": rng.normal(size=spec.proprio_dim), "instruction": "open the drawer"}
        rows.append(read_request(message | {"seed": seed, "decision": 1}, spec, lambda image: image))
    served = ServedPolicy(policy, spec)
    served.warm_up([2])
    together = served.decide(rows)
    for row, answer in zip(rows, together, strict=True):
        (alone,) = served.decide([row])
        assert not isinstance(answer, str)
        assert not isinstance(alone, str)
        assert answer.shape == (spec.chunk_len, spec.action_dim)
        np.testing.assert_allclose(answer, alone, atol=1e-5)  # as far as matrix products agree
    if policy.architecture != "openvla_oft":  # the start of the denoising is the seed's
        (other,) = served.decide([dataclasses.replace(rows[0], seed=9)])
        assert not np.array_equal(other, together[0])


def test_a_state_policy_is_served() -> None:
    policy = MLPPolicy.fresh(MLPModelConfig(observation_dim=3, action_dim=2, chunk_len=2), seed=0)
    spec = job.spec_of(policy)
    served = ServedPolicy(policy, spec)
    served.warm_up([1, 2])
    request = read_request({"proprio": [0.1, 0.2, 0.3], "seed": 0, "decision": 0}, spec, lambda image: image)
    (actions,) = served.decide([request])
    assert not isinstance(actions, str)
    assert actions.shape == (2, 2)
    assert policy_words(policy_info(policy, "")).startswith("mlp, Gaussian")


class Picky(ToyPolicy):
    """Cannot take a prompt, and is not sure of another."""

    def act(self, obs: Observation, rng: DecisionRng, mode: Any) -> ActOutput:
        if "too long" in obs.instruction:
            raise ValueError("the prompt has\ntoo many tokens")
        out = super().act(obs, rng, mode)
        out.actions[[words == "unsure" for words in obs.instruction]] = torch.nan
        return out


def test_one_row_that_cannot_be_answered_leaves_the_others_theirs() -> None:
    rows = requests(3)
    rows[1] = Request(rows[1].images, rows[1].proprio, "too long", 0, 0)
    rows[2] = Request(rows[2].images, rows[2].proprio, "unsure", 0, 0)
    first, second, third = ServedPolicy(Picky(), SPEC).decide(rows)
    assert np.array_equal(first, ServedPolicy(ToyPolicy(), SPEC).decide(rows[:1])[0])
    assert second == "the policy failed on this observation: ValueError: the prompt has too many tokens"
    assert third == "the policy's numbers for this observation are not finite"
