"""ACT behind the policy contract, its averaged chunks and its files; beside LeRobot's class in integrations/lerobot."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.policies.act import ACTConfig
from embodied_rl.policies.act.checkpoint import ACTOptions, load, load_options, prepare, save_policy
from embodied_rl.policies.act.config import ACTModelConfig, act_base, preset
from embodied_rl.policies.act.ensembling import MOST_EPISODES, TemporalEnsembler
from embodied_rl.policies.act.hf_format import described, save_published
from embodied_rl.policies.act.model import ACTModel, Attention
from embodied_rl.policies.act.policy import ensembling
from embodied_rl.policies.act.start import add_robot, fresh, refit
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.family import FreshRequest
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation
from tests.policies.act_models import observation, published_policy, tiny_policy

ROWS = 4
NAMES = ("top", "front")


def rng(rows: int = ROWS, decision: int = 0) -> DecisionRng:
    return DecisionRng(np.arange(rows) + 7, np.full(rows, decision))


def tensors(obs: Observation) -> tuple[Tensor, Tensor, list[str]]:
    return obs.images, obs.proprio, obs.instruction


def test_log_probs_are_those_of_a_normal_distribution_and_found_again() -> None:
    policy, obs = tiny_policy(), observation(ROWS)
    policy.with_value = True
    out = policy.act(obs, rng(), "sample")
    mean = policy.actions(policy.read(obs.images, obs.proprio))[:, :3]
    normal = torch.distributions.Normal(mean, policy.model.log_std[:3].exp())
    drawn = policy.statistics.action.normalise(out.actions)
    torch.testing.assert_close(out.log_prob, normal.log_prob(drawn).flatten(1), rtol=0, atol=1e-3)
    again = policy.evaluate(*tensors(obs), out.replay)
    torch.testing.assert_close(again.log_prob, out.log_prob, rtol=0, atol=1e-5)
    torch.testing.assert_close(again.entropy, normal.entropy().flatten(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(again.value, out.value, rtol=0, atol=1e-6)
    assert (out.actions.shape, policy.terms_per_step) == ((ROWS, 3, 3), 3)
    spread = (out.actions - policy.act(obs, rng(), "greedy").actions).abs().mean(dim=0)
    assert spread[2, 2] > spread[0, 0], "the last deviation is the largest"


def test_the_policy_and_its_deviation_learn_and_the_critic_teaches_nothing() -> None:
    policy, obs = tiny_policy(), observation(ROWS)
    policy.with_value = True
    out = policy.act(obs, rng(), "sample")
    again = policy.evaluate(*tensors(obs), out.replay)
    assert again.value is not None
    again.value.sum().backward(retain_graph=True)
    taught = {name for name, p in policy.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert taught
    assert all(name.startswith(policy.traits.critic or "?") for name in taught)
    policy.zero_grad(set_to_none=True)
    again.log_prob.sum().backward()
    idle = {name for name, p in policy.named_parameters() if p.grad is None}
    assert all(name.startswith(("model.vae_encoder", "model.value_head")) for name in idle)
    grad = policy.model.log_std.grad
    assert grad is not None
    assert (grad.abs().amax(dim=1) > 0).tolist() == [True] * 3 + [False] * 2, "steps that are executed"


def test_a_row_depends_on_its_observation_and_not_on_its_neighbours() -> None:
    policy, obs = tiny_policy(), observation(ROWS)
    whole = policy.act(obs, rng(), "sample")
    numbers = rng()
    alone = policy.act(obs.rows(slice(1, 3)), DecisionRng(numbers.seed[1:3], numbers.decision[1:3]), "sample")
    np.testing.assert_allclose(alone.actions, whole.actions[1:3], atol=1e-5)
    greedy = policy.act(obs, rng(), "greedy").actions
    outside = obs.images.clone()
    outside[:, :, :4] = 255 - outside[:, :, :4]  # above the frame of 24 x 32 in a square of 32
    others = [
        (Observation(255 - obs.images, *tensors(obs)[1:]), True),
        (Observation(obs.images, obs.proprio + 1, obs.instruction), True),
        (Observation(outside, *tensors(obs)[1:]), False),
        (Observation(obs.images, obs.proprio, ["another"] * ROWS), False),
    ]
    for changed, matters in others:
        assert ((policy.act(changed, rng(), "greedy").actions - greedy).abs().max() > 1e-5) == matters


def test_imitation_learns_what_was_demonstrated_and_draws_by_row() -> None:
    policy, obs = tiny_policy(kl_weight=0.1), observation(3)
    wanted = policy.statistics.action.unnormalise(torch.linspace(-1, 1, 45).view(3, 5, 3))
    policy.train(True)
    losses = [float(policy.sft_loss(*tensors(obs), wanted).detach()) for _ in range(2)]
    assert losses[0] != losses[1], "each call has noise of its own"
    rows = [
        float(policy.sft_loss(*tensors(obs.rows(slice(row, row + 1))), wanted[row : row + 1], rng=part).detach())
        for row in range(3)
        for part in [DecisionRng(np.array([row + 7]), np.array([0]))]
    ]
    both = float(policy.sft_loss(*tensors(obs), wanted, rng=rng(3)).detach())
    assert both == pytest.approx(np.mean(rows), rel=1e-4)
    adam = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for _ in range(60):
        adam.zero_grad()
        policy.sft_loss(*tensors(obs), wanted).backward()
        adam.step()
    policy.train(False)
    assert float(policy.sft_loss(*tensors(obs), wanted).detach()) < 0.5 * losses[0]
    assert tiny_policy(use_vae=False).traits.noisy_imitation is False


def test_attention_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = Attention(16, 4), nn.MultiheadAttention(16, 4, batch_first=True)
    nn.init.normal_(ours.in_proj_bias)
    theirs.load_state_dict(ours.state_dict())
    q, k, v = torch.randn(3, 2, 5, 16)
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected, _ = theirs(q, k, v, key_padding_mask=~valid)
    torch.testing.assert_close(ours(q, k, v, valid), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours(q[:1], k, v), theirs(q[:1].expand(2, -1, -1), k, v)[0], rtol=0, atol=1e-6)


def test_presets_and_sizes() -> None:
    def count(config: ACTModelConfig) -> int:
        with torch.device("meta"):
            model = ACTModel(config)
        return sum(p.numel() for name, p in model.named_parameters() if not name.startswith(("value_head", "log_std")))

    assert count(replace(act_base(), action_dim=6, proprio_dim=6)) == 51_597_190  # as LeRobot counts its own
    assert 0.5e6 < count(preset("nano")) < 2e6
    assert 2e6 < count(preset("tiny")) < 8e6
    with pytest.raises(UserError, match="unknown act preset 'nan'"):
        preset("nan")
    with pytest.raises(ValueError, match="temporal ensembling decides at every step"):
        replace(act_base(), temporal_ensemble_coeff=0.01)


# temporal ensembling


def averaged(chunks: Tensor, step: int, coefficient: float) -> Tensor:
    """By definition: of all chunks [T,H,A] that cover a step, the oldest first."""
    horizon = chunks.shape[1]
    covering = [chunks[begun, step - begun] for begun in range(max(0, step - horizon + 1), step + 1)]
    weights = torch.exp(-coefficient * torch.arange(len(covering)))
    return (torch.stack(covering) * weights[:, None]).sum(0) / weights.sum()


@pytest.mark.parametrize("coefficient", [0.01, 0.0, -0.5])
def test_every_step_is_the_average_of_the_chunks_that_cover_it(coefficient: float) -> None:
    draw = torch.Generator().manual_seed(0)
    chunks = torch.randn(2, 11, 4, 3, generator=draw)  # of two episodes
    ensembler, found = TemporalEnsembler(coefficient), torch.zeros(2, 11, 3)
    turns = [(0, t) for t in range(3)] + [pair for t in range(3, 11) for pair in ((1, t - 3), (0, t))]
    turns += [(1, t) for t in range(8, 11)]
    for episode, step in turns:  # whichever episode comes when, and in whatever batch
        numbers = DecisionRng(np.array([episode]), np.array([step]))
        found[episode, step] = ensembler.update(numbers, chunks[episode, step][None])[0]
    for episode in range(2):
        expected = torch.stack([averaged(chunks[episode], step, coefficient) for step in range(11)])
        torch.testing.assert_close(found[episode], expected, rtol=0, atol=1e-5)


def test_an_episode_that_begins_again_knows_nothing_of_before() -> None:
    ensembler, chunk = TemporalEnsembler(0.01), torch.ones(1, 4, 2)

    def update(decision: int, value: Tensor) -> Tensor:
        return ensembler.update(DecisionRng(np.array([5]), np.array([decision])), value)

    update(0, chunk * math.nan)
    assert update(0, chunk).tolist() == [[1, 1]]
    with pytest.raises(RuntimeError, match="2 of seed 5 came after 0"):
        update(2, chunk)
    with pytest.raises(RuntimeError, match="came after none"):
        update(1, chunk)  # what came out of order is forgotten
    many = np.arange(MOST_EPISODES + 1)
    ensembler.update(DecisionRng(many, np.zeros_like(many)), torch.zeros(len(many), 1, 1))
    assert len(ensembler._running) == MOST_EPISODES


def test_greedy_acting_averages_and_sampling_does_not() -> None:
    policy = tiny_policy()
    policy.configure(ensembling(policy.config, 0.01))
    assert policy.chunk_len == 1
    first, second = observation(ROWS), observation(ROWS, replace(policy.config, num_cameras=2))
    second.images.copy_(255 - second.images)
    policy.act(first, rng(), "greedy")
    both = policy.act(second, rng(decision=1), "greedy").actions
    chunks = torch.stack([policy.actions(policy.read(obs.images, obs.proprio)) for obs in (first, second)], dim=1)
    expected = torch.stack([averaged(row, 1, 0.01) for row in chunks.detach()])
    torch.testing.assert_close(both[:, 0], policy.statistics.action.unnormalise(expected), rtol=0, atol=1e-5)
    out = policy.act(second, rng(decision=9), "sample")
    torch.testing.assert_close(policy.evaluate(*tensors(second), out.replay).log_prob, out.log_prob, rtol=0, atol=1e-5)
    with pytest.raises(UserError, match=r"has no log-prob: say by --policy\.chunk-len"):
        prepare(policy, ACTConfig(), Path("x"))


# files


def same(one: Path, two: Path) -> None:
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in two.iterdir())
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_save_load_save_is_bit_identical(tmp_path: Path) -> None:
    policy, obs = tiny_policy(), observation(2)
    save_policy(policy, tmp_path / "a", {"seed": 1})
    loaded = load(tmp_path / "a", ACTOptions())
    save_policy(loaded, tmp_path / "b", read_provenance(tmp_path / "a"))
    same(tmp_path / "a", tmp_path / "b")
    assert loaded.config == policy.config
    torch.testing.assert_close(
        policy.act(obs, rng(2), "sample").actions, loaded.act(obs, rng(2), "sample").actions, rtol=0, atol=0
    )
    with pytest.raises(UserError, match="leave the option statistics out"):
        load(tmp_path / "a", ACTOptions(statistics="x"))
    with pytest.raises(UserError, match="no entry 'other'"):
        load(tmp_path / "a", ACTOptions(unnorm_key="other"))
    with pytest.raises(UserError, match=r"must lie in 1\.\.5"):
        load(tmp_path / "a", ACTOptions(chunk_len=6))
    begun = load(tmp_path / "a", ACTOptions(initial_std=0.25, temporal_ensemble_coeff=0.01))
    assert begun.model.log_std.detach().exp().unique().tolist() == pytest.approx([0.25])
    assert (begun.chunk_len, begun.config.temporal_ensemble_coeff) == (1, 0.01)
    with pytest.raises(UserError, match="leave --chunk-len or --temporal-ensemble-coeff out"):
        load_options(ACTOptions(chunk_len=2, temporal_ensemble_coeff=0.01))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in LeRobot's layout."""
    folder = tmp_path_factory.mktemp("lerobot") / "policy"
    save_published(published_policy(), folder, NAMES, {"command": "test"})
    return folder


