"""Where training OpenVLA and OpenVLA-OFT begins: random weights, or those of another policy, for a data set's robot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.resize import changed, resized
from embodied_rl.policies.family import FreshRequest
from embodied_rl.policies.openvla.checkpoint import adapt_policy
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, preset
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.preprocessing.text import PromptTokenizer, with_words
from embodied_rl.policies.preprocessing.tokens import (
    NUM_BINS,
    ProprioNorm,
    Statistics,
    fit_statistics,
    identity_statistics,
    statistics_to_json,
)

AnyOpenVLA = TypeVar("AnyOpenVLA", bound=OpenVLAPolicy)


def fresh(request: FreshRequest) -> OpenVLAPolicy:
    """A randomly initialised policy for the data set of `request`."""
    return fresh_for(OpenVLAPolicy, preset(request.preset), request)


def fresh_for(kind: type[AnyOpenVLA], base: OpenVLAModelConfig, request: FreshRequest) -> AnyOpenVLA:
    """A randomly initialised policy of the sizes of `request`."""
    config = sized(base, request)
    statistics = fitted(request, config.proprio_norm)
    return kind.fresh(config, request.instructions, statistics, seed=request.seed, unnorm_key=request.unnorm_key)


def sized(base: OpenVLAModelConfig, request: FreshRequest) -> OpenVLAModelConfig:
    """`base` for the robot of `request`."""
    proprio_dim = request.state.shape[1]
    return replace(
        base,
        chunk_len=request.chunk_len,
        num_cameras=request.num_cameras,
        action_dim=request.action.shape[1],
        proprio_dim=proprio_dim or base.proprio_dim,
        use_proprio=base.use_proprio and proprio_dim > 0,
        clip_actions=request.bounds is None and not request.own_units,
        gripper_zero_one=base.gripper_zero_one and not request.own_units,
    )


def fitted(request: FreshRequest, norm: ProprioNorm) -> Statistics:
    """The statistics of a data set."""
    statistics = fit_statistics(request.action, request.state, gripper=not request.own_units)
    if norm == "bounds":
        low, high = (np.quantile(request.state, share, axis=0).astype(np.float32) for share in (0.01, 0.99))
        statistics = replace(statistics, proprio_bounds=(low, high))
    if request.bounds is not None:
        low, high = request.bounds
        return replace(statistics, q01=low, q99=high, mask=np.ones(len(low), dtype=bool))
    if request.unit_actions:
        # our own suites: commands fill [-1, 1] already, and 1st percentiles would cut off the rare large corrections
        unit = identity_statistics(request.action.shape[1], request.state.shape[1])
        return replace(statistics, q01=unit.q01, q99=unit.q99)
    return statistics


def add_robot(policy: OpenVLAPolicy, request: FreshRequest) -> None:
    """Let `policy` know a further data set, of a robot of the same sizes; UserError for another."""
    config = policy.config
    own = (config.action_dim, config.proprio_dim, config.num_cameras, config.clip_actions)
    other = (request.action.shape[1], request.state.shape[1], request.num_cameras, not request.own_units)
    if own != other:
        raise UserError(
            f"{policy.architecture} learns from one robot: {request.unnorm_key} has {other[0]} actions, "
            f"{other[1]} states and {other[2]} cameras, the first one {own[0]}, {own[1]} and {own[2]}; pi0 and smolvla "
            "take both"
        )
    policy.norm_stats[request.unnorm_key] = statistics_to_json(fitted(request, config.proprio_norm))


def refit(policy: AnyOpenVLA, request: FreshRequest) -> AnyOpenVLA:
    """`policy` for the robot of `request`: its weights as far as they fit, the data set's statistics and words.

    Raises:
        UserError: It has adapters that are for other sizes, or no place for the words.
    """
    config = sized(policy.config, request)
    words = with_words(policy.tokenizer.tokenizer, request.instructions, config.action_token_end - NUM_BINS)
    statistics = fitted(request, config.proprio_norm)
    tokenizer = PromptTokenizer(words, config.append_token)
    with torch.device("meta"):
        new = type(policy)(config, tokenizer, statistics, unnorm_key=request.unnorm_key)
    expected, found = new.model.state_dict(), policy.model.state_dict()
    new.resized = frozenset(name for name, tensor in found.items() if changed(name, tensor, expected))
    if policy.base is not None:
        if new.resized:
            raise UserError("the checkpoint's LoRA adapters are for a robot of other sizes: export it first")
        new.model, new.base = policy.model, policy.base
        new.model.config = config
    else:
        found = {name: tensor for name, tensor in found.items() if name in expected}  # without states no projector
        new.model.load_state_dict(resized(found, expected, Path("the checkpoint")), assign=True)
    new.temperature, new.public, new.source_files = policy.temperature, policy.public, policy.source_files
    return new


def adapt_refitted(policy: OpenVLAPolicy, folder: Path, rank: int) -> None:
    """See `PolicyFamily.adapt`."""
    adapt_policy(policy, folder, rank)
