"""Policies of images with random weights, made for a simulator that says only when it is open what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embodied_rl.config.train import TrainConfig, kind_of
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import FAMILIES
from embodied_rl.factory.view import View
from embodied_rl.policies.family import FreshRequest
from embodied_rl.types import Array, EpisodeSpec

if TYPE_CHECKING:
    from embodied_rl.factory.suite_env import SuiteEnv

_PRESET, _CHUNK = "nano", 4
_EPISODES, _CHUNKS = 4, 5
"""Of each task so many episodes are begun, and so many chunks of random actions taken, to see what the robot feels."""


def fresh_view(config: TrainConfig, **options: Any) -> View:
    """What the policy of `config` will look at: all cameras, at the size of its preset."""
    model = _family(config).preset(_preset(config), "official")
    return View(image_size=model.image_size, cameras=None, fit=model.image_fit, own_units=True, **options)


def fresh_image_policy(config: TrainConfig, env: SuiteEnv) -> Any:
    """A policy with random weights, of the sizes and for the words of `env`, whose episodes are replaced.

    Raises:
        UserError: `env` shows no image, says no instruction or bounds no action, or adapters are wanted.
    """
    info, kind = env.info, kind_of("policy", config.policy)
    if not info.cameras:
        raise UserError(f"policy {kind} reads images, and suite '{info.suite}' shows a state: train it with mlp.")
    if getattr(config.policy, "lora_rank", 0):
        raise UserError("--policy.lora-rank adapts a policy that is trained: name it by --policy.checkpoint.")
    bounds = np.asarray(info.action_low, np.float32), np.asarray(info.action_high, np.float32)
    if not np.isfinite(bounds).all():
        index = int((~np.isfinite(bounds).all(axis=0)).argmax())
        raise UserError(
            f"action {index} of suite '{info.suite}' has no bounds, which the tokens or noise of new weights need: "
            "begin with imitation of demonstrations (embodied-rl sft, --policy.checkpoint), or wrap the environment."
        )
    proprio, instructions = _look(env, config.seed)
    request = FreshRequest(
        preset=_preset(config),
        chunk_len=getattr(config.policy, "chunk_len", None) or _CHUNK,
        seed=config.seed,
        instructions=instructions,
        state=proprio,
        action=np.stack(bounds),
        unit_actions=False,
        unnorm_key=info.suite,
        num_cameras=len(info.cameras),
        bounds=bounds,
    )
    policy = _family(config).fresh(request)
    policy.to(config.device)
    return policy


def _family(config: TrainConfig) -> Any:
    return FAMILIES[kind_of("policy", config.policy)]


def _preset(config: TrainConfig) -> str:
    return getattr(config.policy, "preset", None) or _PRESET


def _look(env: SuiteEnv, seed: int) -> tuple[Array, list[str]]:
    """What the robot feels in some episodes of every task, float32 [rows, P], and what is to be done in them."""
    specs = [
        EpisodeSpec(number, task, state, seed)
        for number, (task, state) in enumerate(
            (task, state) for task, states in env.train_states.items() for state in list(states)[:_EPISODES]
        )
    ]
    draws = torch.Generator().manual_seed(seed)
    low, high = (torch.tensor(bound) for bound in (env.info.action_low, env.info.action_high))
    rows: list[Array] = []
    words: dict[str, None] = {}
    for first in range(0, len(specs), env.num_envs):
        here = specs[first : first + env.num_envs]
        ids = list(range(len(here)))
        env.reset(ids, here)
        for _ in range(_CHUNKS):
            shown = env.new_observation(len(ids))
            broken = set(env.observe(ids, shown) or ())
            whole = [row for row in range(len(ids)) if row not in broken]
            rows.append(shown.proprio[whole].cpu().numpy())
            words |= dict.fromkeys(shown.instruction[row] for row in whole)
            actions = low + (high - low) * torch.rand((len(ids), 1, len(low)), generator=draws)
            result = env.step(ids, actions)
            over = (result.terminated | result.truncated | result.failed).tolist()
            ids = [env_id for env_id, ended in zip(ids, over, strict=True) if not ended]
            if not ids:
                break
    return np.concatenate(rows).astype(np.float32), list(words)
