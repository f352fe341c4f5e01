"""The policy contract on the nano architecture: acting, recomputing, imitating, and independence of the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.policies.openvla import decode
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, nano
from embodied_rl.policies.openvla.decode import choose
from embodied_rl.policies.openvla.model import ordinal_features
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.preprocessing.tokens import Statistics, decode_tokens, identity_statistics
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation

INSTRUCTIONS = ["turn on the stove", "pick up the black bowl and place it on the plate", "open it"]


def _config(**changes: object) -> OpenVLAModelConfig:
    return replace(nano(image_size=32, vision_dim=32, dim=64, mlp_dim=96, text_vocab=64, chunk_len=2), **changes)


def _policy(config: OpenVLAModelConfig | None = None, statistics: Statistics | None = None) -> OpenVLAPolicy:
    """A policy whose every parameter is random, also those that start at zero or one."""
    policy = OpenVLAPolicy.fresh(config or _config(), INSTRUCTIONS, statistics, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    policy.with_value = True
    return policy


def _observation(rows: int, policy: OpenVLAPolicy, seed: int = 0) -> Observation:
    config, generator = policy.config, np.random.default_rng(seed)
    shape = (rows, config.num_cameras, config.image_size, config.image_size, 3)
    return Observation.from_numpy(
        generator.integers(0, 256, shape, dtype=np.uint8),
        generator.standard_normal((rows, config.proprio_dim)).astype(np.float32),
        [INSTRUCTIONS[row % 3] for row in range(rows)],
    )


def _rng(rows: int, decision: int = 0) -> DecisionRng:
    return DecisionRng(np.arange(rows), np.full(rows, decision))


def _rows(obs: Observation, rows: list[int]) -> Observation:
    return Observation(obs.images[rows], obs.proprio[rows], [obs.instruction[row] for row in rows])


def _evaluate(policy: OpenVLAPolicy, obs: Observation, out: ActOutput) -> EvalOutput:
    return policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"learned_positions": False},
        {"use_proprio": False, "num_cameras": 1},
        {"append_token": 7},
        {"decoder": replace(_config().decoder, activation="gelu_tanh")},
        {"decoder": replace(_config().decoder, norm_offset=True)},
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 1.6])
def test_evaluate_equals_act(changes: dict[str, object], temperature: float) -> None:
    policy = _policy(_config(**changes))
    policy.temperature = temperature
    obs = _observation(7, policy)
    out = policy.act(obs, _rng(7), "sample")
    again = _evaluate(policy, obs, out)
    torch.testing.assert_close(again.log_prob.detach(), out.log_prob, rtol=0, atol=1e-5)
    torch.testing.assert_close(again.value.detach(), out.value, rtol=0, atol=1e-5)  # type: ignore[union-attr]
    assert out.log_prob.shape == (7, 14)
    assert out.log_prob.dtype == torch.float32
    assert out.actions.shape == (7, 2, 7)
    assert out.actions.dtype == torch.float32
    assert out.replay["tokens"].dtype == torch.uint8


def test_one_loop_decodes_as_the_modules_do(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy(_config(decoder=replace(_config().decoder, heads=4, kv_heads=2, head_dim=16)))
    obs = _observation(4, policy)
    one = policy.act(obs, _rng(4), "sample")
    monkeypatch.setattr(decode, "_MAX_LOOP_DIM", 0)
    monkeypatch.setattr(decode.decode, "decode", None)
    two = policy.act(obs, _rng(4), "sample")
    torch.testing.assert_close(one.log_prob, two.log_prob, rtol=0, atol=1e-5)
    assert torch.equal(one.replay["tokens"], two.replay["tokens"])


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    """Rows alone (no padding) and in a batch with longer and shorter prompts give the same result."""
    policy = _policy()
    obs = _observation(6, policy)
    whole = policy.act(obs, _rng(6), "sample")
    evaluated = _evaluate(policy, obs, whole)
    for row in range(6):
        alone = _rows(obs, [row])
        out = policy.act(alone, DecisionRng(np.array([row]), np.array([0])), "sample")
        assert torch.equal(out.replay["tokens"][0], whole.replay["tokens"][row])
        torch.testing.assert_close(out.log_prob[0], whole.log_prob[row], rtol=0, atol=1e-5)
        torch.testing.assert_close(out.value[0], whole.value[row], rtol=0, atol=1e-5)  # type: ignore[index]
        single = _evaluate(policy, alone, out)
        torch.testing.assert_close(single.log_prob[0], evaluated.log_prob[row], rtol=0, atol=1e-5)
        torch.testing.assert_close(single.entropy[0], evaluated.entropy[row], rtol=0, atol=1e-5)


def test_every_input_matters() -> None:
    """Each camera's image, the proprio and the instruction all change the log-probs of fixed tokens."""
    policy = _policy()
    obs = _observation(1, policy)
    out = policy.act(obs, _rng(1), "greedy")
    base = _evaluate(policy, obs, out).log_prob
    for camera in (0, 1):
        images = obs.images.clone()
        images[0, camera, -1, -1] ^= 255
        changed = Observation(images, obs.proprio, obs.instruction)
        assert (_evaluate(policy, changed, out).log_prob - base).abs().max() > 1e-5
    for changed in (
        Observation(obs.images, obs.proprio + 1, obs.instruction),
        Observation(obs.images, obs.proprio, ["open stove"]),
    ):
        assert (_evaluate(policy, changed, out).log_prob - base).abs().max() > 1e-4


