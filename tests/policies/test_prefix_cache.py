"""Prefixes kept from rollout to update: the same numbers, bounded memory, and never another row's or older weights'."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.types import RatioError
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.nn.lora import set_formats
from embodied_rl.policies.pi0.config import nano, preset
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.prefix_cache import Entry, PrefixCache, digests
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.pipeline.replica import copy_weights, replicate
from embodied_rl.scheduler.serial import Collector
from embodied_rl.types import ActOutput, EvalOutput, Observation, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.policies.pi0_models import INSTRUCTIONS, KINDS, decision_rng, observation, randomise, tensors, tiny_policy
from tests.toy import INSTRUCTIONS as TOY_INSTRUCTIONS
from tests.toy import SIZE, TASKS, ToyEnv

ROWS = 6
PRESETS = ("nano", "nano_pi05")
ROOMY = 1 << 30


def frozen(name: str = "nano", method: str = "flow_sde", *, room: int = ROOMY) -> Pi0Policy:
    """A policy of a preset with a critic, frozen vision tower and language model, and a store."""
    flow = FlowSettings(exploration=method, num_inference_steps=4)  # type: ignore[arg-type]
    policy = Pi0Policy.fresh(preset(name), INSTRUCTIONS, flow=flow)
    randomise(policy.model.value_head, 1)
    policy.with_value = True
    policy.model.freeze_language_model()
    policy.prefix_cache = PrefixCache(room)
    return policy


def see(rows: int = ROWS, seed: int = 0) -> Observation:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (rows, 2, 64, 64, 3), dtype=np.uint8)
    return Observation.from_numpy(
        images, draw.uniform(-0.9, 0.9, (rows, 8)).astype(np.float32), [INSTRUCTIONS[row % 3] for row in range(rows)]
    )


def acted(policy: Pi0Policy, rows: int = ROWS) -> tuple[Observation, ActOutput]:
    obs = see(rows)
    return obs, policy.act(obs, decision_rng(rows), "sample")


def some(obs: Observation, replay: dict[str, Tensor], index: list[int]) -> tuple[Any, ...]:
    """Arguments of `evaluate` for some rows, in that order."""
    images, proprio, words = tensors(obs)
    return images[index], proprio[index], [words[i] for i in index], {k: v[index] for k, v in replay.items()}


def both(policy: Pi0Policy, *arguments: Any) -> tuple[EvalOutput, EvalOutput]:
    """What `evaluate` says with the store and without."""
    with_store = policy.evaluate(*arguments)
    store, policy.prefix_cache = policy.prefix_cache, None
    without = policy.evaluate(*arguments)
    policy.prefix_cache = store
    return with_store, without


def counts(policy: Pi0Policy) -> tuple[int, int]:
    assert policy.prefix_cache is not None
    return policy.prefix_cache.found, policy.prefix_cache.missed


@pytest.mark.parametrize("method", ["flow_sde", "flow_noise"])
@pytest.mark.parametrize("name", PRESETS)
def test_kept_prefixes_give_the_same_bits_in_the_same_batch(name: str, method: str) -> None:
    policy = frozen(name, method)
    obs, out = acted(policy)
    one, two = both(policy, *tensors(obs), out.replay)
    assert counts(policy) == (ROWS, 0)
    assert torch.equal(one.log_prob, two.log_prob)
    assert torch.equal(one.entropy, two.entropy)
    assert one.value is not None
    assert two.value is not None
    assert torch.equal(one.value, two.value)


@pytest.mark.parametrize("name", PRESETS)
def test_kept_prefixes_agree_in_other_batches(name: str) -> None:
    """Shuffled, cut into parts, some rows missing: instructions of other lengths meet, so padding changes too."""
    policy = frozen(name)
    obs, out = acted(policy, 12)
    more = see(3, seed=5)
    obs = Observation(
        torch.cat([obs.images, more.images]),
        torch.cat([obs.proprio, more.proprio]),
        [*obs.instruction, *more.instruction],
    )
    replay = {key: torch.cat([value, value[:3]]) for key, value in out.replay.items()}
    order = np.random.default_rng(1).permutation(15).tolist()
    for index in (order[:7], order[7:], [0, 3], [14], [4, 14]):
        one, two = both(policy, *some(obs, replay, index))
        torch.testing.assert_close(one.log_prob, two.log_prob, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(one.value, two.value, rtol=1e-6, atol=1e-6)
    found, missed = counts(policy)
    assert (found, missed) == (12 + 2 + 1, 3 + 2)
    assert policy.prefix_cache is not None
    assert policy.prefix_cache.drain() == {"prefix/found": 15.0, "prefix/missed": 5.0}
    assert policy.prefix_cache.drain() == {"prefix/found": 0.0, "prefix/missed": 0.0}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_recomputed_prefixes(kind: str) -> None:
    """In the published architecture, where instructions differ in length and pi0's state is a token of the expert."""
    policy = tiny_policy(kind, FlowSettings(exploration="flow_noise", num_inference_steps=4))
    policy.with_value = True
    policy.model.freeze_language_model()
    policy.prefix_cache = PrefixCache(ROOMY)
    obs = observation(ROWS)
    out = policy.act(obs, decision_rng(ROWS), "sample")
    gradients = []
    for result in both(policy, *tensors(obs), out.replay):
        assert result.value is not None
        policy.zero_grad()
        (result.log_prob.sum() + result.value.sum()).backward()
        gradients.append({name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None})
    assert counts(policy) == (ROWS, 0)
    assert gradients[0].keys() == gradients[1].keys()
    assert any("expert" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


def test_nothing_of_the_expert_or_of_the_state_token_is_kept() -> None:
    """They train: after a step the store must not bring back what they were."""
    policy = frozen()
    obs, out = acted(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.01)
    one, two = both(policy, *tensors(obs), out.replay)
    assert counts(policy) == (ROWS, 0)
    assert torch.equal(one.log_prob, two.log_prob)
    assert not torch.allclose(one.log_prob, out.log_prob, atol=1e-3)


@pytest.mark.parametrize("change", ["picture", "words", "state"])
def test_another_observation_is_never_found(change: str) -> None:
    """pi0.5 has the state in its prompt."""
    policy = frozen("nano_pi05")
    obs, out = acted(policy)
    images, proprio, words = obs.images.clone(), obs.proprio.clone(), obs.instruction
    if change == "picture":
        images[:, 1, -1, -1, 2] ^= 1
    elif change == "words":
        words = words[1:] + words[:1]
    else:
        proprio[:, 3] += 0.05
    one, two = both(policy, *tensors(Observation(images, proprio, words)), out.replay)
    assert counts(policy) == (0, ROWS)
    assert torch.equal(one.log_prob, two.log_prob)


def test_the_state_token_of_pi0_is_read_afresh() -> None:
    policy = frozen()
    obs, out = acted(policy)
    moved = Observation(obs.images, obs.proprio + 0.5, obs.instruction)
    one, two = both(policy, *tensors(moved), out.replay)
    assert counts(policy) == (ROWS, 0)
    assert torch.equal(one.log_prob, two.log_prob)
    assert not torch.allclose(one.log_prob, out.log_prob, atol=1e-3)


def _move(policy: Pi0Policy) -> None:
    with torch.no_grad():
        policy.model.language.layers[0].mlp.up_proj.weight.add_(0.1)  # type: ignore[union-attr]


def _load(policy: Pi0Policy) -> None:
    policy.model.load_state_dict(Pi0Policy.fresh(policy.config, INSTRUCTIONS, seed=9).model.state_dict())


def _round(policy: Pi0Policy) -> None:
    set_formats(policy.model, "bfloat16")
    policy.mixed_precision = True


@pytest.mark.parametrize("change", [_move, _load, _round])
def test_entries_of_other_weights_are_forgotten(change: Callable[[Pi0Policy], None]) -> None:
    policy = frozen()
    obs, out = acted(policy)
    change(policy)
    one, two = both(policy, *tensors(obs), out.replay)
    assert counts(policy) == (0, ROWS)
    assert torch.equal(one.log_prob, two.log_prob)
    assert not torch.allclose(one.log_prob, out.log_prob, atol=1e-4)
    policy.act(obs, decision_rng(ROWS), "sample")
    policy.evaluate(*tensors(obs), out.replay)
    assert counts(policy) == (ROWS, ROWS)


def test_bfloat16_prefixes_are_kept_as_they_are() -> None:
    policy = frozen()
    _round(policy)
    obs, out = acted(policy)
    one, two = both(policy, *tensors(obs), out.replay)
    assert counts(policy) == (ROWS, 0)
    assert torch.equal(one.log_prob, two.log_prob)


@pytest.mark.parametrize("part", ["vision", "projector", "language", "camera_embed"])
def test_a_prefix_that_trains_is_refused(part: str) -> None:
    policy = frozen()
    getattr(policy.model, part).requires_grad_(True)
    with pytest.raises(RuntimeError, match="language model train"):
        acted(policy)


def test_rollouts_write_and_nothing_else() -> None:
    """Greedy episodes and critics of last observations would push out what the update needs; misses would, too."""
    policy = frozen()
    obs = see()
    out = policy.act(obs, decision_rng(ROWS), "greedy")
    policy.evaluate(*tensors(obs), out.replay)
    assert policy.prefix_cache is not None
    assert len(policy.prefix_cache) == 0
    acted(policy)
    assert len(policy.prefix_cache) == ROWS
    assert policy.prefix_cache._used == sum(entry.nbytes for entry in policy.prefix_cache._entries.values())


def test_a_replica_leaves_what_the_learner_finds() -> None:
    policy = frozen()
    actor = replicate(policy)
    obs, out = acted(actor)
    with torch.no_grad():
        policy.model.expert.norm.weight.add_(0.01)
    copy_weights(policy, actor)
    one, two = both(policy, *tensors(obs), out.replay)
    assert counts(policy) == (ROWS, 0)
    assert torch.equal(one.log_prob, two.log_prob)
    assert copy.deepcopy(policy).prefix_cache is policy.prefix_cache


def test_checkpoints_hold_nothing_of_it() -> None:
    policy = frozen()
    before = policy.state_dict().keys()
    acted(policy)
    assert policy.state_dict().keys() == before


def test_the_oldest_make_room() -> None:
    policy = frozen()
    obs, out = acted(policy)
    assert policy.prefix_cache is not None
    one = max(entry.nbytes for entry in policy.prefix_cache._entries.values())
    policy.prefix_cache = PrefixCache(4 * one)
    policy.act(obs, decision_rng(ROWS), "sample")
    assert policy.prefix_cache._used <= 4 * one
    policy.evaluate(*tensors(obs), out.replay)
    kept = len(policy.prefix_cache)
    assert counts(policy) == (kept, ROWS - kept)
    assert 4 <= kept < ROWS
    with pytest.raises(UserError, match="no room for one decision's prefix"):
        PrefixCache(one // 4).put(b"x", Entry(torch.zeros(one), None))


@given(
    room=st.integers(1, 40), puts=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12), st.booleans()), max_size=60)
)
def test_what_stays_is_what_came_last(room: int, puts: list[tuple[int, int, bool]]) -> None:
    """Against a list: the newest entries whose sizes add up to the bound, in whatever order keys come back."""
    store, wanted = PrefixCache(4 * room), dict[bytes, int]()
    for key, size, summary in puts:
        name, total = bytes([key]), size + summary
        entry = Entry(torch.zeros(size), torch.zeros(1) if summary else None)
        if total > room:
            with pytest.raises(UserError):
                store.put(name, entry)
            continue
        store.put(name, entry)
        wanted.pop(name, None)
        wanted[name] = total
        while sum(wanted.values()) > room:
            wanted.pop(next(iter(wanted)))
        assert list(store._entries) == list(wanted)
        assert store._used == 4 * sum(wanted.values()) <= store.max_bytes


