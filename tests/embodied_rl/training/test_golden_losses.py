"""The losses of the first updates of small runs, as a file: arithmetic that changes unseen fails here.

What changes them on purpose writes the file anew: python -m tests.embodied_rl.training.test_golden_losses
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainSettings
from tests.embodied_rl.toy_run import ALGORITHMS, JsonObserver, files_of, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

GOLDEN = Path(__file__).with_name("golden_losses.json")
UPDATES = 3
_GROUPS = LearnerConfig(
    lr=1e-2, value_lr=1e-2, minibatch_size=None, minibatch_groups=2, microbatch_size=24, average_updates=4
)


def runs() -> dict[str, TrainSettings]:
    """By name; each has a part that the others lack."""
    grpo, ppo = (settings_of(ALGORITHMS[name], UPDATES) for name in ("grpo", "ppo"))
    stream = PipelinedConfig(env_groups=3)
    return {
        "serial grpo": grpo,
        "serial ppo": ppo,
        "pipelined grpo, two epochs": replace(grpo, learner=_GROUPS, scheduler=stream),
        "pipelined ppo, bootstrapped": replace(
            ppo, algorithm=PPOConfig(gamma=0.9, bootstrap_truncated=True), learner=_GROUPS, scheduler=stream
        ),
        "serial grpo, few rows": replace(
            grpo, algorithm=GRPOConfig(), learner=replace(grpo.learner, row_share=0.5, minibatch_size=32)
        ),
    }


def losses(folder: Path, settings: TrainSettings) -> list[float]:
    """train/loss of each update."""
    torch.set_num_threads(1)
    policy = ToyPolicy(with_value=isinstance(settings.algorithm, PPOConfig))
    observer = JsonObserver(folder / "metrics.jsonl")
    train(folder, ToyEnv(7), policy, files_of(policy), settings, TaskSplit(TASKS, HELDOUT), observer, RunOptions())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.parametrize("name", runs())
def test_the_first_losses_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    """Up to what CPUs round differently: without vector instructions they move by 1e-7 at most."""
    assert losses(tmp_path, runs()[name]) == pytest.approx(json.loads(GOLDEN.read_text())[name], rel=1e-5, abs=2e-6)


def test_the_file_has_a_loss_for_each_update_and_no_two_runs_alike() -> None:
    found = json.loads(GOLDEN.read_text())
    assert found.keys() == runs().keys()
    assert all(len(values) == UPDATES for values in found.values())
    assert len({tuple(values) for values in found.values()}) == len(found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        made = {name: losses(Path(place) / name, settings) for name, settings in runs().items()}
    GOLDEN.write_text(json.dumps(made, indent=1) + "\n")
