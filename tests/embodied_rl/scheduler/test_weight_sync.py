"""Weights for replicas elsewhere: nothing is lost, nothing unchanged is sent, frozen parameters are never sent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from embodied_rl.scheduler.ray import weight_sync
from embodied_rl.scheduler.ray.weight_sync import WeightDeltaEncoder, apply_deltas


def network(frozen: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    policy[0].requires_grad_(not frozen)
    return policy


def linear(policy: nn.Sequential, number: int) -> nn.Linear:
    layer = policy[number]
    assert isinstance(layer, nn.Linear)
    return layer


def same_bits(one: nn.Module, two: nn.Module) -> bool:
    return all(
        torch.equal(left.view(torch.int32), right.view(torch.int32))
        for left, right in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )


@settings(max_examples=50)
@given(st.lists(st.lists(st.tuples(st.integers(0, 34), st.floats(width=32)), max_size=30), max_size=5))
def test_replicas_follow_to_the_last_bit(updates: list[list[tuple[int, float]]]) -> None:
    """Any changes, also to -0, infinities and NaN; a late replica catches up with everything."""
    source, replica, late = network(), network(), network()
    outbox = WeightDeltaEncoder(source)
    for update in updates:
        with torch.no_grad():
            for place, value in update:
                linear(source, 0).weight.view(-1)[place] = value
        apply_deltas(replica, outbox.changes())
        assert same_bits(source, replica)
    apply_deltas(late, outbox.full_state())
    assert same_bits(source, late)


def test_only_what_changed_is_sent() -> None:
    source = network()
    outbox = WeightDeltaEncoder(source)
    assert outbox.changes() == []
    with torch.no_grad():
        linear(source, 0).weight[2, 3] += 1
        linear(source, 1).bias.add_(1)
    (bucket,) = outbox.changes()
    assert set(bucket) == {"0.weight", "1.bias"}
    assert bucket["0.weight"].positions is not None
    assert bucket["0.weight"].positions.tolist() == [2 * 5 + 3]
    assert bucket["1.bias"].positions is None  # all of it changed: positions would only cost
    assert sum(change.size_bytes for change in bucket.values()) == (4 + 4) + 3 * 4
    assert outbox.changes() == []


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 33), (torch.float32, 49), (torch.float64, 66)])
def test_positions_are_sent_only_where_that_is_shorter(dtype: torch.dtype, most: int) -> None:
    """A position takes 4 bytes, whatever a value takes; `most`: changes of 100 numbers up to which it pays."""
    for count in (1, most, most + 1, 100):
        source, replica = (nn.Linear(100, 1, bias=False, dtype=dtype) for _ in range(2))
        replica.load_state_dict(source.state_dict())
        outbox = WeightDeltaEncoder(source)
        with torch.no_grad():
            source.weight[0, :count] += 1
        ((change,),) = (bucket.values() for bucket in outbox.changes())
        assert (change.positions is not None) == (count <= most)
        assert change.size_bytes == min(count * (dtype.itemsize + 4), 100 * dtype.itemsize)
        apply_deltas(replica, [{"weight": change}])
        assert torch.equal(source.weight, replica.weight)


def test_frozen_parameters_stay_at_home() -> None:
    outbox = WeightDeltaEncoder(network(frozen=True))
    assert {name for bucket in outbox.full_state() for name in bucket} == {"1.weight", "1.bias"}


def test_messages_are_of_a_handy_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_sync, "BUCKET_BYTES", 100)
    buckets = WeightDeltaEncoder(network()).full_state()
    assert [list(bucket) for bucket in buckets] == [["0.weight"], ["0.bias"], ["1.weight", "1.bias"]]


def test_running_statistics_travel_with_the_weights() -> None:
    """Whatever their number format; a replica that comes late has them too."""
    source, replica, late = (
        nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3).requires_grad_(False)).double() for _ in range(3)
    )
    for each in (source, replica, late):
        each.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        each.register_buffer("turned", torch.zeros(30, 40).t())
        each.register_buffer("expanded", torch.ones(1).expand(3))  # nobody can write into it
    outbox = WeightDeltaEncoder(source)
    for copied in (replica, late):
        apply_deltas(copied, outbox.full_state())
    source(torch.arange(20.0, dtype=torch.float64).reshape(4, 5))  # BatchNorm takes the batch in
    dict(source.named_buffers())["seen"][1] = True
    dict(source.named_buffers())["turned"][1, 2] = 1
    (bucket,) = outbox.changes()
    assert set(bucket) == {"turned", "1.running_mean", "1.running_var", "1.num_batches_tracked", "seen"}
    apply_deltas(replica, [bucket])
    apply_deltas(late, outbox.full_state())
    for copied in (replica, late):
        assert all(torch.equal(copied.state_dict()[name], value) for name, value in source.state_dict().items())
