"""A run over ranks is the run of one process: its episodes, its weights; a lost rank costs no more than a resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from embodied_rl.cli.launch import launch
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS
from embodied_rl.types import EpisodeResult
from tests.embodied_rl.processes import descendants, wait_for
from tests.embodied_rl.ranks import free_port, others
from tests.embodied_rl.test_imports import ROOT
from tests.embodied_rl.training.ranked_runs import PPO, RUNS, Run, every_run, train_toy

pytestmark = pytest.mark.process

SIZES = (2, 4)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Any]:
    """Rank 0's weights and episodes of every run, by number of ranks."""
    folder, ports = tmp_path_factory.mktemp("ranks"), {size: free_port() for size in SIZES}
    with others(max(SIZES), every_run, ports, folder):
        return every_run(0, max(SIZES), ports, folder)


@cache
def alone(name: str, folder: Path) -> Any:
    return train_toy(folder / name, RUNS[name], SINGLE_PROCESS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RUNS)
def test_episodes_and_weights_are_those_of_one_process(
    name: str, size: int, together: dict[tuple[int, str], Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    weights, episodes = alone(name, tmp_path_factory.getbasetemp() / "alone")
    found, ran = together[size, name]
    assert len(episodes) >= 3 * RUNS[name].episodes
    same_episodes(episodes, ran)
    same(weights, found)


def same_episodes(expected: list[EpisodeResult], found: list[EpisodeResult]) -> None:
    assert [result.spec for result in found] == [result.spec for result in expected]
    for one, two in zip(expected, found, strict=True):
        assert (one.success, one.reward, one.num_steps, one.num_decisions) == (
            two.success,
            two.reward,
            two.num_steps,
            two.num_decisions,
        )


def same(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=0, atol=1e-6, msg=key)


def command(launcher: str, folder: Path, *more: str) -> list[str]:
    """Two ranks of the toy, as users of torchrun and of accelerate start theirs."""
    program = ["-m", "tests.embodied_rl.training.ranked_runs", str(folder), *more]
    if launcher == "own":
        code = "import sys; from embodied_rl.cli.launch import launch; sys.exit(launch(2, sys.argv[1:]))"
        return [sys.executable, "-c", code, sys.executable, *program]
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *program]
    options = ["--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    options += ["--dynamo_backend", "no", "--main_process_port", str(free_port())]
    return [sys.executable, "-m", "accelerate.commands.launch", *options, *program]


def begin(words: list[str]) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start(words: list[str]) -> tuple[int, str]:
    """Exit code and what was said on stderr."""
    process = begin(words)
    _, said = process.communicate(timeout=3600)
    return process.returncode, said


def test_torchrun_loses_a_rank_and_accelerate_goes_on_to_the_end_of_an_undisturbed_run(tmp_path: Path) -> None:
    expected, _ = train_toy(tmp_path / "alone", Run(PPO, 10), SINGLE_PROCESS, iterations=4)
    folder = tmp_path / "run"
    code, said = start(command("torchrun", folder, "--dies"))
    assert code == 1
    assert (folder / "checkpoints/latest").read_text().strip() == "iter-000002", said
    code, said = start(command("accelerate", folder, "--resume"))
    assert code == 0, said
    same(expected, torch.load(folder / "weights.pt"))


def test_ranks_stop_and_save_together_and_one_process_goes_on(tmp_path: Path) -> None:
    """The launcher passes the signal on; rank 0 is held at its third update, while rank 1 waits for it."""
    expected, _ = train_toy(tmp_path / "alone", Run(PPO, 10), SINGLE_PROCESS, iterations=4)
    folder = tmp_path / "run"
    metrics = folder / "metrics-0.jsonl"
    process = begin(command("own", folder, "--hold"))
    try:
        wait_for(lambda: metrics.exists() and '"iteration": 3' in metrics.read_text(), process)
        below = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=3600)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert said == ""
    assert len(below) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)
    assert (folder / "checkpoints/latest").read_text().strip() == "iter-000003"
    found, _ = train_toy(folder, Run(PPO, 10), SINGLE_PROCESS, iterations=4, resume=True)
    same(expected, found)


@pytest.mark.parametrize("launcher", ["own", "torchrun"])
def test_ranks_whose_launcher_is_killed_save_and_end(launcher: str, tmp_path: Path) -> None:
    """Rank 0 is held at its third update, as above; nobody but the ranks could end them."""
    metrics = tmp_path / "metrics-0.jsonl"
    process = begin(command(launcher, tmp_path, "--hold"))
    below: dict[int, str] = {}
    try:
        wait_for(lambda: metrics.exists() and '"iteration": 3' in metrics.read_text(), process)
        below = descendants(process.pid)
        process.kill()
        process.communicate(timeout=3600)  # the ranks have its pipes, so that this waits for them
    finally:
        process.kill()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "checkpoints/latest").read_text().strip() == "iter-000003"


@pytest.mark.parametrize(
    ("scripts", "code", "said"),
    [
        (("exit 0", "exit 0"), 0, ""),
        (("sleep 0.3; exit 1", "kill -9 $$"), 1, "rank 1 was killed by signal 9"),
        (("sleep 9", "kill -9 $$"), 1, "rank 1 was killed by signal 9"),
        (("exit 2", "sleep 9"), 2, ""),
        (("sleep 0.3; exit 130", "exit 130"), 130, ""),
    ],
)
def test_what_a_run_comes_to_is_said_once(
    scripts: tuple[str, str], code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodied_rl.cli.launch._GRACE_SECONDS", 0.5)
    script = f"if [ $RANK = 0 ]; then {scripts[0]}; else {scripts[1]}; fi"
    assert launch(2, ["sh", "-c", script]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(said)
    assert said in "".join(lines)
