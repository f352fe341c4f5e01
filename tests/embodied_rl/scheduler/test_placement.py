"""Acting on another device than learning. 'cpu:1' stands for one: tensors are copied there, as to a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from embodied_rl.algorithms.config import AlgorithmConfig
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.policy import MLPPolicy
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.scheduler.make import make_scheduler
from embodied_rl.scheduler.pipeline.replica import acting_device, copy_weights, replicate
from embodied_rl.types import ChunkResult, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.embodied_rl.scheduler.toys import GRPO, PPO, Setup, SlowEnv, assert_same_rows, jitter, serial
from tests.toy import ToyPolicy

FAR = torch.device("cpu:1")


def apart(
    setup: Setup, folder: Path, config: PipelinedConfig, seed: int
) -> tuple[list[RolloutBatch], dict[str, Tensor]]:
    """The run of `toys.serial` through `make_scheduler`."""
    policy = ToyPolicy()
    policy.head.bias.requires_grad_(False)
    sampler, learner = setup.parts(policy, folder)
    batches = []
    with closing(
        make_scheduler(
            config,
            SlowEnv(6, jitter(seed)),
            learner,
            sampler,
            Profiler(concurrent=True),
            Callbacks(),
            groups=setup.groups,
            workers=2,
        )
    ) as scheduler:
        for batch in scheduler.batches(0, setup.iterations):
            batches.append(batch)
            learner.update(batch)
            scheduler.publish(learner.version)
    return batches, policy.state_dict()


@given(
    algorithm=st.sampled_from([GRPO, PPO]),
    stages=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    minibatch=st.sampled_from([1, 2, 100]),
)
@settings(deadline=None, max_examples=10)
def test_episodes_and_weights_are_those_of_one_device(
    algorithm: AlgorithmConfig, stages: int, seed: int, minibatch: int
) -> None:
    learner = LearnerConfig(lr=1e-2, minibatch_size=None, minibatch_groups=minibatch, microbatch_size=24)
    setup = Setup(algorithm, learner=learner, iterations=3)
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            apart(setup, Path(folder), PipelinedConfig(env_groups=stages, act_device=device), seed)
            for device in (None, "cpu:1")
        ]
    (here, one), (there, two) = runs
    for left, right in zip(here, there, strict=True):
        assert_same_rows(left, right)
    assert all(torch.equal(one[name], tensor) for name, tensor in two.items())


def test_async_may_act_elsewhere_too(tmp_path: Path) -> None:
    setup = Setup(GRPO, iterations=3)
    batches, weights = apart(setup, tmp_path, PipelinedConfig(env_groups=2, mode="async", act_device="cpu:1"), 1)
    assert len(batches) == 3
    assert all(batch.row_version is not None for batch in batches)
    assert not torch.equal(weights["body.weight"], serial(Setup(GRPO, iterations=1), tmp_path).weights["body.weight"])


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor that a module or one below it holds, registered or not."""
    found: dict[str, Tensor] = {}
    for name, inner in module.named_modules():
        own: dict[str, Any] = {**vars(inner), **inner._parameters, **inner._buffers}
        found |= {f"{name}.{key}": value for key, value in own.items() if isinstance(value, Tensor)}
    return found


def test_a_replica_elsewhere_holds_all_that_the_policy_holds() -> None:
    """On 'meta' a tensor that was forgotten shows; a real policy, part of it frozen, and one tensor under two names."""
    policy = OpenVLAPolicy.fresh(nano(), ["pick up the mug"])
    policy.model.projector.requires_grad_(False)
    policy.model.extra = policy.model.projector  # type: ignore[assignment]
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    replica = replicate(policy, torch.device("meta"))
    assert {tensor.device.type for tensor in tensors_of(replica).values()} == {"meta"}
    assert replica.device.type == "meta"
    assert replica.model.extra is replica.model.projector  # type: ignore[comparison-overlap]
    for (name, new), old in zip(replica.named_parameters(), policy.parameters(), strict=True):
        assert (new.requires_grad, new.shape, new.dtype) == (old.requires_grad, old.shape, old.dtype), name
    assert {tensor.device.type for tensor in tensors_of(policy).values()} == {"cpu"}
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_only_what_learns_is_copied_after_an_update() -> None:
    policy = ToyPolicy()
    policy.body.requires_grad_(False)
    replica = replicate(policy, FAR)
    assert not {tensor.data_ptr() for tensor in policy.parameters()} & {t.data_ptr() for t in replica.parameters()}
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    copy_weights(policy, replica)
    assert torch.equal(replica.head.weight, policy.head.weight)
    assert torch.equal(replica.body.weight + 1.0, policy.body.weight)


@pytest.mark.parametrize("device", [None, FAR])
def test_statistics_stay_while_the_replica_acts_and_move_with_the_weights(device: torch.device | None) -> None:
    """As weights do: a decision must not see half of what `update_normalizer` does meanwhile."""
    sizes = MLPModelConfig(observation_dim=2, action_dim=1)
    policy = MLPPolicy.fresh(sizes, seed=0)
    replica = replicate(policy, device)
    before = {name: value.clone() for name, value in replica.state_dict().items()}
    policy.model.update_normalizer(torch.randn(8, 2, generator=torch.manual_seed(0)), torch.arange(8.0))
    assert all(torch.equal(before[name], value) for name, value in replica.state_dict().items())
    copy_weights(policy, replica)
    assert all(torch.equal(value, replica.state_dict()[name]) for name, value in policy.state_dict().items())
    assert not torch.equal(replica.model.mean, before["model.mean"])


@pytest.mark.parametrize(
    ("device", "message"),
    [("cpu", "is where the policy learns"), (f"cuda:{torch.cuda.device_count()}", "torch sees .* GPUs here")],
)
def test_a_device_that_is_none_is_refused(device: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        acting_device(device, ToyPolicy())


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "meta"])
def test_a_device_that_is_misspelt_is_refused(device: str) -> None:
    with pytest.raises(UserError, match="must be cpu, cuda or cuda:NUMBER"):
        PipelinedConfig(act_device=device)


def test_rollout_and_learner_share_one_budget_of_the_cores(tmp_path: Path) -> None:
    """The learner is at work in it while it updates, the rollout while episodes run; at the end neither is."""
    seen: set[tuple[bool, bool]] = set()
    setup, policy = Setup(GRPO, learner=LearnerConfig(minibatch_size=None, minibatch_groups=1)), ToyPolicy()
    sampler, learner = setup.parts(policy, tmp_path)

    class Watching(SlowEnv):
        def step(self, env_ids: Sequence[int], actions: Tensor) -> ChunkResult:
            seen.add((learner.cores.busy("rollout"), learner.cores.busy("learner")))
            return super().step(env_ids, actions)

    with closing(
        make_scheduler(
            PipelinedConfig(env_groups=2),
            Watching(6),
            learner,
            sampler,
            Profiler(concurrent=True),
            Callbacks(),
            groups=setup.groups,
            workers=2,
        )
    ) as scheduler:
        for _ in scheduler.batches(0, 1):
            assert not learner.cores.busy("rollout")
    assert {rollout for rollout, _ in seen} == {True}
    assert not learner.cores.busy("learner")
