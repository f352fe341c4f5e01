"""Whole toy runs as every rank makes them; also a program that launchers start.

python -m tests.embodied_rl.training.ranked_runs FOLDER [--dies | --hold] [--resume]
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.cli.launch import end_with_launcher
from embodied_rl.learner.distributed.collectives import Collectives, RankError
from embodied_rl.learner.distributed.join import for_learner, joined
from embodied_rl.learner.guard import GuardConfig
from embodied_rl.reward_model import with_rewards
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit
from embodied_rl.types import EpisodeResult, EvalOutput, RolloutBatch
from embodied_rl.utils.ranks import ProcessRank
from embodied_rl.utils.signals import Interrupted
from tests.embodied_rl.ranks import place
from tests.embodied_rl.scheduler.far import ToyFactory
from tests.embodied_rl.scheduler.over_ray import Actor, FakeRay, LostError, Ref
from tests.embodied_rl.toy_run import JsonObserver, files_of, newest, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

GRPO = GRPOConfig(group_size=4, entropy_coef=0.01, success_rate_range=(0.1, 0.9), max_oversampling=3.0)
PPO = PPOConfig(gamma=0.9, entropy_coef=0.01)
BROKEN: dict[str, Any] = {
    "broken": {("toy/reach", 3), ("toy/touch", 8), ("toy/reach", 20)},
    "unseen": {("toy/touch", 5)},
}
"""One in ten initial states of training, and one of the evaluation."""


@dataclass(frozen=True)
class Run:
    """Three updates.

    breaks: some episodes' simulator fails. broken: it always does from some states. rolls_back: the last update is
    taken back. looks: a reward model sees the frames. sampler: of `RolloutConfig`. ray: ranks have workers of a
    stand-in for Ray; loses: rank 1 loses one.
    """

    algorithm: AlgorithmConfig
    episodes: int
    stream: bool = False
    fsdp: bool = False
    breaks: bool = False
    broken: bool = False
    rolls_back: bool = False
    looks: bool = False
    sampler: Literal["uniform", "adaptive"] = "uniform"
    ray: bool = False
    loses: bool = False


class LooksAtFrames:
    """A reward model for which every row's frames count, and what each episode shows at its end."""

    needs_final_images = True

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        assert batch.final_images is not None
        seen, ends = (images.float().flatten(1).mean(1) for images in (batch.images, batch.final_images))
        return with_rewards(batch, batch.reward + seen + ends[batch.episode])

    def drain(self) -> dict[str, float]:
        return {}


RUNS = {
    "ppo": Run(PPO, 10, breaks=True),
    "grpo, groups filtered": Run(GRPO, 24),
    "ppo, broken states": Run(PPO, 10, broken=True),
    "grpo, stream, groups filtered, broken states": Run(GRPO, 24, stream=True, broken=True),
    "grpo, ray, groups filtered, broken states": Run(GRPO, 24, ray=True, broken=True),
    "ppo, stream": Run(PPO, 10, stream=True),
    "grpo, stream, groups filtered": Run(GRPO, 20, stream=True),
    "ppo, ranks without rows": Run(PPO, 1),
    "grpo, stream, ranks without rows, in parts": Run(GRPO, 4, stream=True, fsdp=True),
    "ppo, in parts, rolled back": Run(PPO, 10, fsdp=True, rolls_back=True),
    "ppo, a reward model": Run(PPO, 10, looks=True),
    "ppo, stream, a reward model": Run(PPO, 10, stream=True, looks=True),
    "ppo, stream, adaptive": Run(PPO, 10, stream=True, sampler="adaptive"),
    "grpo, ray, groups filtered, a worker lost": Run(GRPO, 24, ray=True, loses=True),
    "ppo, ray, ranks without rows, a reward model": Run(PPO, 1, ray=True, looks=True),
    "ppo, ray, in parts, rolled back": Run(PPO, 10, ray=True, fsdp=True, rolls_back=True),
}


class Recorded(JsonObserver):
    """Keeps the results of training's episodes."""

    def __init__(self, path: Path, hold: int = -1) -> None:
        super().__init__(path, hold)
        self.results: list[EpisodeResult] = []
        self._rollout = False

    def phase(self, name: str, iteration: int, episodes: int) -> None:
        self._rollout = name == "rollout"

    def episode(self, result: EpisodeResult) -> None:
        if self._rollout:
            self.results.append(result)


