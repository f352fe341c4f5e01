"""A training run in which some initial states break the simulator: it ends, and a resumed one is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.learner.checkpoint import Checkpoints, load
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainOutcome
from tests.embodied_rl.toy_run import ALGORITHMS, JsonObserver, files_of, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

State = tuple[str, int]
BROKEN: set[State] = {("toy/reach", 3), ("toy/touch", 8), ("toy/touch", 12)}
"""One in ten."""
UNMEASURED: set[State] = {("toy/touch", 18)}


def run(
    folder: Path,
    algorithm: str = "ppo",
    *,
    broken: Collection[State] = BROKEN | UNMEASURED,
    start: str | None = None,
    episodes: int = 24,
    iterations: int = 4,
    adaptive: bool = False,
) -> tuple[TrainOutcome, ToyPolicy, ToyEnv, JsonObserver]:
    settings = settings_of(ALGORITHMS[algorithm], iterations)
    rollout = RolloutConfig(episodes_per_iteration=episodes, sampler="adaptive" if adaptive else "uniform")
    settings = replace(settings, rollout=rollout)
    policy, env = ToyPolicy(with_value=algorithm == "ppo"), ToyEnv(6, broken=broken)
    observer = JsonObserver(folder / "metrics.jsonl")
    checkpoint = Checkpoints(folder / "checkpoints", 9).find(start) if start else None
    options = RunOptions(resume=checkpoint)
    outcome = train(folder, env, policy, files_of(policy), settings, TaskSplit(TASKS, HELDOUT), observer, options)
    return outcome, policy, env, observer


def tried(env: ToyEnv) -> set[State]:
    return {(spec.task, spec.init_state) for spec in env.started} & BROKEN


@pytest.mark.parametrize(("algorithm", "adaptive"), [("ppo", False), ("grpo", False), ("ppo", True)])
def test_it_ends_says_what_it_left_out_and_goes_on_exactly_from_a_checkpoint(
    algorithm: str, adaptive: bool, tmp_path: Path
) -> None:
    episodes = {"ppo": 24, "grpo": 192}[algorithm]
    outcome, policy, env, observer = run(tmp_path, algorithm, episodes=episodes, adaptive=adaptive)
    assert tried(env)
    said = [note for note in observer.notes if note.startswith("left out of training, as the simulator breaks there: ")]
    named = {(task, state) for task, state in tried(env) if any(f"'{task}'" in n and f" {state}" in n for n in said)}
    assert named == tried(env)
    assert [(spec.task, spec.init_state) for spec in outcome.after.not_measured] == list(UNMEASURED)
    rows = [json.loads(line) for line in observer.path.read_text().splitlines()]
    assert rows[-1]["eval/not_measured"] == 1
    assert any(row.get("rollout/broken_groups", 0) > 0 for row in rows)

    found = load(tmp_path / "checkpoints" / "iter-000002").state["sampler"]["broken"]["found"]
    known = {(task, state) for task, state, _ in found}
    assert known
    lines = observer.path.read_text()
    again, same, env, _ = run(tmp_path, algorithm, start="iter-000002", episodes=episodes, adaptive=adaptive)
    assert not tried(env) & known
    assert observer.path.read_text() == lines
    assert again.after == outcome.after
    for name, tensor in policy.state_dict().items():
        assert torch.equal(same.state_dict()[name], tensor)


def test_a_run_without_broken_states_keeps_nothing_of_it(tmp_path: Path) -> None:
    *_, observer = run(tmp_path, broken=(), iterations=1)
    assert "broken" not in load(tmp_path / "checkpoints" / "iter-000001").state["sampler"]
    assert "broken" not in observer.path.read_text()
    assert "not_measured" not in observer.path.read_text()


@pytest.mark.parametrize("share", [2, 3])
def test_above_a_quarter_it_ends_in_one_line_that_names_the_states(share: int, tmp_path: Path) -> None:
    broken = {(task, state) for task, states in TASKS.items() for state in states if state % share == 0}
    with pytest.raises(
        UserError, match=r"^the simulator breaks in \d+ of \d+ .*more than a quarter: task 'toy/"
    ) as error:
        run(tmp_path, broken=broken, iterations=9)
    assert "\n" not in str(error.value)
    assert all(state % share == 0 for state in map(int, re.findall(r"(?<=[ ,])\d+(?=[,;.])", str(error.value))))