def test_log_prob_of_a_term_depends_on_earlier_tokens_only() -> None:
    policy = _policy()
    obs = _observation(3, policy)
    out = policy.act(obs, _rng(3), "sample")
    base = _evaluate(policy, obs, out).log_prob
    tokens = out.replay["tokens"].clone()
    tokens[:, 5] = 255 - tokens[:, 5]
    out.replay["tokens"] = tokens
    changed = _evaluate(policy, obs, out).log_prob
    assert torch.equal(changed[:, :5], base[:, :5])
    assert ((changed[:, 6:] - base[:, 6:]).abs().amax(dim=1) > 1e-4).all()


def test_greedy_takes_the_mode_and_needs_no_rng() -> None:
    policy = _policy()
    obs = _observation(3, policy)
    first, second = policy.act(obs, _rng(3, 0), "greedy"), policy.act(obs, _rng(3, 9), "greedy")
    assert torch.equal(first.replay["tokens"], second.replay["tokens"])
    assert torch.equal(first.log_prob, second.log_prob)
    for position in range(policy.config.num_tokens):
        for other in (0, 100, 255):
            changed = first.replay["tokens"].clone()
            changed[:, position] = other
            out = ActOutput(first.actions, first.log_prob, None, {"tokens": changed})
            assert (_evaluate(policy, obs, out).log_prob[:, position] <= first.log_prob[:, position] + 1e-5).all()


def test_sampling_depends_on_seed_and_decision_only() -> None:
    policy = _policy()
    obs = _observation(2, policy)
    same = Observation(obs.images[[0, 0]], obs.proprio[[0, 0]], [obs.instruction[0]] * 2)
    tokens = policy.act(same, DecisionRng(np.array([5, 5]), np.array([1, 2])), "sample").replay["tokens"]
    assert not torch.equal(tokens[0], tokens[1])
    again = policy.act(same, DecisionRng(np.array([5, 5]), np.array([2, 1])), "sample").replay["tokens"]
    assert torch.equal(tokens, again.flip(0))


def test_sampled_frequencies_match_probabilities() -> None:
    logits = torch.randn(256, generator=torch.Generator().manual_seed(0)) * 3
    probability = torch.softmax(logits / 1.6, dim=-1)
    draws = (torch.arange(200_000) + 0.5)[:, None] / 200_000
    chosen = choose(logits.expand(200_000, -1), draws, 1.6)
    frequency = torch.bincount(chosen, minlength=256) / 200_000
    torch.testing.assert_close(frequency, probability, rtol=0, atol=2e-5)
    extremes = choose(logits.expand(2, -1), torch.tensor([[0.0], [1.0 - 2**-24]]), 1.6)
    assert extremes.tolist() == [0, 255]
    impossible = torch.full((1, 256), -torch.inf)
    impossible[0, 17] = 0.0
    assert choose(impossible.expand(2, -1), torch.tensor([[0.0], [1.0 - 2**-24]]), 1.0).tolist() == [17, 17]


def test_entropy_and_temperature_by_hand() -> None:
    policy = _policy()
    obs = _observation(2, policy)
    out = policy.act(obs, _rng(2), "sample")
    entropy_one = _evaluate(policy, obs, out).entropy
    policy.temperature = 50.0
    hot = _evaluate(policy, obs, out)
    assert (hot.entropy > entropy_one).all()
    assert (hot.entropy <= np.log(256) + 1e-4).all()
    torch.testing.assert_close(hot.log_prob, torch.full_like(hot.log_prob, -np.log(256)), rtol=0, atol=0.5)


def test_actions_are_unnormalised_and_encode_inverts() -> None:
    low = np.array([-0.5] * 6 + [-1.0], np.float32)
    statistics = Statistics(low, -low, np.array([True] * 6 + [False]), np.zeros(8, np.float32), np.ones(8, np.float32))
    policy = _policy(statistics=statistics)
    out = policy.act(_observation(4, policy), _rng(4), "sample")
    raw = decode_tokens(out.replay["tokens"].numpy()).reshape(4, 2, 7)
    np.testing.assert_allclose(out.actions[..., :6], raw[..., :6] * 0.5, atol=1e-6)
    np.testing.assert_array_equal(out.actions[..., 6], raw[..., 6])
    tokens = policy.encode(out.actions)
    assert ((tokens.int() - out.replay["tokens"].int()).abs() <= 1).all()


