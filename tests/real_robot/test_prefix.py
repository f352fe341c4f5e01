"""Real-time chunking over the network: what a request says is what the executor meant, and a flow policy obeys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.jobs.serve import spec_of
from embodied_rl.real_robot.core.executor import Chunk, ChunkExecutor, ExecutorConfig, Overlap
from embodied_rl.real_robot.server.observations import PolicySpec, RequestError, read_request
from embodied_rl.real_robot.server.prefix import PrefixError, read_prefix
from embodied_rl.real_robot.server.served_policy import ServedPolicy
from tests.policies.pi0_models import tiny_policy

K, A, STEP = 8, 7, 50


@settings(max_examples=60, deadline=None)
@given(
    delay=st.integers(0, 6), horizon=st.integers(1, K), gap=st.integers(0, 7), seed=st.integers(0, 99)
)  # fmt: skip
def test_the_server_reads_what_the_executor_means(delay: int, horizon: int, gap: int, seed: int) -> None:
    executor = ChunkExecutor(ExecutorConfig(K, A, STEP, Overlap.NEWEST, execution_horizon=horizon), 0)
    executor.request(0)
    actions = np.random.default_rng(seed).uniform(-1, 1, (K, A))
    assert executor.add(Chunk(0, actions), delay * STEP).accepted
    request = executor.request(max(gap, delay) * STEP)
    prefix = read_prefix(request.message, K, A)
    if not request.planned:
        assert prefix is None
        return
    assert prefix is not None
    np.testing.assert_array_equal(prefix.previous, request.previous.astype(np.float32))
    np.testing.assert_allclose(prefix.weights, request.weights, rtol=1e-6)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"inference_delay": 1}, "belongs to 'prev_action_chunk'"),
    ({"prev_action_chunk": np.zeros((9, A))}, "has 9 actions"),
    ({"prev_action_chunk": np.zeros((0, A))}, "has 0 actions"),
    ({"prev_action_chunk": np.zeros((2, 6))}, "array of numbers"),
    ({"prev_action_chunk": "left"}, "array of numbers"),
    ({"prev_action_chunk": np.full((2, A), np.nan)}, "outside"),
    ({"prev_action_chunk": np.full((2, A), 1e9)}, "outside"),
    ({"prev_action_chunk": np.zeros((2, A)), "inference_delay": 3}, "from 0 to 2"),
    ({"prev_action_chunk": np.zeros((2, A)), "inference_delay": 1.5}, "from 0 to 2"),
    ({"prev_action_chunk": np.zeros((2, A)), "inference_delay": True}, "from 0 to 2"),
    ({"prev_action_chunk": np.zeros((4, A)), "prefix_attention_horizon": 5}, "from 0 to 4"),
    ({"prev_action_chunk": np.zeros((4, A)), "prefix_attention_horizon": 2, "inference_delay": 3}, "from 0 to 2"),
]


@pytest.mark.parametrize(("message", "problem"), BAD)
def test_a_bad_prefix_is_refused_in_one_line(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(PrefixError, match=problem):
        read_prefix(message, K, A)
    spec = PolicySpec(cameras=0, image_size=1, proprio_dim=1, chunk_len=K, action_dim=A, instruction=False)
    with pytest.raises(RequestError):
        read_request({"proprio": np.zeros(1)} | message, spec, lambda image: image)


def test_a_policy_that_cannot_says_so() -> None:
    spec = PolicySpec(cameras=0, image_size=1, proprio_dim=1, chunk_len=K, action_dim=A, instruction=False)
    with pytest.raises(RequestError, match="cannot go on from planned actions"):
        read_request({"proprio": np.zeros(1), "prev_action_chunk": np.zeros((2, A))}, spec, lambda image: image)


def test_a_served_flow_policy_goes_on_and_the_others_of_its_batch_are_as_without() -> None:
    policy = tiny_policy()
    spec = spec_of(policy)
    assert spec.continues
    served, draw = ServedPolicy(policy, spec), np.random.default_rng(3)
    served.warm_up([1])
    base = {
        "images": draw.integers(0, 256, (2, 28, 28, 3), np.uint8),
        "proprio": draw.normal(size=2),
        "instruction": "close it",
        "seed": 3,
        "decision": 1,
    }
    previous = np.full((3, 3), 0.3, np.float32)
    rows = [base, base | {"prev_action_chunk": previous, "inference_delay": 2}, base]
    plain, continued, again = served.decide([read_request(row, spec, lambda image: image) for row in rows])
    assert isinstance(plain, np.ndarray)
    assert isinstance(continued, np.ndarray)
    assert isinstance(again, np.ndarray)
    np.testing.assert_allclose(plain, again, atol=1e-6)
    assert np.abs(continued - previous)[:2].mean() < np.abs(plain - previous)[:2].mean() / 2
    assert torch.is_grad_enabled()
