"""vla-eval, as it comes from the package index, measures over its protocol what our own evaluation measures."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embodied_rl as erl
from embodied_rl.config.register import register_env
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.policies.openvla.checkpoint import save_policy
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.types import ChunkResult, EpisodeSpec, Observation
from tests.env_info import env_info
from tests.registered import modules_of
from tests.sim.views.test_trainers import need
from tests.toy_world import HELDOUT, HORIZON, INSTRUCTIONS, TASKS, ToyEnv

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE_S, PATIENCE_MS = 900, "900000"
"""No test depends on how busy the machine is."""
PIXELS, CAMERAS = 32, ("agentview", "robot0_eye_in_hand")


class World(ToyEnv):
    """The toy's world with LIBERO's observations and actions; the point moves by the arm's x and y."""

    train_states, heldout_states = TASKS, HELDOUT

    def __init__(self, num_envs: int, **options: Any) -> None:
        super().__init__(num_envs, **options)
        shape = {"cameras": CAMERAS, "image_shape": (PIXELS, PIXELS), "proprio_dim": 8}
        self.info = env_info("toy", 7, max_episode_steps=HORIZON, **shape)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id in env_ids:  # a reset may replace an episode that has not ended
            self._spec[env_id] = None
        super().reset(env_ids, episodes)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        return super().step(env_ids, actions[..., :2])

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        for row, env_id in enumerate(env_ids):
            out.images[row, 0] = torch.from_numpy(self.frame(env_id, "agentview", PIXELS))
            out.images[row, 1] = out.images[row, 0].flip(0)
            out.proprio[row] = torch.from_numpy(np.tile(self._position[env_id], 4))
            out.instruction[row] = self._shown[env_id]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small OpenVLA of random weights: what it does depends on the pictures, the proprio and the words."""
    config = nano(image_size=PIXELS, vision_dim=32, dim=64, mlp_dim=96, text_vocab=64, chunk_len=2)
    policy = OpenVLAPolicy.fresh(config, INSTRUCTIONS.values(), seed=0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    folder = tmp_path_factory.mktemp("vla_eval") / "policy"
    save_policy(policy, folder, {"suite": "tabletop_goal"})
    return folder


@pytest.fixture(scope="module")
def address(checkpoint: Path) -> Iterator[str]:
    """Of `embodied-rl serve` with that policy."""
    words = [
        "serve",
        str(checkpoint),
        "--device",
        "cpu",
        "--port",
        "0",
        "--max-batch",
        "1",
        "--deadline-ms",
        PATIENCE_MS,
    ]
    process = started([sys.executable, "-m", "embodied_rl", *words])
    yield wait_for(process, r"ready: (ws://127\.0\.0\.1:\d+) ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(900) == 0


@pytest.fixture(scope="module")
def examples() -> Iterator[tuple[Any, Any]]:
    """The modules of the server and of the benchmark, and the toy's world as a suite."""
    need("vla_eval")
    with modules_of(EXAMPLES):
        import vla_eval_benchmark  # type: ignore[import-not-found]
        import vla_eval_server  # type: ignore[import-not-found]

        register_env("toy", World)
        yield vla_eval_server, vla_eval_benchmark


@pytest.fixture(scope="module")
def ours(checkpoint: Path) -> dict[tuple[str, int], tuple[bool, int]]:
    """Success and control steps by task and number of the initial state, as `embodied-rl eval` measures them."""
    report = evaluate(World(1), erl.load_policy(checkpoint, device="cpu"), evaluation_specs(HELDOUT, 0), "greedy")
    assert 4 <= report.overall.successes <= 20
    return {
        (result.spec.task.partition("/")[2], result.spec.init_state - HELDOUT[result.spec.task][0]): (
            result.success,
            result.num_steps,
        )
        for result in report.results
    }


def started(words: Sequence[str]) -> subprocess.Popen[str]:
    """A program, with what it says."""
    path = os.pathsep.join([str(ROOT), str(EXAMPLES)])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment)


def wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    """The group of the first line that has the pattern."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(said)


def entry(**changes: Any) -> dict[str, Any]:
    """A config of vla-eval's with one benchmark."""
    benchmark = {"benchmark": "vla_eval_benchmark:EmbodiedRLBenchmark", "episodes_per_task": 12}
    params = {"params": {"suite": "toy", "seed": 0}}
    return {"server": {"timeout": PATIENCE_S}, "benchmarks": [benchmark | params | changes]}


