"""What an episode shows after its last step reaches the batch, to the bit, whoever runs it and wherever."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.learner.batches import join_batches
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.rollout.chunk import Ends
from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.observation_pool import gather
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig, SchedulerConfig, SerialConfig
from embodied_rl.scheduler.make import make_profiler, make_scheduler
from embodied_rl.types import ChunkResult, Observation, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.threads import CoreBudget
from tests.embodied_rl.scheduler.over_ray import FakeRay
from tests.embodied_rl.scheduler.painted import Painted, PaintedFactory, check_ends
from tests.embodied_rl.scheduler.toys import PPO, assert_same_rows, jitter
from tests.toy import TASKS, ToyPolicy

GROUPS, UPDATES = 9, 2
SCHEDULES: dict[str, SchedulerConfig] = {
    "serial": SerialConfig(),
    "stream": PipelinedConfig(env_groups=3),
    "one env group": PipelinedConfig(env_groups=1),
    "async": PipelinedConfig(env_groups=3, mode="async"),
    "ray": RayConfig(workers=2),
}


class Looker:
    """A learner, as schedulers see it, that never moves its policy."""

    def __init__(self, policy: ToyPolicy, algorithm: PPOConfig, ranks: Collectives, *, images: bool) -> None:
        self.policy, self.algorithm = policy, make_algorithm(algorithm)
        self.config = LearnerConfig(minibatch_size=None, minibatch_groups=2, microbatch_size=24)
        self.collectives, self.needs_all_frames, self.needs_final_images = ranks, images, images
        self.ess, self.cores = 1.0, CoreBudget()
        self.groups: list[RolloutBatch] = []

    def accumulate(self, group: RolloutBatch) -> None:
        self.groups.append(group)


class Together(Collectives):
    """Rank `rank` of two that are threads of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier, said: list[bytes]) -> None:
        super().__init__(rank, 2)
        self._barrier, self._said = barrier, said

    def gather(self, value: Any) -> list[Any]:
        self._said[self.rank] = pickle.dumps(value)
        self._barrier.wait(900)
        found = [pickle.loads(part) for part in self._said]
        self._barrier.wait(900)
        return found


def collect(
    schedule: str,
    env: Painted,
    ranks: Collectives = SINGLE_PROCESS,
    *,
    images: bool = True,
    algorithm: PPOConfig = PPO,
    factory: PaintedFactory | None = None,
    policy: ToyPolicy | None = None,
) -> list[RolloutBatch]:
    learner, config = Looker(policy or ToyPolicy(), algorithm, ranks, images=images), SCHEDULES[schedule]
    scheduler = make_scheduler(
        config,
        env,
        learner,
        EpisodeSampler(5, TASKS, 1),
        make_profiler(config),
        Callbacks(remote=factory),
        groups=GROUPS,
        workers=2,
    )
    batches = []
    with closing(scheduler):
        for batch in scheduler.batches(0, UPDATES):
            groups, learner.groups = learner.groups, []
            batches.append(join_batches(groups) if groups else batch)
            scheduler.publish(batch.version + 1)
    return batches


def collect_on_two_ranks(schedule: str, ends: dict[int, torch.Tensor]) -> list[list[RolloutBatch]]:
    barrier, said, lost = threading.Barrier(2), [b"", b""], {2, 5}
    policies = [ToyPolicy(), ToyPolicy()]  # not in threads: they are drawn from the process's one generator

    def run(rank: int) -> list[RolloutBatch]:
        try:
            env = Painted(3, jitter(rank), ends=ends, lost=lost)
            return collect(schedule, env, Together(rank, barrier, said), policy=policies[rank])
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


def check_same(found: Sequence[RolloutBatch], expected: Sequence[RolloutBatch], ends: dict[int, torch.Tensor]) -> None:
    for one, two in zip(found, expected, strict=True):
        check_ends(one, ends)
        assert_same_rows(one, two)
        assert one.final_images is not None
        assert two.final_images is not None
        assert torch.equal(one.final_images, two.final_images)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_keeps_what_the_env_showed_after_the_last_step(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of episodes that ran again because the simulator died, before the end or right after it."""
    monkeypatch.setattr("embodied_rl.scheduler.ray.scheduler.connect", lambda config: FakeRay())
    ends: dict[int, torch.Tensor] = {}
    expected = collect("serial", Painted(4, ends=ends))
    check_same(expected, expected, ends)
    ended = [episode for batch in expected for episode in batch.episodes]
    assert {episode.terminated for episode in ended} == {True, False}
    env = Painted(5, jitter(1), breaks={3: 1}, lost={2, 7, 11})
    far = PaintedFactory(env.ends, env.lost)
    check_same(collect(schedule, env, factory=far), expected, env.ends)
    assert not env.lost, "each was lost once"


@pytest.mark.parametrize("schedule", ["serial", "stream"])
def test_ranks_hear_of_what_others_episodes_showed(schedule: str) -> None:
    expected = collect("serial", Painted(4))
    ends: dict[int, torch.Tensor] = {}
    for found in collect_on_two_ranks(schedule, ends):
        check_same(found, expected, ends)


def test_a_picture_before_the_last_decision_is_another() -> None:
    """Or the tests above would show nothing."""
    env = Painted(4)
    for batch in collect("serial", env):
        last = torch.tensor([int((batch.episode == number).nonzero()[-1]) for number in range(len(batch.episodes))])
        before = replace(batch, final_images=batch.images[last])
        with pytest.raises(AssertionError):
            check_ends(before, env.ends)
        assert before.final_images is not None
        assert batch.final_images is not None
        assert not (before.final_images == batch.final_images).flatten(1).all(dim=1).any(), "not of one episode"


@pytest.mark.parametrize("schedule", ["serial", "stream"])
def test_a_picture_that_is_not_copied_out_of_the_pool_is_overwritten(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(self: Ends, episodes: Any, result: ChunkResult, rows: list[int], obs: Observation) -> Any:
        for place, row in enumerate(rows):
            episodes[row].final_images = obs.images[place]
        return [], obs.rows([])

    monkeypatch.setattr(Ends, "keep", keep)
    env = Painted(4)
    batches = collect(schedule, env, algorithm=replace(PPO, bootstrap_truncated=False))
    with pytest.raises(AssertionError):
        check_ends(join_batches(batches), env.ends)


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("schedule", ["serial", "stream", "async"])
def test_where_nobody_asks_nothing_is_rendered_kept_or_changed(schedule: str, bootstrap: bool) -> None:
    algorithm = replace(PPO, bootstrap_truncated=bootstrap)
    without, asked = Painted(4), Painted(4)
    plain = collect(schedule, without, images=False, algorithm=algorithm)
    seen = collect(schedule, asked, algorithm=algorithm)
    for one, two in zip(plain, seen, strict=True):
        assert one.final_images is None
        assert two.final_images is not None
        assert_same_rows(one, two)
    ended = [episode for batch in seen for episode in batch.episodes]
    more = sum(episode.terminated for episode in ended) if bootstrap else len(ended)
    assert asked.looks - without.looks == more, "one render an episode, or none where its value needs one anyway"


def test_episodes_with_and_without_final_images_do_not_mix() -> None:
    specs = EpisodeSampler(5, TASKS, 3).next_group()
    runner = EnvRunner(Painted(3), ToyPolicy(), Profiler(), record=True, final_images=True)
    ended = list(runner.run(lambda: specs.pop() if specs else None, lambda spec, cause: spec, "sample"))
    whole = gather(ended, 0)
    assert whole.final_images is not None
    ended[1].final_images = None
    with pytest.raises(ValueError, match="only some have final images"):
        gather(ended, 0)