def test_openvla_gripper_becomes_the_simulators() -> None:
    policy = _policy(_config(gripper_zero_one=True))
    out = policy.act(_observation(8, policy), _rng(8), "sample")
    opens = decode_tokens(out.replay["tokens"].numpy()).reshape(8, 2, 7)[..., 6] > 0.5
    np.testing.assert_array_equal(out.actions[..., 6], np.where(opens, -1.0, 1.0))


def test_sft_loss_is_minus_the_mean_log_prob() -> None:
    policy = _policy()
    obs = _observation(5, policy)
    actions = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (5, 2, 7)).astype(np.float32))
    images, proprio = obs.images, obs.proprio
    loss = policy.sft_loss(images, proprio, obs.instruction, actions)
    evaluated = policy.evaluate(images, proprio, obs.instruction, {"tokens": policy.encode(actions)})
    torch.testing.assert_close(loss, -evaluated.log_prob.mean())


def test_blind_rows_do_not_see_their_earlier_actions() -> None:
    policy = _policy()
    obs = _observation(2, policy)
    images, proprio = obs.images, obs.proprio
    last = torch.zeros(2, 2, 7)
    other = last.clone()
    other[:, 0] = 0.9  # another first step of the chunk
    drop_action_history = torch.tensor([True, False])

    def second_step(actions: torch.Tensor) -> torch.Tensor:
        tokens = policy.encode(actions).long()
        return policy._teacher_forced(images, proprio, obs.instruction, tokens, drop_action_history)[:, 7:]

    seen, changed = second_step(last), second_step(other)
    torch.testing.assert_close(seen[0], changed[0])
    assert (seen[1] - changed[1]).abs().max() > 1e-3


def test_all_parameters_learn_and_unused_text_rows_stay() -> None:
    policy = _policy()
    obs = _observation(6, policy)
    out = policy.act(obs, _rng(6), "sample")
    evaluated = _evaluate(policy, obs, out)
    (evaluated.log_prob.sum() + evaluated.value.sum()).backward()  # type: ignore[union-attr]
    silent = [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []
    head = policy.model.language_model.lm_head.weight.grad
    assert head is not None
    assert not head[:64].any()


def test_overfits_sixteen_samples() -> None:
    torch.manual_seed(0)
    policy = OpenVLAPolicy.fresh(_config(), INSTRUCTIONS, seed=0)
    obs = _observation(16, policy)
    actions = torch.from_numpy(np.random.default_rng(2).uniform(-0.99, 0.99, (16, 2, 7)).astype(np.float32))
    images, proprio = obs.images, obs.proprio
    optimiser = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    first = float("nan")
    for step in range(150):
        loss = policy.sft_loss(images, proprio, obs.instruction, actions)
        first = loss.item() if step == 0 else first
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
    assert first > 5.0
    assert loss.item() < 0.1  # type: ignore[possibly-undefined]
    out = policy.act(obs, _rng(16), "greedy")
    assert (out.actions - actions).abs().mean() < 0.02


def test_near_bins_start_alike() -> None:
    features = ordinal_features(64)
    similarity = torch.nn.functional.cosine_similarity(features[128:129], features)
    assert similarity[127] > 0.95 > 0.7 > similarity[100]
    assert similarity[128:].argmax() == 0


def test_seed_fixes_the_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    one, two, other = (OpenVLAPolicy.fresh(_config(), INSTRUCTIONS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.model.projector.fc1.weight, other.model.projector.fc1.weight)


def test_bfloat16_policy_acts_and_evaluates() -> None:
    policy = _policy().to(torch.bfloat16)
    obs = _observation(3, policy)
    out = policy.act(obs, _rng(3), "sample")
    again = _evaluate(policy, obs, out)
    assert out.log_prob.dtype == torch.float32
    torch.testing.assert_close(again.log_prob.detach(), out.log_prob, rtol=0, atol=0.3)


def test_wrong_inputs_are_refused() -> None:
    policy = _policy()
    obs = _observation(2, policy)
    with pytest.raises(ValueError, match=r"uint8 images \[N,2,32,32,3\]"):
        policy.act(Observation(obs.images[:, :1], obs.proprio, obs.instruction), _rng(2), "greedy")
    with pytest.raises(ValueError, match=r"proprio \[N,8\]"):
        policy.act(Observation(obs.images, obs.proprio[:, :5], obs.instruction), _rng(2), "greedy")
    with pytest.raises(ValueError, match=r"\[N,2,7\]"):
        policy.encode(torch.zeros(2, 3, 7))
    with pytest.raises(UserError, match="statistics are for 6 action"):
        OpenVLAPolicy.fresh(_config(), INSTRUCTIONS, identity_statistics(6, 8))