def copied(theirs: Path, into: Path, **changes: Any) -> Path:
    """The same with another config.json."""
    into.mkdir()
    for path in theirs.iterdir():
        (into / path.name).symlink_to(path)
    data = json.loads((theirs / "config.json").read_text()) | changes
    (into / "config.json").unlink()
    (into / "config.json").write_text(json.dumps(data))
    return into


def test_lerobots_layout_is_read_back(theirs: Path, tmp_path: Path) -> None:
    policy, again = published_policy(), load(theirs, ACTOptions())
    assert again.config == replace(policy.config, value_hidden=again.config.value_hidden)
    assert list(json.loads((theirs / "config.json").read_text())["input_features"])[:2] == [
        f"observation.images.{name}" for name in NAMES
    ]
    obs = observation(2, policy.config)
    torch.testing.assert_close(
        policy.act(obs, rng(2), "greedy").actions, again.act(obs, rng(2), "greedy").actions, rtol=0, atol=1e-6
    )
    save_published(again, tmp_path / "again", NAMES, {"command": "test"})
    same(theirs, tmp_path / "again")
    for name, message in {"cameras": "2 cameras, 1 names", "small": "has a ResNet-18 or -34"}.items():
        wrong = policy if name == "cameras" else tiny_policy()
        with pytest.raises(UserError, match=message):
            save_published(wrong, tmp_path / name, NAMES[:1], {})


