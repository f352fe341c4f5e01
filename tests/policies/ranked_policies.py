"""What further ranks of the learner run in `test_ranked.py`; imported in their processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.distributed.fsdp import FSDPCollectives
from embodied_rl.learner.distributed.join import joined
from embodied_rl.learner.learner import Learner
from embodied_rl.policies.act.policy import ACTPolicy
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.nn import lora
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy
from embodied_rl.policies.wrapped.policy import WrappedPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import EpisodeResult, EpisodeSpec, Observation, RolloutBatch
from tests.embodied_rl.ranks import place
from tests.policies import act_models, oft_policies, pi0_models, smolvla_models, wrapped_networks
from tests.policies.wrapped_networks import wrapped

ROWS = 7


def _openvla() -> Any:
    config = nano(image_size=32, vision_dim=32, dim=64, mlp_dim=96, text_vocab=64, chunk_len=2)
    return OpenVLAPolicy.fresh(config, oft_policies.INSTRUCTIONS, seed=2)


def _trained_as(policy: Any, rank: int = 0, precision: str = "float32", *, recompute: bool = False) -> Any:
    if rank:
        lora.add_lora(policy.model, rank)
    lora.set_training(policy, precision, recompute=recompute)
    return policy


def _noise() -> Any:
    return pi0_models.tiny_policy(flow=FlowSettings(exploration="flow_noise", num_inference_steps=4))


def _frozen() -> Any:
    policy = pi0_models.tiny_policy()
    policy.model.freeze_language_model()
    return policy


POLICIES: dict[str, Callable[[], Any]] = {
    "openvla": _openvla,
    "openvla, LoRA": lambda: _trained_as(_openvla(), 4),
    "openvla, LoRA, bfloat16, recompute": lambda: _trained_as(_openvla(), 4, "bfloat16", recompute=True),
    "openvla_oft": oft_policies.policy,
    "openvla_oft, FiLM, LoRA, recompute": lambda: _trained_as(oft_policies.policy(film=True), 4, recompute=True),
    "pi0": pi0_models.tiny_policy,
    "pi0, Flow-Noise": _noise,
    "pi0, language model frozen": _frozen,
    "pi0.5": lambda: pi0_models.tiny_policy("pi05"),
    "pi0.5, recompute": lambda: _trained_as(pi0_models.tiny_policy("pi05"), recompute=True),
    "smolvla": smolvla_models.tiny_policy,
    "wrapped tokens, LoRA": lambda: wrapped("tokens", lora_rank=2),
    "wrapped velocity field": lambda: wrapped("velocity"),
}


def _observe(policy: Any) -> Observation:
    if isinstance(policy, SmolVLAPolicy):
        return smolvla_models.observation(ROWS)
    if isinstance(policy, Pi0Policy):
        return pi0_models.observation(ROWS)
    if isinstance(policy, ACTPolicy):
        return act_models.observation(ROWS)
    if isinstance(policy, WrappedPolicy):
        return wrapped_networks.observation(ROWS)
    return oft_policies.observation(ROWS, policy)


def batch_of(name: str) -> RolloutBatch:
    """One decision an episode; every other one is a success."""
    policy = POLICIES[name]()
    policy.with_value = True
    obs = _observe(policy)
    out = policy.act(obs, DecisionRng(np.arange(ROWS), np.zeros(ROWS, np.int64)), "sample")
    episodes = [
        EpisodeResult(EpisodeSpec(i, "t", 0, i, group=i), i % 2 == 0, True, False, float(i % 2 == 0), 1, 1)
        for i in range(ROWS)
    ]
    return RolloutBatch(
        images=obs.images,
        proprio=obs.proprio,
        instruction=obs.instruction,
        replay=out.replay,
        log_prob=out.log_prob,
        value=out.value,
        reward=torch.tensor([episode.reward for episode in episodes]),
        mask=torch.ones_like(out.log_prob, dtype=torch.bool),
        episode=torch.arange(ROWS),
        episodes=episodes,
    )


@dataclass
class Result:
    """Weights of the policy that acts after an update, and its metrics."""

    weights: dict[str, Tensor]
    metrics: dict[str, float]


def learn(name: str, ranks: Collectives, batch: RolloutBatch) -> Result:
    """An update of two steps, as every rank makes it."""
    policy = POLICIES[name]()
    policy.with_value = True
    if ranks.rank:
        for parameter in policy.parameters():  # what learns must come from the lead
            if parameter.requires_grad:
                parameter.data.zero_()
    config = LearnerConfig(lr=0.1, value_lr=0.1, minibatch_size=4, microbatch_size=2, recompute_old_log_probs=True)
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(
            policy,
            make_algorithm(PPOConfig(critic_warmup_iterations=0)),
            config,
            seed=0,
            dump_dir=Path(folder),
            collectives=ranks,
        )
        # AdamW's step would be that of rounding where a gradient is nearly zero
        learner.optimizer_step.optimizer = torch.optim.SGD(learner.optimizer_step.optimizer.param_groups)  # type: ignore[assignment]
        metrics = learner.update(batch)
    return Result({key: tensor.clone() for key, tensor in policy.state_dict().items()}, metrics)


def every_policy(rank: int, size: int) -> None:
    """The other ranks' side of the test."""
    torch.set_num_threads(1)
    with joined(place(rank, size)) as ranks:
        for kind in (ranks, FSDPCollectives(rank, size)):
            for name in POLICIES:
                learn(name, kind, batch_of(name))