def episodes(result: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """What vla-eval says of each, by task and number."""
    return {(task["task"], each["episode_id"]): each for task in result["tasks"] for each in task["episodes"]}


def measured(result: dict[str, Any]) -> dict[tuple[str, int], tuple[bool, int]]:
    """As `ours`, of those that ended without an error."""
    return {
        key: (each["metrics"]["success"], each["metrics"]["control_steps"])
        for key, each in episodes(result).items()
        if not each.get("failure_reason")
    }


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_it_measures_what_our_evaluation_measures(
    address: str, examples: Any, ours: Any, scale: float, tmp_path: Path
) -> None:
    """Also that a server that scales actions wrongly would be seen."""
    from vla_eval import evaluate as evaluate_theirs

    class Scaled(examples[0].ServedPolicy):
        def predict_batch(self, obs_batch: list[Any], ctx_batch: list[Any]) -> list[Any]:
            return [{"actions": scale * each["actions"]} for each in super().predict_batch(obs_batch, ctx_batch)]

    result = evaluate_theirs(Scaled(address, timeout=PATIENCE_S), entry(), output_dir=tmp_path)[0]
    assert measured(result).keys() == ours.keys()
    assert (measured(result) == ours) is (scale == 1)
    successes = {key: success for key, (success, _) in measured(result).items()}
    assert (successes == {key: success for key, (success, _) in ours.items()}) is (scale == 1)
    assert result["mean_success"] == pytest.approx(np.mean([*successes.values()]), abs=1e-4)
    for each in episodes(result).values():  # one observation a chunk
        assert each["steps"] == -(-each["metrics"]["control_steps"] // 2)


def test_a_benchmark_of_single_actions_runs_the_same(
    address: str, examples: Any, ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vla-eval's own are: the server keeps the rest of a chunk."""
    from vla_eval import evaluate as evaluate_theirs

    tasks = [{"name": name.partition("/")[2], "suite": "toy"} for name in HELDOUT]
    monkeypatch.setattr(examples[1].EmbodiedRLBenchmark, "get_tasks", lambda _: tasks)
    result = evaluate_theirs(examples[0].ServedPolicy(address, timeout=PATIENCE_S), entry(), output_dir=tmp_path)[0]
    assert measured(result) == ours
    assert all(each["steps"] == each["metrics"]["control_steps"] for each in episodes(result).values())


def test_shards_run_the_same_side_by_side(address: str, examples: Any, ours: Any) -> None:
    from vla_eval import serve_background
    from vla_eval.orchestrator import Orchestrator

    policy = examples[0].ServedPolicy(address, timeout=PATIENCE_S, max_batch_size=2)
    with serve_background(policy) as server, ThreadPoolExecutor(2) as pool:
        config = entry() | {"server": {"url": server.url, "timeout": PATIENCE_S}}
        shards = [Orchestrator(config, shard_id=shard, num_shards=2, no_save=True) for shard in range(2)]
        halves = [measured(result) for (result,) in pool.map(lambda shard: asyncio.run(shard.run()), shards)]
    assert all(len(half) == 12 for half in halves)
    assert halves[0] | halves[1] == ours


def test_what_goes_wrong_in_an_episode_is_an_error_of_that_one(
    address: str, examples: Any, ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulator that breaks, a request that the policy server refuses, and too many episodes."""
    from vla_eval import evaluate as evaluate_theirs

    make_obs = examples[1].EmbodiedRLBenchmark.make_obs

    def without_states(self: Any, raw_obs: Observation, task: Any) -> dict[str, Any]:
        message = make_obs(self, raw_obs, task)
        return message if (task["name"], task["episode_idx"]) != ("touch", 0) else message | {"states": None}

    monkeypatch.setattr(examples[1].EmbodiedRLBenchmark, "make_obs", without_states)
    register_env("toy", partial(World, broken={("toy/reach", HELDOUT["toy/reach"][0])}))
    result = evaluate_theirs(
        examples[0].ServedPolicy(address, timeout=PATIENCE_S), entry(episodes_per_task=13), output_dir=tmp_path
    )[0]
    register_env("toy", World)
    lost = {key: each for key, each in episodes(result).items() if each.get("failure_reason")}
    assert {key: each["failure_reason"] for key, each in lost.items()} == {
        ("reach", 0): "env_step",
        ("touch", 0): "model_act",
        ("reach", 12): "env_start",
        ("touch", 12): "env_start",
    }
    assert "the simulator broke in toy/reach, initial state 16" in lost["reach", 0]["failure_detail"]
    assert "missing key 'proprio'" in lost["touch", 0]["failure_detail"]
    assert "episodes_per_task must not exceed 12" in lost["reach", 12]["failure_detail"]
    assert measured(result) == {key: each for key, each in ours.items() if key not in lost}


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({}, {"upright": True, "image_size": 64}),
        ({"mirror": True}, {"upright": False}),
        ({"image_pipeline": "openpi"}, {"upright": False}),
    ],
)
def test_frames_are_shown_as_the_policy_learned_from_them(
    examples: Any, told: dict[str, Any], shown: dict[str, Any]
) -> None:
    server = object.__new__(examples[0].ServedPolicy)
    about = {"cameras": 2, "proprio_dim": 0, "image_size": 64, "image_pipeline": "as_rendered", "mirror": False}
    server._policy = about | told
    assert server.get_observation_params() == shown | {"send_wrist_image": True, "send_state": False}


@pytest.mark.parametrize(
    ("params", "options"),
    [
        ({"suite": "libero_goal"}, {"protocol": "openpi", "image_size": 256, "cameras": 1}),
        ({"suite": "libero_goal", "upright": True}, {"protocol": "libero", "image_size": 256, "cameras": 1}),
        ({"suite": "libero_10", "protocol": "rlinf"}, {"protocol": "rlinf", "image_size": 256, "cameras": 1}),
        ({"send_wrist_image": True, "image_size": 64, "upright": True}, {"image_size": 64, "cameras": 2}),
    ],
)
def test_libero_is_run_as_vla_eval_runs_it(
    examples: Any, params: dict[str, Any], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict[str, Any]()

    def make(suite: str, num_envs: int, **given: Any) -> World:
        asked.update(given)
        return World(num_envs)

    monkeypatch.setattr(erl, "make_vec_env", make)
    examples[1].EmbodiedRLBenchmark(**params)
    assert asked == options


def test_the_commands_of_the_page_run_a_suite(address: str, checkpoint: Path, tmp_path: Path) -> None:
    """On a real suite, the actions are those that the policy gives to what our simulator shows."""
    need("vla_eval")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    served = [f"--args.address={address}", f"--args.timeout={PATIENCE_S}", f"--port={port}"]
    server = started([sys.executable, "examples/vla_eval_server.py", *served])
    wait_for(server, r"(Starting model server) on")
    config = tmp_path / "config.yaml"
    url = f"{{url: 'ws://127.0.0.1:{port}', timeout: {PATIENCE_S}}}"
    config.write_text(f"extends: {EXAMPLES / 'vla_eval.yaml'}\noutput_dir: {tmp_path}\nserver: {url}\n")
    words = ["run", "--config", str(config), "--param", "suite=tabletop_goal"]
    few = ["tasks=[turn_on_the_stove]", "episodes_per_task=1", "max_steps=3"]
    overrides = [word for field in few for word in ("--benchmark-field", field)]
    evaluator = started([sys.executable, "-m", "vla_eval.cli.main", *words, *overrides])
    said = evaluator.communicate(timeout=900)[0]
    server.terminate()
    server.communicate(timeout=900)
    assert evaluator.returncode == 0, said
    assert "Spec mismatch" not in said
    (file,) = tmp_path.rglob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["action"] for row in rows if "action" in row] == chunks_of(checkpoint, 3)


def chunks_of(checkpoint: Path, decisions: int) -> list[list[list[float]]]:
    """What the policy does in the first initial state of a task."""
    policy, found = erl.load_policy(checkpoint, device="cpu"), list[list[list[float]]]()
    with erl.make_vec_env("tabletop_goal", 1, tasks="turn_on_the_stove", image_size=PIXELS) as env:
        spec = evaluation_specs(env.heldout_states, 0)[0]
        env.reset([0], [spec])
        obs = env.new_observation(1)
        for decision in range(decisions):
            env.observe([0], obs)
            rng = DecisionRng(np.array([spec.seed]), np.array([decision]))
            actions = policy.act(obs, rng, "greedy").actions
            env.step([0], actions)
            found.append(actions[0].tolist())
    return found
