"""Pictures under `bench gpu`: what a policy sees while a learner fills the GPU's queue is what a serial run sees.

MuJoCo Warp draws, and every decision keeps the pictures that it was given, as the stream that acts has them. Actions
follow from the episode's random numbers alone, so that both runs have the same episodes to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS
from embodied_rl.policy import ActMode, PolicyTraits
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.scheduler.make import make_profiler, make_scheduler
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.warp.drawn_env import WarpDrawnEnv
from embodied_rl.types import ActOutput, EvalOutput, Observation, RolloutBatch
from embodied_rl.utils.machine import pick_device
from embodied_rl.utils.threads import CoreBudget

ENVS, GROUP_SIZE, SIZE = 8, 2, 64
CHUNK, ACTION_DIM = 8, 7
QUEUED = 200
"""Matrix products that each group leaves in the learner's queue."""
WAYS: tuple[tuple[str, SchedulerConfig], ...] = (
    ("serial", SerialConfig()),
    ("stream, 2 groups", PipelinedConfig(env_groups=2)),
    ("async, 2 groups", PipelinedConfig(env_groups=2, mode="async")),
)


class _Watching(nn.Module):
    """Acts by random numbers and keeps what it was shown."""

    traits = PolicyTraits()
    chunk_len, action_dim, terms_per_step, with_value = CHUNK, ACTION_DIM, ACTION_DIM, False

    def __init__(self, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, device=device))

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Uniform actions; `replay` has the pictures as they are on the calling thread's stream."""
        drawn = torch.from_numpy(rng.uniform(CHUNK * ACTION_DIM)).float().to(self.weight.device) * 2 - 1
        actions = drawn.reshape(-1, CHUNK, ACTION_DIM)
        return ActOutput(actions, torch.zeros_like(drawn), None, {"seen": obs.images.clone()})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Nothing was improbable."""
        nothing = self.weight * torch.zeros(len(instruction), CHUNK * ACTION_DIM, device=self.weight.device)
        return EvalOutput(nothing, nothing, None)

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
    ) -> Tensor:
        """Not trained."""
        raise NotImplementedError


class _Busy:
    """A learner that only fills the queue of its stream; `StreamingLearner`."""

    needs_all_frames = needs_final_images = False
    ess = 1.0
    collectives = SINGLE_PROCESS

    def __init__(self, device: str, quick: bool) -> None:
        self.policy: Any = _Watching(device)
        self.algorithm = make_algorithm(GRPOConfig(group_size=GROUP_SIZE, success_rate_range=None))
        self.config = LearnerConfig(minibatch_size=None, minibatch_groups=1)
        self.cores = CoreBudget()
        self.groups: list[RolloutBatch] = []
        self._matrix = torch.ones(64 if quick else 4096, 64 if quick else 4096, device=device)

    def accumulate(self, group: RolloutBatch) -> None:
        """Keep the group, and queue work that nobody waits for."""
        self.groups.append(group)
        for _ in range(QUEUED):
            torch.mm(self._matrix, self._matrix)


def _images(config: SchedulerConfig, device: str, quick: bool) -> dict[int, tuple[Tensor, Tensor]]:
    """By episode: the pictures that the policy was shown, and those that its rows have."""
    tasks = load_tasks("tabletop_spatial")[: 1 if quick else None]
    learner = _Busy(device, quick)
    exact = MujocoVecEnv(tasks, 2 if quick else ENVS, image_size=SIZE, cameras=0)
    with closing(WarpDrawnEnv(exact, device=device)) as env:
        sampler = EpisodeSampler(0, {task.name: list(task.train_states)[:4] for task in tasks}, GROUP_SIZE)
        groups = 1 if quick else 4 * ENVS // GROUP_SIZE
        scheduler = make_scheduler(config, env, learner, sampler, make_profiler(config), Callbacks(), groups=groups)
        with closing(scheduler):
            for batch in scheduler.batches(0, 1):
                if not learner.groups:
                    learner.groups += split_groups(batch)
                scheduler.publish(1)
    rows = [(group, row) for group in learner.groups for row in range(len(group.episodes))]
    found = {}
    for group, row in rows:
        at = (group.episode == row).nonzero()[:, 0]
        found[group.episodes[row].spec.episode_id] = group.replay["seen"][at].cpu(), group.images.cpu()[at]
    return found


def pictures(quick: bool) -> Iterator[dict[str, Any]]:
    """A row a schedule: its decisions, and how many saw something else than they recorded, or than in a serial run.

    Raises:
        RuntimeError: any did.
    """
    device = pick_device("auto")
    expected: dict[int, tuple[Tensor, Tensor]] = {}
    for name, config in WAYS:
        found = _images(config, device, quick)
        expected = expected or found
        if found.keys() != expected.keys():
            raise RuntimeError(f"{name} ran other episodes than serial")
        late = sum(_differ(seen, kept) for seen, kept in found.values())
        other = sum(_differ(found[episode][0], expected[episode][1]) for episode in expected)
        decisions = sum(len(seen) for seen, _ in found.values())
        yield {"scheduler": name, "decisions": decisions, "late": late, "other": other}
        if late or other:
            raise RuntimeError(
                f"{name}: of {decisions} decisions {late} saw stale pictures, {other} others than serial"
            )


def _differ(one: Tensor, two: Tensor) -> int:
    """Rows that are not equal bit for bit; all of them where the numbers differ."""
    if one.shape != two.shape:
        return max(len(one), len(two))
    return int((one != two).flatten(1).any(dim=1).sum())
