"""The collapse guard: each alarm by hand; a broken run goes back, ends well, and repeats itself after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.errors import UserError
from embodied_rl.learner.guard import Guard, GuardConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit
from tests.embodied_rl.toy_run import ALGORITHMS, JsonObserver, files_of, newest, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy


class Killed(BaseException):
    """As abrupt as a kill."""


class Watching(JsonObserver):
    """Notes what is said, and may be killed before the metrics of an update are written."""

    def __init__(self, path: Path, kill: int = -1) -> None:
        super().__init__(path)
        self.kill = kill

    def metrics(self, iteration: int, values: dict[str, float]) -> None:
        if iteration == self.kill:
            raise Killed
        super().metrics(iteration, values)


def run(folder: Path, action: Any, *, kill: int = -1, resume: bool = False, broken: int = 6) -> Watching:
    """Eight updates of 64 episodes; update number `broken` throws the weights away."""
    settings = replace(settings_of(ALGORITHMS["grpo"], 8), guard=GuardConfig(action=action, max_success_drop=0.2))
    policy = ToyPolicy(with_value=False)
    observer = Watching(folder / "metrics.jsonl", kill)
    env = ToyEnv(16)
    with pytest.MonkeyPatch.context() as patch:
        real = Learner.update

        def update(self: Learner, batch: Any) -> Any:
            found = real(self, batch)
            if self.version == broken:
                with torch.no_grad():
                    for tensor in policy.parameters():
                        tensor.normal_(0, 3, generator=torch.Generator().manual_seed(broken))
                found["train/approx_kl"] = 7.0
            return found

        patch.setattr(Learner, "update", update)
        train(
            folder,
            env,
            policy,
            files_of(policy),
            settings,
            TaskSplit(TASKS, HELDOUT),
            observer,
            RunOptions(resume=newest(folder) if resume else None),
        )
    return observer


def success(folder: Path) -> float:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["eval/success"] for row in rows if "eval/success" in row][-1]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints/iter-000008/policy/model.safetensors")


def test_a_broken_update_is_taken_back_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    warned, back, killed = tmp_path / "warned", tmp_path / "back", tmp_path / "killed"
    said = run(warned, "warn").notes
    assert said[0] == "ALARM after update 6: the policy moved too far: train/approx_kl 7 is above 0.5"
    notes = run(back, "roll_back").notes
    assert notes == [f"{said[0]}. Rolled back to iter-000004"]
    assert success(back) > success(warned) + 0.2
    assert '"guard/rolled_back": 1.0' in (back / "metrics.jsonl").read_text()
    with pytest.raises(Killed):
        run(killed, "roll_back", kill=7)
    run(killed, "roll_back", resume=True)
    assert (killed / "metrics.jsonl").read_text() == (back / "metrics.jsonl").read_text()
    assert all(torch.equal(tensor, weights(back)[name]) for name, tensor in weights(killed).items())


def test_the_good_checkpoint_outlives_those_of_a_slow_collapse(tmp_path: Path) -> None:
    """With `keep` 2 and a checkpoint every 2 updates, the one before the collapse would be deleted in time."""
    guard = Guard(GuardConfig(max_success_drop=0.4))
    for rate in (0.8, 0.8, 0.8):
        assert guard.check({"rollout/success": rate}) == []
    guard.saving("iter-000003")
    for rate in (0.5, 0.5, 0.5):
        assert guard.check({"rollout/success": rate}) == []
    guard.saving("iter-000006")
    assert guard.good == "iter-000003"
    assert guard.check({"rollout/success": 0.4}) == []
    assert guard.check({"rollout/success": 0.1}) == [
        "success fell: rollout/success 33% over 3 updates, its best was 80%"
    ]
    again = Guard(GuardConfig(max_success_drop=0.4))
    again.load_state_dict(guard.state_dict())
    assert again.good == "iter-000003"
    assert again.check({"rollout/success": 0.1})


@pytest.mark.parametrize(
    ("first", "then", "alarm"),
    [
        ({"train/approx_kl": 0.5}, {"train/approx_kl": 0.51}, "train/approx_kl 0.51 is above 0.5"),
        ({"train/ess_last_minibatch": 0.1}, {"train/ess_last_minibatch": 0.09}, "is below 0.1"),
        ({"train/entropy": 1.0}, {"train/entropy": 0.09}, "train/entropy 0.09 began at 1"),
        ({"train/entropy": -1.0}, {"train/entropy": -5.0}, ""),
        ({}, {"train/loss": 1e9}, ""),
    ],
)
def test_each_alarm_has_its_bound(first: dict[str, float], then: dict[str, float], alarm: str) -> None:
    guard, off = Guard(GuardConfig()), Guard(GuardConfig(action="off"))
    assert guard.check(first) == []
    found = guard.check(then)
    assert len(found) == bool(alarm)
    assert all(alarm in text for text in found)
    assert off.check(then) == []


def test_episodes_that_an_adaptive_sampler_makes_harder_are_no_collapse() -> None:
    guard, told = Guard(GuardConfig(), by_success=False), Guard(GuardConfig())
    for rate in (0.9, 0.9, 0.9, 0.4, 0.4, 0.4):
        assert guard.check({"rollout/success": rate}) == []
        alarms = told.check({"rollout/success": rate})
    guard.saving("iter-000006")
    assert guard.good == "iter-000006"
    assert alarms, "the same of a uniform sampler is one"


def test_it_goes_back_only_so_often_and_only_where_asked() -> None:
    assert not Guard(GuardConfig()).may_roll_back()
    assert Guard(GuardConfig()).why_not() == ""
    guard = Guard(GuardConfig(action="roll_back"))
    assert "no good checkpoint yet" in guard.why_not()
    for _ in range(3):
        assert guard.may_roll_back()
        guard.rolled_back()
    assert not guard.may_roll_back()
    assert "was done 3 times" in guard.why_not()
    with pytest.raises(UserError, match=r"--guard.max-kl must not be negative"):
        GuardConfig(max_kl=-1.0)
