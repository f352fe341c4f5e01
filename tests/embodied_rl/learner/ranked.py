"""What further ranks of the learner run in tests; imported in their processes."""

from __future__ import annotations

import copy
import os
import signal
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.learner.batches import frames_elsewhere, join_batches, split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.distributed.fsdp import FSDPCollectives
from embodied_rl.learner.distributed.join import joined
from embodied_rl.learner.imitation import Imitation
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.types import NonFiniteError, RatioError
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.policy import MLPPolicy
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.serial import Collector
from embodied_rl.types import EvalOutput, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.embodied_rl.ranks import place
from tests.toy import ACTION_DIM, CHUNK, TASKS, ToyEnv, ToyPolicy
from tests.toy_demos import toy_demos

GRPO = GRPOConfig(group_size=4, success_rate_range=None, entropy_coef=0.01, epochs=2)
PPO = PPOConfig(gamma=0.9, entropy_coef=0.01)


class Mortal(ToyPolicy):
    """Ends its process as `kill -9` does."""

    left = -1

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().evaluate(images, proprio, instruction, replay)


@dataclass(frozen=True)
class Case:
    """An update, perhaps with something wrong in it (spoil). stream: groups come one by one. stale: a third of the rows
    is an older policy's. normalizes: the policy has running statistics, of observations and returns. demos: two data
    sets are imitated too."""

    algorithm: AlgorithmConfig
    learner: LearnerConfig
    spoil: str = ""
    stream: bool = False
    stale: bool = False
    episodes: int = 16
    normalizes: bool = False
    demos: bool = False

    def policy(self, seed: int) -> Any:
        """A new policy."""
        if not self.normalizes:
            return ToyPolicy(seed=seed)
        sizes = MLPModelConfig(observation_dim=2, action_dim=ACTION_DIM, chunk_len=CHUNK, hidden=(8,))
        policy = MLPPolicy.fresh(sizes, seed=seed)
        policy.with_value = True
        return policy


def by_rows(rows: int, micro: int, **more: Any) -> LearnerConfig:
    return LearnerConfig(lr=1e-3, value_lr=1e-3, minibatch_size=rows, microbatch_size=micro, **more)


def by_groups(groups: int, micro: int, **more: Any) -> LearnerConfig:
    return LearnerConfig(
        lr=1e-3, value_lr=1e-3, minibatch_size=None, minibatch_groups=groups, microbatch_size=micro, **more
    )


CASES = {
    "grpo by rows": Case(GRPO, by_rows(25, 7)),
    "ppo by rows, uneven": Case(PPO, by_rows(20, 100)),
    "ppo, one minibatch": Case(PPO, by_rows(10**6, 16)),
    "ppo in warm-up": Case(PPOConfig(critic_warmup_iterations=1), by_rows(25, 7)),
    "ranks without rows": Case(PPO, by_rows(2, 1), episodes=2),
    "grpo by groups": Case(GRPO, by_groups(3, 10)),
    "ppo by groups, one row at a time": Case(PPO, by_groups(1, 1), episodes=4),
    "grpo as a stream": Case(GRPO, by_groups(3, 10), stream=True),
    "ppo by rows, half the rows": Case(PPO, by_rows(25, 7, row_share=0.5)),
    "ppo by groups, few rows": Case(PPO, by_groups(3, 10, row_share=0.1)),
    "grpo as a stream, half the rows": Case(GRPO, by_groups(3, 10, row_share=0.5), stream=True),
    "stale rows in a stream": Case(GRPO, by_groups(3, 10), stream=True, stale=True),
    "running statistics": Case(PPO, by_rows(25, 7), normalizes=True),
    "running statistics, in a stream": Case(PPO, by_groups(3, 10), normalizes=True, stream=True),
    "ppo by rows, imitating": Case(replace(PPO, demo_coef=0.5), by_rows(25, 7), demos=True),
    "grpo as a stream, imitating": Case(replace(GRPO, demo_coef=0.5), by_groups(3, 10), stream=True, demos=True),
    "recomputed": Case(GRPO, by_rows(25, 7, recompute_old_log_probs=True)),
    "stale": Case(PPO, by_rows(25, 7), stale=True),
    "loss": Case(GRPO, by_rows(10**6, 7, ratio_tolerance=1e9), spoil="loss"),
    "gradient": Case(GRPO, by_rows(10**6, 7), spoil="gradient"),
    "ratio": Case(GRPO, by_rows(10**6, 7), spoil="ratio"),
}


