"""`train --algorithm imitate` from data set to report, resumed and exported; what it is refused, in a line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embodied_rl as erl
from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.cli import main
from embodied_rl.cli.select import select
from embodied_rl.config.train import TrainConfig, from_dict, iterations_of
from embodied_rl.data import writer
from embodied_rl.data.layout import DatasetSpec, Episode
from embodied_rl.data.lerobot import load
from embodied_rl.errors import UserError
from embodied_rl.factory.fresh_states import with_fresh_states
from embodied_rl.factory.suites import load as load_tasks
from embodied_rl.jobs.run_tables import list_lines
from tests.embodied_rl.toy_task_env import ToyTaskEnv
from tests.toy import ToyPolicy
from tests.toy_demos import demonstrations


def collected(out: Path) -> Path:
    """The toy's demonstrations, as `collect` writes them."""
    data, env = demonstrations(range(4)), ToyTaskEnv(1)
    spec = DatasetSpec(env.info.cameras, 4, ("x", "y"), ("dx", "dy"))
    partial = writer.begin(out, {})
    for key, (first, end) in enumerate(zip(data.starts[:-1], data.starts[1:], strict=True)):
        action = data.action[first:end]
        episode = Episode(key, data.instruction[first], data.images[first:end], data.state[first:end], action, action)
        writer.add_episode(partial, spec, episode)
    writer.finalize(out, spec, {"suite": "toy", "split": "train", "expert": "scripted", "train_states": {}})
    return out


def begin(tmp_path: Path, **more: Any) -> Path:
    torch.set_num_threads(1)
    options: dict[str, Any] = {
        "demos": [str(collected(tmp_path / "demos"))],
        "train_states": "train",
        "rollout": {"episodes_per_iteration": 6},
        "algorithm": {"name": "imitate", "steps": 30},
        "learner": {"lr": 1e-2},
        "evaluation": {"states_per_task": 4, "mode": "sample"},
        "videos": 0,
        "num_threads": 1,
    }
    run = tmp_path / "run"
    erl.train(
        "tabletop_openvla_imitate",
        iterations=1,
        output=run,
        env=ToyTaskEnv(4),
        policy=ToyPolicy(with_value=False),
        **options | more,
    )
    return run


def test_a_run_is_reported_resumed_listed_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = begin(tmp_path)
    erl.train(resume=run, iterations=3, env=ToyTaskEnv(4), policy=ToyPolicy(with_value=False))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rounds = [row for row in rows if "rollout/success" in row]
    assert [row["train/episodes_seen"] for row in rounds] == [6, 12, 18]
    minutes = sum(row["rollout/env_steps"] for row in rounds) / 20 / 60
    assert sum(row["rollout/robot_minutes"] for row in rounds) == pytest.approx(minutes)
    assert len([row for row in rows if "eval/success" in row]) >= 2
    page = (run / "report.html").read_text()
    assert f"18 episodes are {minutes:.1f} minutes of the robot" in page.replace("&#39;", "'")
    assert "imitate" in "".join(list_lines(tmp_path))
    capsys.readouterr()
    assert main(["export", str(run), "--to", "lerobot", "--out", str(tmp_path / "day1")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'day1'}: 18 episodes\n"
    data = load(tmp_path / "day1")
    assert data.source["keep"] == "all"
    assert int(np.sum(data.success)) == round(sum(row["rollout/success"] * 6 for row in rounds))
    assert len(data.images) == sum(row["rollout/env_steps"] for row in rounds)
    assert main(["export", str(run), "--out", str(tmp_path / "day1"), "--to", "lerobot"]) == 2
    assert main(["export", str(run), "--steps", "human", "--out", str(tmp_path / "day2")]) == 2
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "day2")]) == 2
    errors = capsys.readouterr().err.splitlines()
    for line, said in zip(errors, ("already exists", "is for recordings", "no stored episodes"), strict=True):
        assert said in line


