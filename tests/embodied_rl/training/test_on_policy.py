"""Whole runs on the toy: learning, honesty, exact resume after SIGKILL and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.learner.types import NonFiniteError
from embodied_rl.rollout.sampler import EpisodeSampler, evaluation_specs
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit
from embodied_rl.utils.signals import Interrupted, StopRequest
from tests.embodied_rl.toy_run import JsonObserver, files_of, run, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

ROOT = Path(__file__).parents[3]


def program(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tests/embodied_rl/toy_run.py"), str(folder), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.02)


def assert_same_run(one: Path, two: Path) -> None:
    assert (one / "metrics.jsonl").read_text() == (two / "metrics.jsonl").read_text()
    for folder in (one, two):
        assert (folder / "checkpoints/latest").read_text().strip() == "iter-000006"
    last = "checkpoints/iter-000006"
    weights = [load_file(folder / last / "policy/model.safetensors") for folder in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    states = [torch.load(folder / last / "trainer.pt", weights_only=True)["learner"] for folder in (one, two)]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_success_rises(tmp_path: Path, algorithm: str) -> None:
    outcome, _ = run(tmp_path, algorithm, iterations=24)
    assert outcome.before.overall.rate < 0.3
    assert outcome.after.overall.rate > 0.8
    assert outcome.after.overall.low > outcome.before.overall.high


def test_shuffled_rewards_teach_nothing(tmp_path: Path) -> None:
    """Success as sampled, because greedy actions of an untrained policy swing with any small change of its weights."""
    _, trained = run(tmp_path, "grpo", iterations=24, shuffle_reward=True)
    many = evaluation_specs({task: range(200) for task in TASKS}, 1)
    before, after = (evaluate(ToyEnv(64), policy, many, "sample").overall for policy in (ToyPolicy(), trained))
    assert after.low <= before.high
    assert after.rate < 0.3


def test_the_number_of_slots_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "few", "grpo", env_ids=5)
    run(tmp_path / "many", "grpo", env_ids=32)
    assert_same_run(tmp_path / "few", tmp_path / "many")


@pytest.mark.process
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_killed_and_resumed_equals_run_to_the_end(tmp_path: Path, algorithm: str) -> None:
    run(tmp_path / "whole", algorithm)
    killed = program(tmp_path / "killed", algorithm, "--hold", "3")
    # Evaluation 0, iterations 1 to 3: killed after iteration 3, whose metrics the checkpoint of iteration 2 must undo.
    wait_for_lines(tmp_path / "killed/metrics.jsonl", 4, killed)
    killed.kill()
    killed.wait()
    assert (tmp_path / "killed/checkpoints/latest").read_text().strip() == "iter-000002"
    run(tmp_path / "killed", algorithm, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.process
@pytest.mark.usefixtures("hears_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_saves_says_how_to_go_on_and_resumes_exactly(tmp_path: Path, number: signal.Signals) -> None:
    run(tmp_path / "whole", "grpo")
    process = program(tmp_path / "stopped", "grpo", "--hold", "3")
    wait_for_lines(tmp_path / "stopped/metrics.jsonl", 4, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 130, output
    latest = (tmp_path / "stopped/checkpoints/latest").read_text().strip()
    assert latest == "iter-000003"
    assert output.splitlines()[-1] == (
        f"saved {tmp_path / 'stopped/checkpoints' / latest}; continue with: toy --resume {tmp_path / 'stopped'}"
    )
    run(tmp_path / "stopped", "grpo", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.process
def test_a_reader_that_leaves_costs_nothing(tmp_path: Path) -> None:
    """As `| tee log`, which Ctrl-C ends too: the command says so into a pipe that nobody reads."""
    process = program(tmp_path, "grpo", "--hold", "3")
    wait_for_lines(tmp_path / "metrics.jsonl", 4, process)
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=900) == 130
    assert (tmp_path / "checkpoints/latest").read_text().strip() == "iter-000003"


def test_a_stop_that_cannot_be_told_is_one_all_the_same() -> None:
    def broken() -> None:
        raise OSError("no terminal")

    with StopRequest(broken) as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            stop.check_interrupt()


def test_a_finished_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path / "one", "ppo")
    again, _ = run(tmp_path / "one", "ppo", resume=True)
    assert (again.before, again.after) == (outcome.before, outcome.after)
    run(tmp_path / "two", "ppo")
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_a_resume_that_forgets_the_sampler_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken variant of resume: the equality test above must see the difference."""
    run(tmp_path / "whole", "grpo")
    run(tmp_path / "broken", "grpo", iterations=4)
    monkeypatch.setattr(EpisodeSampler, "load_state_dict", lambda sampler, state: None)
    run(tmp_path / "broken", "grpo", resume=True)
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_a_non_finite_loss_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    class Poisoned(JsonObserver):
        def metrics(self, iteration: int, values: dict[str, float]) -> None:
            super().metrics(iteration, values)
            if iteration == 3:
                policy.head.weight.register_hook(lambda gradient: gradient * float("nan"))

    policy = ToyPolicy(with_value=False)
    with pytest.raises(NonFiniteError, match="dumps"):
        train(
            tmp_path,
            ToyEnv(8),
            policy,
            files_of(policy),
            settings_of(GRPOConfig(), 6),
            TaskSplit(TASKS, HELDOUT),
            Poisoned(tmp_path / "metrics.jsonl"),
            RunOptions(resume_command=""),
        )
    assert (tmp_path / "checkpoints/latest").read_text().strip() == "iter-000002"
    assert len(list((tmp_path / "dumps").iterdir())) == 1
    run(tmp_path / "whole", "grpo", iterations=2)


def test_training_on_held_out_states_is_refused(tmp_path: Path) -> None:
    policy = ToyPolicy()
    with pytest.raises(UserError, match="'toy/touch' would be evaluated on initial state 16"):
        train(
            tmp_path,
            ToyEnv(2),
            policy,
            files_of(policy),
            settings_of(GRPOConfig(), 1),
            TaskSplit({**TASKS, "toy/touch": range(17)}, HELDOUT),
            JsonObserver(tmp_path / "m.jsonl"),
            RunOptions(resume_command=""),
        )


def test_too_few_held_out_states_are_refused(tmp_path: Path) -> None:
    policy = ToyPolicy()
    with pytest.raises(UserError, match="'toy/reach' has 3 held-out states"):
        train(
            tmp_path,
            ToyEnv(2),
            policy,
            files_of(policy),
            settings_of(GRPOConfig(), 1),
            TaskSplit(TASKS, {"toy/reach": range(20, 23)}),
            JsonObserver(tmp_path / "m.jsonl"),
            RunOptions(resume_command=""),
        )