def test_digests_do_not_see_padding() -> None:
    images, ids = torch.zeros(1, 1, 2, 2, 3, dtype=torch.uint8), torch.tensor([[1, 2, 3]])
    short = digests(images, ids[:, :2], [2])
    assert short == digests(images, ids, [2]) != digests(images, ids, [3])


def toy_batch(tmp_path: Path, room: int, epochs: int = 2) -> tuple[Learner, RolloutBatch, Pi0Policy]:
    """A rollout of the toy world by the nano preset, and who learns from it."""
    config = replace(
        nano(image_size=SIZE, patch_size=SIZE // 2, num_cameras=1, horizon=3), chunk_len=2, action_dim=2, proprio_dim=2
    )
    flow = FlowSettings(num_inference_steps=4, noise_level=0.8)
    policy = Pi0Policy.fresh(config, TOY_INSTRUCTIONS.values(), flow=flow)
    policy.with_value = True
    policy.model.freeze_language_model()
    policy.prefix_cache = PrefixCache(room) if room else None
    algorithm = make_algorithm(PPOConfig(epochs=epochs, ratio_level="action", critic_warmup_iterations=0))
    collector = Collector(
        ToyEnv(8),
        policy,
        GroupExchange(GroupQueue(EpisodeSampler(1, TASKS, 1), groups=12)),
        Profiler(),
        final_value=True,
    )
    batch = collector.collect(0)
    options = LearnerConfig(lr=1e-5, minibatch_size=32, microbatch_size=12)
    return Learner(policy, algorithm, options, seed=0, dump_dir=tmp_path), batch, policy


def test_two_epochs_of_ppo_end_with_the_same_weights(tmp_path: Path) -> None:
    """Also where only some of the rows were kept."""
    weights, start, room = [], None, ROOMY
    for share in (0.0, 1.0, 0.5):
        learner, batch, policy = toy_batch(tmp_path, int(share * room))
        start = start or {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        learner.update(batch)
        weights.append(policy.state_dict())
        if policy.prefix_cache is not None:
            found, missed = counts(policy)
            assert found + missed == 2 * len(batch)
            assert missed == 0 if share == 1.0 else 0 < found < 2 * len(batch)
            room = policy.prefix_cache._used
    assert start is not None
    moved = max(float((weights[0][name] - start[name]).abs().max()) for name in start)
    assert moved > 1e-5
    for other in weights[1:]:
        for name, tensor in weights[0].items():
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-6, msg=name)


def test_the_learner_would_notice_another_rows_prefix(tmp_path: Path) -> None:
    learner, batch, policy = toy_batch(tmp_path, ROOMY)
    assert policy.prefix_cache is not None
    entries = policy.prefix_cache._entries
    keys = list(entries)
    for key, entry in zip(keys, [entries[key] for key in keys[1:] + keys[:1]], strict=True):
        entries[key] = entry
    with pytest.raises(RatioError):
        learner.update(batch)