def test_demonstrations_that_changed_are_refused(tmp_path: Path) -> None:
    run = begin(tmp_path)
    (tmp_path / "demos/meta/extra.txt").write_text("more")
    with pytest.raises(UserError, match="put back what it was begun with, or begin a new run"):
        erl.train(resume=run, iterations=2, env=ToyTaskEnv(4), policy=ToyPolicy(with_value=False))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scheduler": {"name": "pipelined"}}, "leave --scheduler out"),
        ({"learner": {"value_lr": 1e-5}}, "--learner.value-lr does not apply to --algorithm imitate"),
        ({"learner": {"num_processes": 2}}, "--learner.num-processes does not apply"),
        ({"rollout": {"sampler": "adaptive"}}, "--rollout.sampler adaptive"),
        ({"autotune": True}, "--autotune does not apply"),
        (
            {"policy": {"name": "pi0", "prefix_cache_gib": 1.0, "train_expert_only": True}},
            "--policy.prefix-cache-gib does not apply",
        ),
        ({"suite": "libero_goal", "train_states": "fresh"}, "suite 'libero_goal' has no fresh initial states"),
        ({"algorithm": {"name": "ppo"}, "demos": [], "train_states": "fresh"}, "fresh is for --algorithm imitate"),
        ({"algorithm": {"name": "imitate", "steps": 0}}, "algorithm.steps must be at least 1"),
        ({"algorithm": {"name": "imitate", "demo_share": 1.5}}, r"algorithm.demo_share must lie in \[0, 1\]"),
    ],
)
def test_what_does_nothing_is_refused(change: dict[str, Any], said: str) -> None:
    base = TrainConfig(algorithm=ImitateConfig(), demos=("demos",))
    with pytest.raises(UserError, match=said) as refused:
        from_dict(change, base).check()
    assert "\n" not in str(refused.value)


def test_without_demonstrations_there_is_nothing_to_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tabletop", "--algorithm", "imitate"]) == 2
    assert "name them with --demos DATA" in capsys.readouterr().err


def test_episodes_are_the_budget() -> None:
    words = "tabletop --policy pi0 --policy.checkpoint start --algorithm imitate --demos demos"
    chosen = select([*words.split(), "--episodes", "200"]).config
    assert chosen is not None
    assert (chosen.iterations, chosen.train_states) == (10, "fresh")
    assert chosen.suite == "tabletop_goal"
    libero = select(["libero", "--suite", "libero_goal", "--algorithm", "imitate", "--demos", "demos"]).config
    assert libero is not None
    assert libero.train_states == "train"
    assert select(["--resume", "runs/mine", "--episodes", "80"]).episodes == 80
    with pytest.raises(UserError, match=r"50 is no whole number of iterations of 20 episodes .*: give 40 or 60"):
        iterations_of(chosen, 50)
    with pytest.raises(UserError, match="give one of them"):
        select([*words.split(), "--episodes", "60", "--iterations", "3"])
    with pytest.raises(UserError, match="takes a whole number, got 'many'"):
        select([*words.split(), "--episodes", "many"])


def test_fresh_states_are_new_and_those_that_are_held_out_stay() -> None:
    words = "tabletop --policy pi0 --policy.checkpoint start --algorithm imitate --demos demos --episodes"
    short, long = (select([*words.split(), count]).config for count in ("20", "40"))
    assert short is not None
    assert long is not None
    tasks = load_tasks(short.suite, short.tasks, short.env)
    few, many = (with_fresh_states(tasks, config) for config in (short, long))
    for task, more, most in zip(tasks.scenes, few.scenes, many.scenes, strict=True):
        assert list(more.train_states) == list(range(100, 110))
        assert list(most.train_states) == list(range(100, 120))
        assert more.heldout_states == task.heldout_states
        np.testing.assert_array_equal(more.init_states[:100], task.init_states)
        np.testing.assert_array_equal(more.init_states, most.init_states[:110])
        assert not any((row == task.init_states).all(axis=1).any() for row in more.init_states[100:])
    assert few.heldout_states == tasks.heldout_states
