"""OpenVLA-OFT: parallel decoding against a slow reference, both heads, and the policy contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.policies.openvla_oft.config import VARIANTS, preset, variant
from embodied_rl.policies.openvla_oft.heads import LaplaceHead
from embodied_rl.policies.openvla_oft.model import OFTModel
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.policies.preprocessing.crop import center_crop
from embodied_rl.policies.preprocessing.resize import center_crop_tf
from embodied_rl.types import EvalOutput, Observation
from tests.policies import oft_reference as reference
from tests.policies.oft_policies import INSTRUCTIONS, PUBLISHED, config, observation, policy, rng

# official, SimpleVLA-RL and RLinf, and what they can be combined with
LAYOUTS: list[dict[str, Any]] = [
    PUBLISHED | {"head": "l1", "stop_token": 2},
    PUBLISHED | {"stop_token": 2, "num_cameras": 1, "use_proprio": False},
    PUBLISHED | {"num_cameras": 1, "use_proprio": False},
    PUBLISHED | {"film": True, "stop_token": 2},
    PUBLISHED | {"film": True, "use_proprio": False},
]


def _hidden(made: OpenVLAOFTPolicy, obs: Observation) -> torch.Tensor:
    with torch.no_grad():
        return made._hidden(obs.images, obs.proprio, obs.instruction)


def _evaluate(made: OpenVLAOFTPolicy, obs: Observation, replay: dict[str, torch.Tensor]) -> EvalOutput:
    return made.evaluate(obs.images, obs.proprio, obs.instruction, replay)


@pytest.mark.parametrize("changes", LAYOUTS)
def test_batched_decoding_equals_the_slow_reference(changes: dict[str, Any]) -> None:
    made = policy(**changes)
    obs = observation(4, made)
    with torch.no_grad():
        torch.testing.assert_close(_hidden(made, obs), reference.hidden_states(made, obs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrong", ["causal", "shifted", "no stop"])
def test_a_wrong_mask_shift_or_stop_token_is_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy(**PUBLISHED, stop_token=2)
    obs = observation(2, made)
    right = _hidden(made, obs)
    if wrong == "causal":
        monkeypatch.setattr(reference, "both_ways", lambda n: torch.full((1, 1, n, n), -torch.inf).triu(1))
    sequence = reference.sequence
    if wrong == "shifted":
        monkeypatch.setattr(reference, "sequence", lambda *of: (sequence(*of)[0], sequence(*of)[1] + 1))
    if wrong == "no stop":
        monkeypatch.setattr(reference, "sequence", lambda *of: (sequence(*of)[0][:-1], sequence(*of)[1]))
    with torch.no_grad():
        assert (reference.hidden_states(made, obs) - right).abs().max() > 1e-3


@pytest.mark.parametrize("padding", ["end", "left"])
def test_where_padding_stands_changes_nothing(padding: str) -> None:
    """SimpleVLA-RL pads at the end, RLinf left of the prompt with positions that skip it: the same hidden states."""
    made = policy(**PUBLISHED)
    obs = observation(3, made)
    llama, text = reference.llama(made.model), made.config.text_offset
    rows = [reference.sequence(made, obs, row) for row in range(3)]
    width = max(len(x) for x, _ in rows)
    with torch.no_grad():
        for row, (x, last) in enumerate(rows):
            gap = torch.zeros(width - len(x), x.shape[1])
            at = len(x) if padding == "end" else text
            valid = torch.ones(width).index_fill(0, torch.arange(at, at + len(gap)), 0.0)
            mask = torch.zeros(1, 1, width, width).masked_fill(valid == 0, -torch.inf)
            out = llama.model(
                inputs_embeds=torch.cat([x[:at], gap, x[at:]])[None],
                attention_mask=mask,
                position_ids=(valid.cumsum(0) - 1).clamp(min=0).long()[None],
            ).last_hidden_state[0]
            first = last + (len(gap) if padding == "left" else 0)
            expected = out[first : first + made.config.num_tokens]
            torch.testing.assert_close(_hidden(made, obs)[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, *LAYOUTS])
@pytest.mark.parametrize("temperature", [1.0, 1.6])
def test_evaluate_equals_act(changes: dict[str, Any], temperature: float) -> None:
    made = policy(**changes)
    made.temperature = temperature
    obs = observation(5, made)
    out = made.act(obs, rng(5), "sample")
    again = _evaluate(made, obs, out.replay)
    torch.testing.assert_close(again.log_prob.detach(), out.log_prob, rtol=0, atol=1e-5)
    torch.testing.assert_close(again.value.detach(), out.value, rtol=0, atol=1e-5)  # type: ignore[union-attr]
    assert out.log_prob.shape == again.entropy.shape == (5, 14)
    assert (out.actions.shape, out.actions.dtype) == ((5, 2, 7), torch.float32)
    assert (out.actions.abs() <= 1).all()


@pytest.mark.parametrize("head", ["tokens", "l1"])
def test_a_row_does_not_depend_on_the_other_rows(head: str) -> None:
    made = policy(head=head, stop_token=2, film=True)
    obs = observation(4, made)
    whole = made.act(obs, rng(4), "sample")
    for row in range(4):
        alone = Observation(obs.images[[row]], obs.proprio[[row]], [obs.instruction[row]])
        replay = {name: tensor[[row]] for name, tensor in whole.replay.items()}
        # a difference of the L1 head's action is divided by the scale 0.05
        torch.testing.assert_close(
            _evaluate(made, alone, replay).log_prob[0],
            whole.log_prob[row],
            rtol=0,
            atol=1e-5 if head == "tokens" else 2e-4,
        )


def test_every_input_matters() -> None:
    made = policy(film=True, stop_token=2)
    obs = observation(1, made)
    out = made.act(obs, rng(1), "greedy")
    base = _evaluate(made, obs, out.replay).log_prob
    changes = [
        Observation(obs.images, obs.proprio + 1, obs.instruction),
        Observation(obs.images, obs.proprio, ["open the stove"]),
    ]
    for camera in (0, 1):
        images = obs.images.clone()
        images[0, camera, -1, -1] ^= 255
        changes.append(Observation(images, obs.proprio, obs.instruction))
    for changed in changes:
        assert (_evaluate(made, changed, out.replay).log_prob - base).abs().max() > 1e-5


def test_tokens_of_a_decision_do_not_see_each_other() -> None:
    made = policy()
    obs = observation(2, made)
    out = made.act(obs, rng(2), "sample")
    tokens = out.replay["tokens"].clone()
    tokens[:, 5] = 255 - tokens[:, 5]
    changed = _evaluate(made, obs, {"tokens": tokens}).log_prob
    keep = torch.arange(14) != 5
    torch.testing.assert_close(changed.detach()[:, keep], out.log_prob[:, keep], rtol=0, atol=1e-5)


def test_l1_head_equals_its_description() -> None:
    made = policy(**LAYOUTS[0])
    obs = observation(3, made)
    hidden = _hidden(made, obs)
    with torch.no_grad():
        expected = reference.l1_head(made, hidden)
        torch.testing.assert_close(made.model.action_head(hidden), expected, rtol=1e-5, atol=1e-5)
    greedy = made.act(obs, rng(3), "greedy")
    torch.testing.assert_close(greedy.replay["actions"], expected, rtol=1e-5, atol=1e-5)


def test_laplace_log_probs_against_torch_and_integration() -> None:
    made = policy(head="l1")
    obs = observation(3, made)
    hidden, made.temperature = _hidden(made, obs), 1.6
    head = LaplaceHead(made.model)
    with torch.no_grad():
        mean = made.model.action_head(hidden)
        drawn, log_prob = head.draw(hidden, torch.rand(3, 14), 1.6)
        expected = torch.distributions.Laplace(mean, 0.05 * 1.6)
        torch.testing.assert_close(log_prob, expected.log_prob(drawn), rtol=1e-5, atol=1e-5)
        scored, entropy = head.score(hidden, drawn, 1.6)
        torch.testing.assert_close(scored, log_prob)
        torch.testing.assert_close(entropy, expected.entropy(), rtol=1e-5, atol=1e-5)
        grid = torch.linspace(-3, 3, 60_001)
        density = [head.score(hidden[:1], mean[:1] + shift, 1.6)[0].exp().double()[0, 0] for shift in grid[::100]]
    assert float(torch.trapezoid(torch.stack(density), grid[::100].double())) == pytest.approx(1.0, abs=5e-3)


def test_laplace_draws_have_the_distributions_quantiles() -> None:
    made = policy(head="l1")
    hidden = _hidden(made, observation(1, made)).expand(999, -1, -1)
    uniform = (torch.arange(1, 1000) / 1000)[:, None].expand(-1, 14)
    with torch.no_grad():
        drawn, _ = LaplaceHead(made.model).draw(hidden, uniform, 1.0)
        mean = made.model.action_head(hidden)
    quantile = torch.distributions.Laplace(mean, 0.05).icdf(uniform)
    torch.testing.assert_close(drawn, quantile, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        ends, log_prob = LaplaceHead(made.model).draw(hidden[:1], torch.zeros(1, 14), 1.0)
    assert torch.isfinite(ends).all()
    assert torch.isfinite(log_prob).all()


@pytest.mark.parametrize("head", ["tokens", "l1"])
def test_imitation_learns_to_repeat_its_samples(head: str) -> None:
    made = OpenVLAOFTPolicy.fresh(config(head=head), INSTRUCTIONS, seed=0)
    obs = observation(8, made)
    actions = torch.from_numpy(np.random.default_rng(2).uniform(-0.95, 0.95, (8, 2, 7)).astype(np.float32))
    images, proprio = obs.images, obs.proprio
    adam = torch.optim.AdamW(made.parameters(), lr=3e-3)
    for _ in range(150):
        loss = made.sft_loss(images, proprio, obs.instruction, actions)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        adam.step()
    out = made.act(obs, rng(8), "greedy")
    assert (out.actions - actions).abs().mean() < 0.05


def test_sft_losses_are_the_heads_own() -> None:
    actions = torch.from_numpy(np.random.default_rng(1).uniform(-0.4, 0.4, (3, 2, 7)).astype(np.float32))
    for head in ("tokens", "l1"):
        made = policy(head=head)
        obs = observation(3, made)
        images, proprio = obs.images, obs.proprio
        loss = made.sft_loss(images, proprio, obs.instruction, actions)
        if head == "tokens":
            expected = -_evaluate(made, obs, {"tokens": made.encode(actions)}).log_prob.mean()
        else:
            target = torch.from_numpy(made.from_env(actions)).flatten(1)
            expected = (made.model.action_head(_hidden(made, obs)) - target).abs().mean()
        torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("changes", [{"head": "l1", "film": True, "stop_token": 2}, {}])
def test_all_parameters_learn(changes: dict[str, Any]) -> None:
    made = policy(**changes)
    obs = observation(6, made)
    out = _evaluate(made, obs, made.act(obs, rng(6), "sample").replay)
    (out.log_prob.sum() + out.value.sum()).backward()  # type: ignore[union-attr]
    silent = {name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()}
    # the L1 head does not read the language model's head
    assert silent == ({"model.language_model.lm_head.weight"} if changes else set())


@pytest.mark.parametrize("area", [0.9, 0.37, 1.0])
def test_crop_on_the_policys_device_equals_tensorflows(area: float) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    got = center_crop(torch.from_numpy(images), area).numpy()
    np.testing.assert_array_equal(got, np.stack([center_crop_tf(image, area) for image in images]))


def test_crop_is_part_of_the_policys_input() -> None:
    made = policy()
    obs = observation(2, made)
    cut = center_crop(obs.images.flatten(0, 1), 0.9).view_as(obs.images)
    cropping = policy(center_crop=0.9)
    expected = _hidden(made, Observation(cut, obs.proprio, obs.instruction))
    torch.testing.assert_close(_hidden(cropping, obs), expected)


def test_7b_variants_have_the_published_parameters() -> None:
    base, dim = 7_541_237_184, 4096
    wide = 7 * dim
    l1 = 2 * wide + wide * dim + dim + 2 * (2 * dim + dim * dim + dim) + 2 * dim + dim * 7 + 7
    proprio = 8 * dim + dim + dim * dim + dim
    film = 24 * 2 * (dim * 1024 + 1024) + 27 * 2 * (dim * 1152 + 1152)
    for chosen, extra in (
        (VARIANTS["official"], l1 + proprio),
        (VARIANTS["simplevla"], 0),
        (VARIANTS["rlinf"], 0),
        (replace(VARIANTS["official"], film=True), l1 + proprio + film),
    ):
        with torch.device("meta"):
            model = OFTModel(preset("7b", chosen))
        count = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("value_head"))
        assert count == base + extra
    names = dict(model.named_parameters())
    for name, shape in {
        "action_head.model.layer_norm1.weight": (wide,),
        "action_head.model.fc1.weight": (dim, wide),
        "action_head.model.mlp_resnet_blocks.1.ffn.0.weight": (dim,),
        "action_head.model.mlp_resnet_blocks.1.ffn.1.weight": (dim, dim),
        "action_head.model.layer_norm2.bias": (dim,),
        "action_head.model.fc2.weight": (7, dim),
        "proprio_projector.fc1.weight": (dim, 8),
        "proprio_projector.fc2.bias": (dim,),
        "vision_backbone.featurizer.blocks.23.scale.weight": (1024, dim),
        "vision_backbone.fused_featurizer.blocks.0.shift.bias": (1152,),
    }.items():
        assert tuple(names[name].shape) == shape, name


def test_wrong_configs_are_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'simplevla'"):
        variant("simple-vla")
    with pytest.raises(UserError, match="unknown OpenVLA-OFT preset"):
        preset("8b")
    with pytest.raises(ValueError, match="neither has"):
        replace(config(film=True), featurizer=config().featurizer)
    made = policy(film=True)
    with pytest.raises(ValueError, match="goes with FiLM"):
        made.model.embed_prefix(torch.zeros(1, 2, 32, 32, 3, dtype=torch.uint8), torch.zeros(1, 8), 1)
