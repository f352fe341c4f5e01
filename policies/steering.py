"""Best of N: a policy draws N chunks of each observation and takes the one that a chunk critic values most.

The critic reads what the policy itself makes of an observation, and never looks at pictures. Its value of a chunk is
the discounted chance that the episode then ends in success (Q-chunking: Li et al. 2025, arXiv 2507.07969).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import check_keys, read_json, read_weights
from embodied_rl.policy import ActMode, Policy, void_rows
from embodied_rl.rng import MAX_CANDIDATES, DecisionRng
from embodied_rl.types import ActOutput, Observation
from embodied_rl.utils.dataclass_io import read_dataclass
from embodied_rl.utils.output import File

STEERING = "steering"
"""Key of a checkpoint's config.json that says that its policy is steered, and how."""
WEIGHTS = "steering.safetensors"
SUMMARY, CANDIDATES, CHOSEN = "summary", "candidates", "chosen"
"""What a steered decision adds to `ActOutput.replay`: float32 [N,W], float32 [N,M,K,A], int64 [N]."""
_LEAST_STD = 1e-3
_FAR = 5.0
"""Features are clipped this many standard deviations from their mean."""


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """Sizes of a chunk critic.

    features: numbers of a summary and the proprio together. chunk_len, action_dim: of a chunk. width: of the hidden
    layers. heads: networks of the ensemble.
    """

    features: int
    chunk_len: int
    action_dim: int
    width: int = 256
    heads: int = 2


class _Head(nn.Module):
    """Q of chunks [N,M,D] given features [N,F]: [N,M]."""

    def __init__(self, features: int, chunk: int, width: int) -> None:
        super().__init__()
        self.from_features = nn.Linear(features, width)
        self.from_chunk = nn.Linear(chunk, width, bias=False)
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, features: Tensor, chunks: Tensor) -> Tensor:
        return self.inner(self.from_features(features)[:, None] + self.from_chunk(chunks))[..., 0]