class Mortal(ToyPolicy):
    """Ends its process as `kill -9` does, when it is evaluated for the `left`th time."""

    left = -1

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().evaluate(images, proprio, instruction, replay)


def train_toy(
    folder: Path,
    run: Run,
    ranks: Collectives,
    *,
    iterations: int = 3,
    left: int = -1,
    hold: int = -1,
    resume: bool = False,
) -> tuple[dict[str, Tensor], list[EpisodeResult]]:
    """The policy's weights and the episodes, by number."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = {"minibatch_size": None, "minibatch_groups": 2} if run.stream else {"minibatch_size": 16}
    settings = settings_of(run.algorithm, iterations, microbatch_size=5, fsdp=run.fsdp and ranks.size > 1, **groups)  # type: ignore[arg-type]
    rollout = RolloutConfig(episodes_per_iteration=run.episodes, sampler=run.sampler)
    settings = replace(settings, rollout=rollout, workers=2)
    if run.rolls_back:  # every update alarms, and after the second there is a checkpoint
        settings = replace(settings, guard=GuardConfig(action="roll_back", max_kl=0.0))
    if run.stream:
        settings = replace(settings, scheduler=PipelinedConfig(env_groups=2))
    remote: ToyFactory | None = None
    scene: AbstractContextManager[None] = nullcontext()
    if run.ray and ranks.size > 1:
        settings = replace(settings, scheduler=RayConfig(workers=ranks.size + 1))  # rank 0 has two
        remote = ToyFactory(3, broken=BROKEN if run.broken else {})
        scene = over_fake_ray(ranks, loses=run.loses)
    if run.looks:
        settings = replace(settings, reward_model=LooksAtFrames())
    policy = Mortal(seed=ranks.rank, with_value=isinstance(run.algorithm, PPOConfig))  # rank 0's weights are taken
    policy.left = left
    observer = Recorded(folder / f"metrics-{ranks.rank}.jsonl", hold)
    with scene:
        train(
            folder,
            ToyEnv(3, breaks={1: 1, 4: 2} if run.breaks else {}, **(BROKEN if run.broken else {})),
            policy,
            files_of(policy),
            settings,
            TaskSplit(TASKS, HELDOUT),
            observer,
            RunOptions(
                resume=newest(folder) if resume else None,
                remote=remote,
                collectives=for_learner(ranks, fsdp=settings.learner.fsdp),
            ),
        )
    if ranks.rank == 0:
        assert any("Rolled back to iter-000002" in note for note in observer.notes) == run.rolls_back
        if remote is not None:  # counted over all ranks
            *_, last = [row for row in read_metrics(observer.path) if "rollout/workers_replaced" in row]
            assert last["rollout/workers_replaced"] == run.loses
    return policy.state_dict(), sorted(observer.results, key=lambda result: result.spec.episode_id)


@contextmanager
def over_fake_ray(ranks: Collectives, *, loses: bool) -> Iterator[None]:
    """In place of Ray a stand-in whose workers are in this process; the rest as of `Run`."""

    def fate(actor: Actor, name: str) -> Ref | None:
        lost = loses and ranks.rank == 1 and actor.number == 0 and len(actor.calls) > 6
        return Ref(error=LostError()) if lost else None

    fake = FakeRay(fate)
    with patch("embodied_rl.scheduler.ray.scheduler.connect", lambda config: fake):
        yield


def every_run(rank: int, most: int, ports: dict[int, int], folder: Path) -> dict[tuple[int, str], Any]:
    """All runs, first with few ranks and then with more; those that are not wanted wait."""
    torch.set_num_threads(1)
    found = {}
    for size, port in ports.items():
        if rank >= size:
            continue
        os.environ["MASTER_PORT"] = str(port)
        with joined(place(rank, size)) as ranks:
            for name, run in RUNS.items():
                found[size, name] = train_toy(folder / f"{size}-{name}", run, ranks)
    return found


def main() -> int:
    torch.set_num_threads(1)
    end_with_launcher()
    here = ProcessRank.from_env()
    dies = here.size > 1 and "--dies" in sys.argv and here.rank == 1
    try:
        with joined(here) as ranks:
            weights, _ = train_toy(
                Path(sys.argv[1]),
                Run(PPO, 10),
                ranks,
                iterations=4,
                left=35 if dies else -1,
                hold=3 if "--hold" in sys.argv else -1,
                resume="--resume" in sys.argv,
            )
    except Interrupted:
        return 130
    except RankError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if here.is_main:
        torch.save(weights, Path(sys.argv[1]) / "weights.pt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