def test_statistics_among_the_weights_and_other_normalisations(theirs: Path, tmp_path: Path) -> None:
    """Checkpoints of before the pipelines; the ends of the data in place of mean and deviation."""
    obs = observation(2, published_policy().config)
    expected = load(theirs, ACTOptions()).act(obs, rng(2), "greedy").actions
    stats = load_file(theirs / "policy_preprocessor_step_3_normalizer_processor.safetensors")
    before, buffers, ends = tmp_path / "before", {}, {}
    for name, tensor in stats.items():
        vector, _, statistic = name.rpartition(".")
        part = "unnormalize_outputs" if vector == "action" else "normalize_inputs"
        buffers[f"{part}.buffer_{vector.replace('.', '_')}.{statistic}"] = tensor
        if statistic == "mean":
            std = stats[f"{vector}.std"]
            ends |= {f"{vector}.min": tensor - std, f"{vector}.max": tensor + std}
    copied(theirs, before)
    for path in [path for path in before.iterdir() if path.name.startswith("policy_") or path.suffix == ".safetensors"]:
        path.unlink()
    save_file(load_file(theirs / "model.safetensors") | buffers, before / "model.safetensors")
    torch.testing.assert_close(load(before, ACTOptions()).act(obs, rng(2), "greedy").actions, expected)
    mapping = dict.fromkeys(("VISUAL", "STATE", "ACTION"), "MIN_MAX")
    limits = copied(theirs, tmp_path / "limits", normalization_mapping=mapping)
    with pytest.raises(UserError, match=r"normalises ACTION by MEAN_STD, and config\.json by MIN_MAX"):
        load(limits, ACTOptions())
    for path in limits.glob("policy_*"):
        path.unlink()
    save_file(ends, limits / "policy_preprocessor_step_3_normalizer_processor.safetensors")
    found = load(limits, ACTOptions()).act(obs, rng(2), "greedy").actions
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    save_file(stats, limits / "policy_preprocessor_step_3_normalizer_processor.safetensors")
    with pytest.raises(UserError, match=r"MIN_MAX of observation\.images\.top lacks q01 and q99"):
        load(limits, ACTOptions())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_backbone": "resnet50"}, "one of resnet18, resnet34"),
        ({"n_obs_steps": 2}, "n_obs_steps is 2, and only 1"),
        ({"output_features": {}}, "lacks 'action'"),
        ({"feedforward_activation": "glu"}, "activation must be relu or gelu"),
        ({"n_action_steps": 101}, "chunk_len must lie in"),
        ({"input_features": {"observation.state": {"type": "STATE", "shape": [4]}}}, "cameras must be there"),
        (
            {
                "input_features": {
                    "observation.images.top": {"type": "VISUAL", "shape": [3, 8, 8]},
                    "observation.environment_state": {"type": "ENV", "shape": [4]},
                }
            },
            r"reads observation\.environment_state",
        ),
    ],
)
def test_configurations_of_another_network_are_refused(changes: dict[str, Any], message: str, theirs: Path) -> None:
    with pytest.raises(UserError, match=message):
        described(json.loads((theirs / "config.json").read_text()) | changes)


