"""What a run needs of each device's memory, counted by hand on made-up sizes and measured on the toy policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.autotune.memory import GIB, Sizes, measure_sizes, needs, room, shortage
from embodied_rl.policies.memory import Footprint
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig
from tests.embodied_rl.autotune.test_trials import CONFIG
from tests.toy import SIZE, TASKS, ToyEnv, ToyPolicy

SIZES = Sizes(
    Footprint(weights=1000, trained=100, update_fixed=50, update_per_row=10, rollout_per_row=3),
    learning=400,
    observation=7,
)
ON_GPU = replace(CONFIG, device="cuda")
STREAM = replace(ON_GPU, scheduler=PipelinedConfig(env_groups=2))
LEARNER = 1000 + 400 + 12 * 100  # the weights, what trains of them untouched, gradients and moments


def test_what_a_schedule_needs_is_counted_where_it_is_held() -> None:
    """8 worlds, micro-batches of 32 rows, 10 rows an iteration of 4 groups, minibatches of 2 groups."""
    assert needs(ON_GPU, SIZES, 10) == {"cpu": 2 * 70, "cuda": LEARNER + 50 + 320}
    assert needs(STREAM, SIZES, 10) == {"cpu": 70 + 35, "cuda": LEARNER + 400 + 50 + 320 + 24}
    stale = replace(STREAM, scheduler=PipelinedConfig(mode="async", max_staleness=2, act_device="cuda:1"))
    assert needs(stale, SIZES, 10) == {"cpu": 4 * 70 + 35, "cuda": LEARNER + 50 + 320, "cuda:1": 1000 + 24 + 96}
    on_cpu = replace(ON_GPU, device="cpu")
    assert needs(on_cpu, SIZES, 10) == {"cpu": LEARNER + 50 + 320}, "the policy's, as the batch was counted first"


def test_an_update_that_takes_groups_as_they_end_keeps_rows_of_its_own() -> None:
    """With further epochs a copy of all of them; else of the minibatch under way; none under serial."""
    for epochs, groups, copies in ((2, 2, 1.0), (1, 2, 2 / 16), (1, 40, 1.0)):
        config = replace(
            STREAM, algorithm=PPOConfig(epochs=epochs), learner=replace(STREAM.learner, minibatch_groups=groups)
        )
        assert needs(config, SIZES, 160)["cpu"] == round(7 * 160 * (1 + copies))
        assert needs(replace(config, scheduler=ON_GPU.scheduler), SIZES, 160)["cpu"] == 2 * 7 * 160


def test_what_is_short_is_named() -> None:
    free = {"cpu": 2 * GIB, "cuda": GIB // 2}
    assert shortage({"cpu": 2 * GIB, "cuda": GIB // 2}, free) is None
    assert shortage({"cpu": GIB, "cuda": GIB}, free) == "needs 1 GiB of cuda, 0.5 are free"
    assert 0 < room("cpu", 0) < room("cpu", GIB)


def test_sizes_of_a_policy_are_measured_and_leave_it_alone() -> None:
    policy = ToyPolicy()
    policy.body.requires_grad_(False)
    sizes = measure_sizes(policy, ToyEnv(2), EpisodeSampler(5, TASKS, 4).next_group()[0])
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    assert sizes.footprint.weights == 4 * sum(parameter.numel() for parameter in policy.parameters())
    assert sizes.learning == 4 * sizes.footprint.trained == 4 * sum(parameter.numel() for parameter in trained)
    assert 0 < sizes.footprint.rollout_per_row <= sizes.footprint.update_per_row
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert sizes.observation == 3 * SIZE * SIZE + 2 * 4


@pytest.mark.parametrize("rows", [8, 64])
def test_more_of_anything_needs_no_less(rows: int) -> None:
    small = needs(STREAM, SIZES, rows)
    for bigger in (
        replace(STREAM, env=replace(STREAM.env, num_envs=16)),
        replace(STREAM, learner=replace(STREAM.learner, microbatch_size=64)),
        replace(STREAM, scheduler=PipelinedConfig(env_groups=2, mode="async")),
    ):
        large = needs(bigger, SIZES, rows)
        assert all(large[device] >= count for device, count in small.items())
        assert large != small
