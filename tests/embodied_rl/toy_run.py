"""A toy training run as a program that tests can kill: python toy_run.py RUN_DIR ALGORITHM [--hold ITERATION].

At that iteration it waits, after writing the metrics, until it is interrupted or killed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.learner.checkpoint import Checkpoints
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import PolicyFiles, RunOptions, TaskSplit, TrainOutcome, TrainSettings
from embodied_rl.types import EpisodeResult
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.signals import Interrupted
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

ALGORITHMS: dict[str, AlgorithmConfig] = {
    "grpo": GRPOConfig(epochs=2, entropy_coef=0.01),
    "ppo": PPOConfig(gamma=0.9, entropy_coef=0.01),
}


class JsonObserver:
    """Metrics without times as JSON lines."""

    def __init__(self, path: Path, hold: int = -1, console: Console | None = None) -> None:
        self.path = path
        self.notes: list[str] = []
        self.episodes = 0
        self._hold = hold
        self._console = console
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def phase(self, name: str, iteration: int, episodes: int) -> None:
        pass

    def episode(self, result: EpisodeResult) -> None:
        self.episodes += 1

    def metrics(self, iteration: int, values: dict[str, float]) -> None:
        timed = ("time/", "cpu/", "busy/", "queue/")
        untimed = {key: value for key, value in values.items() if not key.startswith(timed)}
        self._write({"iteration": iteration} | untimed)
        while iteration == self._hold and not self.notes:
            time.sleep(0.02)

    def evaluation(self, iteration: int, report: EvalReport) -> None:
        self._write({"iteration": iteration} | report.metrics())

    def log(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text)
        self.notes.append(text)

    def position(self) -> int:
        return self.path.stat().st_size

    def begin(self, position: int) -> None:
        with open(self.path, "r+b") as file:
            file.truncate(position)

    def _write(self, record: dict[str, float]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")


def files_of(policy: ToyPolicy) -> PolicyFiles:
    def save(folder: Path) -> None:
        folder.mkdir()
        save_file(policy.state_dict(), folder / "model.safetensors")

    def load(folder: Path) -> None:
        policy.load_state_dict(load_file(folder / "model.safetensors"))

    return PolicyFiles(save, load)


def settings_of(algorithm: AlgorithmConfig, iterations: int, **learner: float) -> TrainSettings:
    options = {"lr": 1e-2, "value_lr": 1e-2, "minibatch_size": 64, "microbatch_size": 24} | learner
    return TrainSettings(
        algorithm=algorithm,
        learner=LearnerConfig(**options),  # type: ignore[arg-type]
        rollout=RolloutConfig(episodes_per_iteration=64),
        evaluation=EvalConfig(every=4, states_per_task=12),
        checkpoint=CheckpointConfig(every=2, keep=2),
        iterations=iterations,
        seed=3,
    )


def newest(folder: Path) -> Path | None:
    """The checkpoint that a resume of the run in `folder` goes on from."""
    return Checkpoints(folder / "checkpoints", 1).find()


def run(
    folder: Path,
    algorithm: str,
    *,
    iterations: int = 6,
    env_ids: int = 16,
    resume: bool = False,
    hold: int = -1,
    shuffle_reward: bool = False,
    console: Console | None = None,
    seed: int = 3,
    **learner: float,
) -> tuple[TrainOutcome, ToyPolicy]:
    torch.set_num_threads(1)
    settings = replace(settings_of(ALGORITHMS[algorithm], iterations, **learner), seed=seed)
    policy = ToyPolicy(with_value=algorithm == "ppo")
    outcome = train(
        folder,
        ToyEnv(env_ids, shuffle_reward=shuffle_reward),
        policy,
        files_of(policy),
        settings,
        TaskSplit(TASKS, HELDOUT),
        JsonObserver(folder / "metrics.jsonl", hold, console),
        RunOptions(resume=newest(folder) if resume else None, resume_command=f"toy --resume {folder}"),
    )
    return outcome, policy


def main() -> int:
    try:
        run(Path(sys.argv[1]), sys.argv[2], hold=int(sys.argv[4]), console=LastingConsole())
    except Interrupted as stopped:
        print(stopped, file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
