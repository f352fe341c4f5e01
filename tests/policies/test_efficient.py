"""Pruned policies against plain references: layers left out, visual tokens left out, denoising features reused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.efficient import (
    DenoiseReuse,
    VisualPruner,
    drop_layers,
    layer_importance,
    least_important,
    select_tokens,
)
from embodied_rl.policies.flow import FlowSettings, draw_noise, ode_step, step_time
from embodied_rl.policies.nn.decoder import AttentionCall, Decoder, DecoderConfig, KVCache
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.policies.pi0.model import Prefix
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Observation
from tests.policies import oft_policies, pi0_models

AnyPolicy = OpenVLAPolicy | Pi0Policy
KINDS = ("openvla", "oft", "oft_film", "pi0", "pi05", "pi05_no_state")
FLOWS = ("pi0", "pi05", "pi05_no_state")
ROWS = 4


def _openvla() -> OpenVLAPolicy:
    """One camera and no proprio, so that the prompt follows the patches at once."""
    config = nano(
        image_size=64,
        vision_dim=32,
        dim=64,
        mlp_dim=96,
        layers=3,
        text_vocab=64,
        chunk_len=2,
        num_cameras=1,
        use_proprio=False,
    )
    policy = OpenVLAPolicy.fresh(config, oft_policies.INSTRUCTIONS)
    pi0_models.randomise(policy, 1)
    return policy


def _policy(kind: str) -> AnyPolicy:
    if kind.startswith("openvla"):
        return _openvla()
    if kind.startswith("oft"):
        return oft_policies.policy(film=kind == "oft_film")
    return pi0_models.tiny_policy(kind, FlowSettings(exploration="flow_noise", num_inference_steps=6))


def _observation(policy: AnyPolicy, rows: int = ROWS) -> Observation:
    """Prompts of different lengths."""
    if isinstance(policy, Pi0Policy):
        return pi0_models.observation(rows)
    config, draw = policy.config, np.random.default_rng(0)
    size = config.image_size
    images = draw.integers(0, 256, (rows, config.num_cameras, size, size, 3), dtype=np.uint8)
    proprio = draw.standard_normal((rows, config.proprio_dim)).astype(np.float32)
    return Observation.from_numpy(images, proprio, [oft_policies.INSTRUCTIONS[row % 3] for row in range(rows)])


def _act(policy: AnyPolicy, obs: Observation | None = None) -> ActOutput:
    obs = obs or _observation(policy)
    rows = np.arange(len(obs.instruction))
    return policy.act(obs, DecisionRng(rows + 7, rows), "sample")


def _decoders(policy: AnyPolicy) -> list[Decoder]:
    if isinstance(policy, Pi0Policy):
        return [policy.model.language, policy.model.expert]
    return [policy.model.language_model.model]


def _pruner(policy: AnyPolicy, keep: int | None) -> VisualPruner:
    """keep: None keeps all."""
    config = policy.config
    tower = policy.config.vision if isinstance(policy, Pi0Policy) else policy.config.featurizer
    count = tower.num_patches * config.num_cameras
    return VisualPruner(_decoders(policy)[0], int(not isinstance(policy, Pi0Policy)), count, keep or count)


def _assert_same(one: ActOutput, two: ActOutput) -> None:
    np.testing.assert_array_equal(one.actions, two.actions)
    assert torch.equal(one.log_prob, two.log_prob)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_left_out_changes_no_bit(kind: str) -> None:
    policy = _policy(kind)
    before = _act(policy)
    drop_layers(_decoders(policy), [])
    policy.model.pruner = _pruner(policy, None)
    _assert_same(_act(policy), before)
    if isinstance(policy, Pi0Policy):
        policy.model.pruner = None
        make = Pi0Policy.read_prefix

        def always_reuse(self: Pi0Policy, *args: Any, **more: Any) -> Prefix:
            return replace(make(self, *args, **more), expert=DenoiseReuse(self.model.expert, 1))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pi0Policy, "read_prefix", always_reuse)
            _assert_same(_act(policy), before)


def _without_layer(policy: AnyPolicy, drop: int) -> AnyPolicy:
    """A network built with one layer less, with the others' weights."""
    config: Any = policy.config
    fewer = {"decoder": replace(config.decoder, layers=config.decoder.layers - 1)}
    if isinstance(policy, Pi0Policy):
        fewer["expert"] = replace(config.expert, layers=config.expert.layers - 1)
        built: Any = Pi0Policy(replace(config, **fewer), policy.prompt, policy.statistics, policy.flow)
    else:
        built = type(policy)(replace(config, **fewer), policy.tokenizer, policy.statistics)
    built.with_value = policy.with_value
    state = {}
    for name, tensor in policy.state_dict().items():
        stem, found, rest = name.partition(".layers.")
        number, _, tail = rest.partition(".")
        if not found:
            state[name] = tensor
        elif int(number) != drop:
            state[f"{stem}.layers.{int(number) - (int(number) > drop)}.{tail}"] = tensor
    built.load_state_dict(state)
    return built