# where training begins


def request(actions: int, states: int, key: str = "mine", **changes: Any) -> FreshRequest:
    draw = np.random.default_rng(1)
    return FreshRequest(
        preset="nano",
        chunk_len=4,
        seed=0,
        instructions=["lift it"],
        state=draw.normal(size=(50, states)).astype(np.float32),
        action=draw.normal(3, 2, (50, actions)).astype(np.float32),
        unit_actions=changes.pop("unit_actions", False),
        unnorm_key=key,
        own_units=True,
        **changes,
    )


def test_another_robot_keeps_what_fits() -> None:
    policy = fresh(request(7, 8))
    policy.model.log_std.data.fill_(0.5)
    other = refit(policy, request(14, 14, num_cameras=1))
    assert {name.rpartition(".")[0] for name in other.resized} == {
        "action_head",
        "encoder_robot_state_input_proj",
        "vae_encoder_action_input_proj",
        "vae_encoder_robot_state_input_proj",
    }
    kept, new = policy.model.state_dict(), other.model.state_dict()
    assert torch.equal(kept["backbone.conv1.weight"], new["backbone.conv1.weight"])
    assert torch.equal(kept["action_head.weight"], new["action_head.weight"][:7])
    assert new["log_std"].exp().unique().tolist() == pytest.approx([0.1])
    assert (other.config.action_dim, other.chunk_len) == (14, 4)
    add_robot(policy, request(7, 8, "second"))
    policy.select("second")
    assert policy.statistics_keys == ["mine", "second"]
    with pytest.raises(UserError, match="statistics are for 6 action"):
        add_robot(policy, request(6, 8, "third"))


def test_actions_within_bounds_are_normalised_by_these() -> None:
    unit = fresh(request(7, 8, unit_actions=True))
    assert [np.unique(end).tolist() for end in unit.action_range] == [[-1], [1]]
    bounds = np.array([-3.0, 0.0], np.float32), np.array([1.0, 2.0], np.float32)
    bounded = fresh(request(2, 0, bounds=bounds))
    action = bounded.statistics.action
    torch.testing.assert_close(action.normalise(torch.tensor([[-3.0, 2.0]])), torch.tensor([[-1.0, 1.0]]))
    assert not bounded.uses_proprio
    obs = observation(2, bounded.config)
    assert bounded.act(obs, rng(2), "greedy").actions.shape == (2, 4, 2)