def batch_of(case: Case) -> RolloutBatch:
    """What the policy that acts gathers."""
    algorithm = make_algorithm(case.algorithm)
    collector = Collector(
        ToyEnv(8),
        case.policy(0),
        GroupExchange(
            GroupQueue(
                EpisodeSampler(1, TASKS, algorithm.group_size),
                groups=case.episodes // algorithm.group_size,
                success_rate_range=None,
                max_oversampling=1.0,
            )
        ),
        Profiler(),
        final_value=algorithm.needs_final_value,
    )
    batch = collector.collect(0)
    stale = torch.arange(len(batch)) % 3 == 0
    if case.stale:
        batch.row_version = torch.where(stale, -1, 0)
    if case.stale and case.stream:  # groups come corrected
        noise = torch.randn(batch.log_prob.shape, generator=torch.manual_seed(4))
        batch.log_importance = torch.where(stale[:, None], 0.3 * noise, 0.0)
    elif case.stale:
        batch.log_prob = torch.where(stale[:, None], batch.log_prob - 0.05, batch.log_prob)
        assert batch.value is not None
        batch.value = torch.where(stale, batch.value + 0.5, batch.value)
    row = len(batch) - 2  # in a microbatch that is not the lead's
    if case.spoil == "loss":
        batch.log_prob[row] = float("nan")
    if case.spoil == "ratio":
        batch.log_prob[row] += 1.0
    return batch


def as_seen_by(ranks: Collectives, batch: RolloutBatch) -> RolloutBatch:
    """What a rank has of it: frames of the groups that it ran only."""
    if ranks.size == 1:
        return batch
    return join_batches(
        [
            group
            if group.episodes[0].spec.group % ranks.size == ranks.rank
            else frames_elsewhere(group, ranks.example_rows)
            for group in split_groups(batch)
        ]
    )


@dataclass
class Result:
    """What became of some updates: the policy's weights (not of parts), metrics, what was raised, files dumped."""

    weights: dict[str, Tensor]
    metrics: list[dict[str, float]]
    error: str
    dumps: int
    held: int
    """Numbers of the optimiser's first moments in this process."""


class Spoilt(ToyPolicy):
    """Its gradient is infinite."""

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        out = super().evaluate(images, proprio, instruction, replay)
        out.log_prob.register_hook(lambda gradient: gradient * float("inf"))
        return out


def learn(case: Case, ranks: Collectives, batch: RolloutBatch) -> Result:
    """Updates with the same batch, as every rank makes them; after the second the state is saved and loaded."""
    spoilt = case.spoil == "gradient" and ranks.rank == ranks.size - 1
    policy = Spoilt() if spoilt else case.policy(0 if ranks.rank == 0 else 7)  # copied from the lead
    metrics: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(
            policy, make_algorithm(case.algorithm), case.learner, seed=0, dump_dir=Path(folder), collectives=ranks
        )
        if case.demos:
            learner.imitate(Imitation(toy_demos(1.0, 2.0), case.algorithm, seed=0))
        error = ""
        try:
            for number in range(3):
                part = copy.deepcopy(batch) if learner.needs_all_frames else as_seen_by(ranks, copy.deepcopy(batch))
                part.version = learner.version
                if case.stream:
                    for group in split_groups(part):
                        learner.accumulate(group)
                metrics.append(learner.update(part))
                if number == 1:
                    learner.load_state_dict(copy.deepcopy(learner.state_dict()))
                learner.optimizer_step.config = replace(learner.config, ratio_tolerance=1e9)
        except (NonFiniteError, RatioError) as raised:
            error = str(raised).replace(folder, "DIR")
        dumps = len(list(Path(folder).iterdir()))
    weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    moments = [state["exp_avg"] for state in learner.optimizer_step.optimizer.state.values()]
    held = sum((tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel() for tensor in moments)
    return Result(weights, metrics, error, dumps, held)


def every_case(rank: int, size: int, queue: Any) -> None:
    """The other ranks' side of the test: every case whole, then every case in parts."""
    torch.set_num_threads(1)
    with joined(place(rank, size)) as ranks:
        for kind in (ranks, FSDPCollectives(rank, size)):
            plain = {}
            for name, case in CASES.items():
                found = learn(case, kind, batch_of(case))
                weights = {key: value.numpy() for key, value in found.weights.items()}
                plain[name] = (found.metrics, found.error, found.dumps, weights, found.held)
            queue.put((rank, plain))