@pytest.mark.parametrize("drop", [0, 1, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_layer_was_never_there(kind: str, drop: int) -> None:
    policy = _policy(kind)
    layers = len(_decoders(policy)[0].layers)
    reference = _without_layer(policy, drop % layers)
    before = _act(policy)
    drop_layers(_decoders(policy), [drop % layers])
    after = _act(policy)
    _assert_same(after, _act(reference))
    assert not torch.equal(after.actions, before.actions)
    assert _decoders(policy)[0].config.layers == layers - 1


def test_layers_that_cannot_be_dropped() -> None:
    decoders = _decoders(_policy("pi0"))
    for drop in ([3], [-1], [0, 1, 2]):
        with pytest.raises(ValueError, match="cannot be dropped"):
            drop_layers(decoders, drop)
    assert [len(decoder.layers) for decoder in decoders] == [3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_sees_the_pruned_network(kind: str) -> None:
    policy = _policy(kind)
    obs = _observation(policy)
    arguments = obs.images, obs.proprio, obs.instruction
    whole = policy.evaluate(*arguments, _act(policy).replay)
    policy.model.pruner = _pruner(policy, 3)
    drop_layers(_decoders(policy), [1])
    acted = _act(policy)
    again = policy.evaluate(*arguments, acted.replay)
    torch.testing.assert_close(again.log_prob, acted.log_prob, rtol=0, atol=5e-5)
    assert (again.log_prob - whole.log_prob).abs().max() > 1e-3
    again.log_prob.sum().backward()
    grads = [p.grad for p in policy.model.parameters() if p.grad is not None]
    assert grads
    assert all(bool(grad.isfinite().all()) for grad in grads)


# visual tokens


def _slow_selection(relevance: list[float], features: Tensor, keep: int) -> list[int]:
    """Half by relevance, then one by one the token whose most similar kept token is least similar."""
    order = sorted(range(len(relevance)), key=lambda token: (-relevance[token], token))
    kept = order[: math.ceil(keep / 2)]

    def cosine(a: int, b: int) -> float:
        return float(features[a] @ features[b] / (features[a].norm() * features[b].norm()))

    while len(kept) < keep:
        rest = [token for token in range(len(relevance)) if token not in kept]
        kept.append(min(rest, key=lambda token: (max(cosine(token, other) for other in kept), token)))
    return sorted(kept)


def _slow_relevance(decoder: Decoder, prefix: Tensor, text: Tensor, start: int, count: int) -> list[float]:
    """One row without padding: attention of the prompt's tokens to visual ones in the first layer, in float64."""
    config, layer = decoder.config, decoder.layers[0].double()
    assert isinstance(layer, torch.nn.Module)
    attention: Any = layer.self_attn
    norm: Any = layer.input_layernorm

    def heads(x: Tensor, position: int, weight: Tensor) -> list[Tensor]:
        """Complex vectors, turned by their position."""
        scale = 1 + norm.weight if config.norm_offset else norm.weight
        normed = x / (x.square().mean() + config.norm_eps).sqrt() * scale
        half = config.head_dim // 2
        angle = position * config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        return [
            torch.complex(one[:half], one[half:]) * torch.polar(torch.ones_like(angle), angle)
            for one in (weight @ normed).view(-1, config.head_dim)
        ]

    keys = [heads(prefix[at].double(), at, attention.k_proj.weight) for at in range(start, start + count)]
    total = torch.zeros(count, dtype=torch.float64)
    for word, embedding in enumerate(text.double()):
        for head, query in enumerate(heads(embedding, len(prefix) + word, attention.q_proj.weight)):
            shared = head // (config.heads // config.kv_heads)
            scores = torch.stack([(query * key[shared].conj()).real.sum() for key in keys]) / math.sqrt(config.head_dim)
            total += scores.softmax(0)
    decoder.float()
    return (total / (len(text) * config.heads)).tolist()


def _sequence(policy: AnyPolicy) -> tuple[Tensor, Tensor, Tensor]:
    """Prefix [N,S,D], prompt embeddings [N,T,D] and their lengths, as the policy's own code makes them."""
    found: list[Tensor] = []

    class Recorder(VisualPruner):
        def __call__(self, prefix: Tensor, text: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
            found.extend((prefix, text, lengths))
            return super().__call__(prefix, text, lengths)

    whole = _pruner(policy, None)
    policy.model.pruner = Recorder(whole.decoder, whole.visual.start, whole.keep, whole.keep)
    _act(policy)
    policy.model.pruner = None
    prefix, text, lengths = (part.detach().clone() for part in found)  # out of inference mode
    return prefix, text, lengths


@pytest.mark.parametrize("kind", KINDS)
def test_selection_equals_a_slow_one(kind: str) -> None:
    policy = _policy(kind)
    prefix, text, lengths = _sequence(policy)
    assert len(set(lengths.tolist())) > 1
    pruner = _pruner(policy, 5)
    start, count = pruner.visual.start, pruner.visual.stop - pruner.visual.start
    kept, first = pruner(prefix, text, lengths)
    relevance = pruner.relevance(prefix, text, lengths)
    for row in range(ROWS):
        slow = _slow_relevance(pruner.decoder, prefix[row], text[row, : lengths[row]], start, count)
        np.testing.assert_allclose(relevance[row].detach(), slow, atol=1e-5)
        tokens = _slow_selection(slow, prefix[row, start : start + count], 5)
        others = [at for at in range(prefix.shape[1]) if not start <= at < start + count]
        places = sorted([*others, *(start + token for token in tokens)])
        assert first[row].tolist() == [*places, prefix.shape[1]]
        assert torch.equal(kept[row], prefix[row, places])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(2, 9), st.integers(0, 2**31))
def test_select_tokens(keep: int, tokens: int, seed: int) -> None:
    keep = min(keep, tokens)
    draw = torch.Generator().manual_seed(seed)
    # few different values, so that there are ties
    relevance = torch.randint(0, 4, (3, tokens), generator=draw).float()
    features = torch.randn(3, tokens, 4, generator=draw)
    kept = select_tokens(relevance, features, keep)
    for row in range(3):
        assert kept[row].tolist() == _slow_selection(relevance[row].tolist(), features[row], keep)


def test_plain_parts_of_a_picture_get_one_token() -> None:
    features = torch.eye(4)[torch.tensor([0, 0, 0, 1, 1, 2, 1, 3])][None]
    relevance = torch.tensor([[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]])
    assert select_tokens(relevance, features, 4).tolist() == [[0, 1, 3, 5]]
    assert select_tokens(relevance, features, 6).tolist() == [[0, 1, 2, 3, 5, 7]]


def _masked(policy: OpenVLAPolicy, keep: Tensor) -> Callable[..., Tensor]:
    """The decoder's forward over the whole sequence, in which nobody sees the tokens that `keep` [N,S] leaves out."""
    decoder = policy.model.language_model.model
    whole = decoder.forward

    def forward(
        x: Tensor,
        rope: Any,
        mask: Tensor | None = None,
        cache: Any = None,
        read: Tensor | None = None,
        causal: bool = True,
    ) -> Tensor:
        assert read is not None
        tokens = x.shape[1]
        seen = F.pad(keep, (0, tokens - keep.shape[1]), value=True)[:, None, None].expand(-1, 1, tokens, -1)
        if mask is not None:
            seen = seen & mask
        if causal:
            seen = seen & torch.ones(tokens, tokens, dtype=torch.bool).tril()
        hidden = whole(x, rope, seen, cache)
        return hidden.gather(1, read[..., None].expand(-1, -1, x.shape[2]))

    return forward


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FLOWS])
def test_token_policies_compute_as_if_the_others_were_masked(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy(kind)
    assert isinstance(policy, OpenVLAPolicy)
    obs = _observation(policy)
    prefix, text, lengths = _sequence(policy)
    policy.model.pruner = _pruner(policy, 5)
    _, first = policy.model.pruner(prefix, text, lengths)
    acted = _act(policy)
    policy.model.pruner = None
    keep = torch.zeros(prefix.shape[:2], dtype=torch.bool).scatter(1, first[:, :-1], True)
    monkeypatch.setattr(policy.model.language_model.model, "forward", _masked(policy, keep))
    expected = policy.evaluate(obs.images, obs.proprio, obs.instruction, acted.replay)
    torch.testing.assert_close(acted.log_prob, expected.log_prob, rtol=0, atol=5e-5)


@pytest.mark.parametrize("kind", FLOWS)
def test_flow_policies_compute_as_if_the_others_were_masked(kind: str) -> None:
    policy = _policy(kind)
    assert isinstance(policy, Pi0Policy)
    model, config = policy.model, policy.config
    prefix, text, lengths = _sequence(policy)
    pruner = _pruner(policy, 5)
    _, first = pruner(prefix, text, lengths)
    obs = _observation(policy)
    rows = np.arange(ROWS)
    noise = draw_noise(DecisionRng(rows, rows), policy.flow, config.horizon, config.max_action_dim, policy.device)
    arguments = obs.images, obs.proprio, obs.instruction, 1
    with torch.no_grad():
        model.pruner = pruner
        pruned = policy.read_prefix(*arguments)
        model.pruner = None
        keep = torch.zeros(prefix.shape[:2], dtype=torch.bool).scatter(1, first[:, :-1], True)
        valid = torch.cat([keep, torch.arange(text.shape[1]) < lengths[:, None]], dim=1)
        size = valid.shape[1]
        table = model.language.rope(size + 1 + config.horizon, policy.device)
        cache = KVCache(config.decoder, ROWS, size + 1 + config.horizon, prefix)
        model.language.fill(torch.cat([prefix, text], dim=1), table.first(size), valid[:, None, None], cache)
        start, branch = lengths + prefix.shape[1], cache
        if config.state_input == "token":
            state = policy.statistics.state.normalise(arguments[1])
            state = F.pad(state, (0, config.max_state_dim - config.proprio_dim))
            branch, start, valid = model._add_state(state, table, cache, start, valid)  # type: ignore[assignment]
        whole = Prefix(branch, valid, table.at(start[:, None] + torch.arange(config.horizon)), None)
        step = torch.zeros(ROWS, 1, dtype=torch.int64)
        one, two = (policy.denoise_step(prefix, noise.start[:, None], step).ode for prefix in (pruned, whole))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pruned_row_does_not_depend_on_its_neighbours(kind: str) -> None:
    policy = _policy(kind)
    policy.model.pruner = _pruner(policy, 3)
    obs = _observation(policy)
    together = policy.act(obs, DecisionRng(np.arange(ROWS), np.zeros(ROWS, int)), "greedy")
    for row in range(ROWS):
        own = Observation(obs.images[row : row + 1], obs.proprio[row : row + 1], [obs.instruction[row]])
        alone = policy.act(own, DecisionRng(np.array([row]), np.zeros(1, int)), "greedy")
        np.testing.assert_allclose(alone.actions[0], together.actions[row], atol=1e-5)


def test_a_pruner_keeps_what_is_there() -> None:
    for keep in (0, 9):
        with pytest.raises(ValueError, match="cannot keep"):
            VisualPruner(_decoders(_policy("oft"))[0], 1, 8, keep)


# importance


def test_importance_is_one_minus_the_mean_cosine() -> None:
    config = DecoderConfig(vocab_size=0, dim=16, layers=3, heads=2, kv_heads=1, head_dim=8, mlp_dim=24)
    decoder = Decoder(config)
    pi0_models.randomise(decoder, 3)
    inputs = [torch.randn(2, tokens, 16, generator=torch.Generator().manual_seed(tokens)) for tokens in (5, 7)]

    def run() -> None:
        for x in inputs:
            decoder(x, decoder.rope(x.shape[1], x.device), read=torch.tensor([[1, 3], [0, 4]]))

    found = layer_importance([decoder], run)
    cosines: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for start in inputs:
        x, rope = start, decoder.rope(start.shape[1], start.device)
        for index, layer in enumerate(decoder.layers):
            with torch.no_grad():
                y = layer(x, AttentionCall(rope, rope, None, None, True, None), index, None)
            for row, read in enumerate(((1, 3), (0, 4))):
                tokens = read if index == 2 else range(x.shape[1])
                cosines[index] += [_cosine(x[row, token], y[row, token]) for token in tokens]
            x = y
    np.testing.assert_allclose(found, [1 - np.mean(cosines[index]) for index in range(3)], atol=1e-6)
    assert not any(layer._forward_hooks for layer in decoder.layers)


def _cosine(x: Tensor, y: Tensor) -> float:
    return float(x.double() @ y.double() / (x.double().norm() * y.double().norm()))


def test_a_layer_that_does_nothing_is_dropped_first_and_costs_nothing() -> None:
    policy = _policy("pi0")
    assert isinstance(policy, Pi0Policy)
    with torch.no_grad():
        for decoder in _decoders(policy):
            layer: Any = decoder.layers[1]
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    obs, before = _observation(policy), _act(policy)
    arguments = obs.images, obs.proprio, obs.instruction, before.replay
    importance = layer_importance(_decoders(policy), lambda: policy.evaluate(*arguments))
    assert importance[1] == pytest.approx(0.0, abs=1e-6)
    assert min(importance[0], importance[2]) > 1e-3
    assert least_important(importance, 1) == [1]
    drop_layers(_decoders(policy), [1])
    np.testing.assert_allclose(_act(policy).actions, before.actions, atol=1e-5)


def test_layers_that_share_keys_and_values_share_their_importance() -> None:
    """The last language layer's output is never used, so only the expert's counts there."""
    policy = _policy("pi05_no_state")
    assert isinstance(policy, Pi0Policy)
    obs, acted = _observation(policy), _act(policy)
    arguments = obs.images, obs.proprio, obs.instruction, acted.replay
    language, expert = _decoders(policy)

    def run() -> None:
        policy.evaluate(*arguments)

    both, alone = layer_importance([language, expert], run), layer_importance([expert], run)
    assert both[2] == alone[2]
    assert both[0] != alone[0]
    with pytest.raises(ValueError, match="nothing went through"):
        layer_importance([language], run)


def test_least_important() -> None:
    assert least_important([0.3, 0.1, 0.2, 0.1], 2) == [1, 3]
    assert least_important([0.1, 0.1, 0.1], 2) == [0, 1]
    assert least_important([0.1], 0) == []


# denoising


def _slow_reuse(policy: Pi0Policy, prefix: Prefix, x: Tensor, every: int) -> Tensor:
    """The ODE path; between computed steps, each layer's attention and MLP outputs are those of the last one."""
    model, steps = policy.model, policy.flow.num_inference_steps
    expert, kept = model.expert, {}
    call = None
    for step in range(steps):
        time = step_time(torch.full((len(x), 1), step), steps)
        tokens, condition = model._embed_actions(x[:, None], time)
        hidden = tokens
        for index, layer in enumerate(expert.layers):
            part: Any = layer
            if step % every == 0:
                valid = None if prefix.valid is None else F.pad(prefix.valid, (0, x.shape[1]), value=True)
                mask = None if valid is None else valid[:, None, None]
                if index == 0:
                    call = AttentionCall(prefix.rope, prefix.rope, mask, prefix.cache.branch(), False, condition)
                normed, gate = part.input_layernorm.gated(hidden, condition)
                kept[index, "attention"] = part.self_attn(normed, normed, call, index) * (1 if gate is None else gate)
            hidden = hidden + kept[index, "attention"]
            if step % every == 0:
                normed, gate = part.post_attention_layernorm.gated(hidden, condition)
                kept[index, "mlp"] = part.mlp(normed) * (1 if gate is None else gate)
            hidden = hidden + kept[index, "mlp"]
        out = model.action_out_proj(expert.norm.gated(hidden, condition)[0])
        x = ode_step(x, out, steps)
    return x


@pytest.mark.parametrize("every", [1, 2, 4, 6])
@pytest.mark.parametrize("kind", FLOWS)
def test_reuse_equals_a_slow_one(kind: str, every: int) -> None:
    policy = _policy(kind)
    assert isinstance(policy, Pi0Policy)
    obs, config = _observation(policy), policy.config
    rows = np.arange(ROWS)
    rng = DecisionRng(rows, rows)
    whole = policy.act(obs, rng, "greedy")
    noise = draw_noise(rng, policy.flow, config.horizon, config.max_action_dim, policy.device)
    with torch.no_grad():
        prefix = policy.read_prefix(obs.images, obs.proprio, obs.instruction, 1)
        expected = _slow_reuse(policy, prefix, noise.start, every)
    policy.denoise_reuse = every
    found = policy.act(obs, rng, "greedy")
    expected = policy.statistics.action.unnormalise(policy._executed(expected)).clamp(-1, 1)
    np.testing.assert_allclose(found.actions, expected, atol=1e-5)
    again = policy.act(obs, rng, "greedy")  # nothing is left of the decision before
    np.testing.assert_array_equal(again.actions, found.actions)
    assert torch.equal(found.actions, whole.actions) == (every == 1)


def test_the_expert_runs_in_every_nth_step_only() -> None:
    policy = _policy("pi05_no_state")
    assert isinstance(policy, Pi0Policy)
    calls = []
    policy.model.expert.layers[0].register_forward_hook(lambda *_: calls.append(1))
    for every, count in ((1, 6), (2, 3), (4, 2), (6, 1)):
        calls.clear()
        policy.denoise_reuse = every
        _act(policy)
        assert len(calls) == count


def test_log_probs_of_reused_steps_are_refused() -> None:
    policy = _policy("pi0")
    assert isinstance(policy, Pi0Policy)
    obs = _observation(policy)
    policy.denoise_reuse = 2
    acted = _act(policy)
    with pytest.raises(RuntimeError, match="denoise_reuse"):
        policy.evaluate(obs.images, obs.proprio, obs.instruction, acted.replay)


def test_oft_is_covered_with_padding_and_a_stop_token() -> None:
    """The observations above have prompts of several lengths, so masks are there; this one has the stop token too."""
    policy = oft_policies.policy(stop_token=5)
    assert isinstance(policy, OpenVLAOFTPolicy)
    obs = _observation(policy)
    policy.model.pruner = _pruner(policy, 5)
    acted = _act(policy)
    again = policy.evaluate(obs.images, obs.proprio, obs.instruction, acted.replay)
    torch.testing.assert_close(again.log_prob, acted.log_prob, rtol=0, atol=1e-5)