class ChunkCritic(nn.Module):
    """An ensemble of action-value functions of chunks, with layer norm; float32.

    Its weights follow from torch's random numbers. Features and actions are standardised by what `standardise` saw.

    Example:
        >>> critic = ChunkCritic(CriticConfig(features=72, chunk_len=4, action_dim=7))
        >>> critic.value(torch.zeros(2, 72), torch.zeros(2, 8, 4, 7)).shape
        torch.Size([2, 8])
    """

    def __init__(self, config: CriticConfig) -> None:
        super().__init__()
        self.config = config
        chunk = config.chunk_len * config.action_dim
        for name, size in (("feature", config.features), ("action", config.action_dim)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        self.heads = nn.ModuleList(_Head(config.features, chunk, config.width) for _ in range(config.heads))

    def standardise(self, features: Tensor, chunks: Tensor) -> None:
        """Take mean and standard deviation from features [R,F] and chunks [R,K,A]."""
        for name, values in (("feature", features), ("action", chunks.flatten(0, 1))):
            std = values.std(dim=0, correction=0)
            self.get_buffer(f"{name}_mean").copy_(values.mean(dim=0))
            self.get_buffer(f"{name}_std").copy_(torch.where(std < _LEAST_STD, torch.ones(()), std))

    def forward(self, features: Tensor, chunks: Tensor) -> Tensor:
        """[heads, N, M]: each head's value of chunks [N,M,K,A] given features [N,F]."""
        known = (features - self.get_buffer("feature_mean")) / self.get_buffer("feature_std")
        actions = (chunks - self.get_buffer("action_mean")) / self.get_buffer("action_std")
        known, actions = known.clamp(-_FAR, _FAR), actions.flatten(2)
        return torch.stack([head(known, actions) for head in self.heads])

    def value(self, features: Tensor, chunks: Tensor) -> Tensor:
        """[N,M]: the lowest of the heads' values; arguments as of `forward`."""
        return self(features, chunks).amin(dim=0)


def features_of(summary: Tensor, proprio: Tensor) -> Tensor:
    """float32 [N,F], what a critic reads: a policy's summary [N,W] and the raw proprio [N,P]."""
    return torch.cat([summary.float(), proprio.to(summary.device, torch.float32)], dim=1)


class Steering(nn.Module):
    """How a policy is steered: the `steering` of a policy, which then acts by it.

    It is a part of the policy: it moves to its device, is saved in its checkpoint, and no optimiser of it trains it.

    Args:
        critic: values chunks.
        candidates: chunks that it chooses from, N.

    Example:
        >>> policy.steering = Steering(critic, 8)
        >>> policy.act(obs, rng, "greedy").actions  # the best of 8
    """

    def __init__(self, critic: ChunkCritic, candidates: int) -> None:
        super().__init__()
        self.critic = critic.requires_grad_(False)
        self.candidates = candidates

    def act(self, policy: Policy, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """As `Policy.act`; see `choose`."""
        return choose(policy, obs, rng, mode, self.candidates, self.critic)


@torch.no_grad()
def choose(
    policy: Policy, obs: Observation, rng: DecisionRng, mode: ActMode, count: int, critic: ChunkCritic | None
) -> ActOutput:
    """Draw `count` chunks of each observation and decide for the one of the highest value.

    Args:
        policy: offers `PolicyTraits.propose`.
        obs, rng, mode: as of `Policy.act`.
        count: candidates.
        critic: None: the first candidate, the policy's own decision.

    Returns:
        The chosen chunks, with the densities that the policy gives them; `replay` also has all candidates.
    """
    propose = policy.traits.propose
    assert propose is not None, "`need_proposals` sees to it"
    found = propose(obs, rng, mode, count)
    act, rows = found.act, len(obs.instruction)
    chunks = act.actions.unflatten(0, (rows, count))
    best = torch.zeros(rows, dtype=torch.int64, device=chunks.device)
    if critic is not None:
        features = features_of(found.summary, obs.proprio)
        best = critic.value(features, chunks.to(features.device)).argmax(dim=1).to(chunks.device)
    at = torch.arange(rows, device=chunks.device) * count + best
    replay = {name: values[at.to(values.device)] for name, values in act.replay.items()}
    replay |= {SUMMARY: found.summary.float(), CANDIDATES: chunks, CHOSEN: best}
    actions = void_rows(act.actions[at], chunks, found.summary)
    return ActOutput(actions, act.log_prob[at.to(act.log_prob.device)], None, replay)


def need_proposals(policy: Policy) -> None:
    """UserError for a policy that draws no chunks to choose from."""
    if policy.traits.propose is None or policy.traits.summarise is None:
        raise UserError(
            f"--algorithm steer chooses among chunks that a policy draws, and {type(policy).__name__} offers none: "
            "train openvla, openvla_oft, pi0 or smolvla."
        )


def refuse_steered(policy: Any, what: str, advice: str) -> None:
    """UserError for a policy that is steered. what: takes that away, such as '--compile', with a verb."""
    if getattr(policy, STEERING, None) is not None:
        raise UserError(f"{what}, and the policy is steered by a critic (best of N): {advice}.")


def steering_files(steering: Steering | None) -> tuple[dict[str, Any], Mapping[str, File]]:
    """What a checkpoint of a policy adds to config.json, and its further files; nothing of one that is not steered."""
    if steering is None:
        return {}, {}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in steering.critic.state_dict().items()}
    about = {"candidates": steering.candidates, "critic": asdict(steering.critic.config)}
    return {STEERING: about}, {WEIGHTS: partial(save_file, state)}


def is_steered(folder: Path) -> bool:
    """Whether the checkpoint in a folder is of a steered policy."""
    path = folder / "config.json"
    return path.is_file() and STEERING in read_json(path)


def load_steering(folder: Path, policy: Policy) -> None:
    """Steer `policy`, which was loaded from `folder` and is steered, as its checkpoint says.

    Raises:
        UserError: a file is missing or damaged, or the critic is of chunks of another size.
    """
    about = read_json(folder / "config.json")[STEERING]
    count = about.get("candidates") if isinstance(about, dict) else None
    if not isinstance(count, int) or not 1 <= count <= MAX_CANDIDATES:
        raise UserError(f"{folder / 'config.json'}: '{STEERING}' is damaged: restore it from the checkpoint's source")
    config = read_dataclass(CriticConfig, about.get("critic"), where=f"{STEERING}.critic", source="config.json")
    wanted, given = (config.chunk_len, config.action_dim), (policy.chunk_len, policy.action_dim)
    if wanted != given:
        raise UserError(
            f"{folder}: the policy is steered by a critic of chunks of {wanted[0]} steps of {wanted[1]} numbers, and "
            f"would act by {given[0]} of {given[1]}: leave out what changes that."
        )
    critic, state = ChunkCritic(config), read_weights(folder / WEIGHTS)
    check_keys(critic.state_dict(), state, folder / WEIGHTS)
    critic.load_state_dict(state)
    policy.steering = Steering(critic, count)  # type: ignore[attr-defined]
