"""Where training pi0 and its kin begins: random weights, or those of another policy, for a data set's robot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.adapters import adapt
from embodied_rl.policies.checkpoints.resize import changed, resized
from embodied_rl.policies.checkpoints.shards import weight_files
from embodied_rl.policies.family import FreshRequest, Room
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.config import Pi0ModelConfig, preset
from embodied_rl.policies.pi0.normalise import Normaliser, NormMode, Pi0Statistics, Robot, fit, unit
from embodied_rl.policies.pi0.policy import AnyPi0, Pi0Policy
from embodied_rl.policies.pi0.prompt import Pi0Prompt
from embodied_rl.policies.preprocessing.text import with_words

# Imitation starts with few denoising steps, as reinforcement learning will take; several noise draws a demonstration,
# since the prefix costs most.
_FRESH_STEPS, _LOSS_SAMPLES = 4, 4


def fresh(request: FreshRequest) -> Pi0Policy:
    """A randomly initialised policy for the data set of `request`."""
    return fresh_for(Pi0Policy, preset(request.preset), request)


def fresh_for(kind: type[AnyPi0], base: Pi0ModelConfig, request: FreshRequest) -> AnyPi0:
    """A randomly initialised policy of the sizes of `request`."""
    config = sized(base, request)
    # as openpi does for pi0.5 and pi0, LeRobot for SmolVLA
    statistics = fitted(request, "quantiles" if config.adaptive else "mean_std")
    flow = FlowSettings(num_inference_steps=_FRESH_STEPS, loss_samples=_LOSS_SAMPLES)
    return kind.fresh(config, request.instructions, statistics, flow, seed=request.seed, unnorm_key=request.unnorm_key)


def sized(base: Pi0ModelConfig, request: FreshRequest) -> Pi0ModelConfig:
    """`base` for the robot of `request`."""
    actions, states = request.action.shape[1], request.state.shape[1]
    room = request.room or Room(actions, states, 0)
    return replace(
        base,
        horizon=request.chunk_len,
        chunk_len=request.chunk_len,
        num_cameras=request.num_cameras,
        max_cameras=room.cameras,
        cameras=request.cameras,
        action_dim=actions,
        proprio_dim=states,
        max_action_dim=max(base.max_action_dim, actions, room.actions),
        max_state_dim=max(base.max_state_dim, states, room.states),
        clip_actions=request.bounds is None and not request.own_units,
        delta_dims=0,
    )


def fitted(request: FreshRequest, mode: NormMode) -> Pi0Statistics:
    """The statistics of a data set."""
    state = fit(request.state, mode)
    if request.bounds is not None:
        return Pi0Statistics(state, Normaliser("quantiles", dict(zip(("q01", "q99"), request.bounds, strict=True))))
    return Pi0Statistics(state, unit(request.action.shape[1]) if request.unit_actions else fit(request.action, mode))


def add_robot(policy: Pi0Policy, request: FreshRequest) -> None:
    """Let `policy` know a further robot, which its network has room for."""
    statistics = fitted(request, policy.statistics.state.mode)
    policy.robots[request.unnorm_key] = Robot(statistics, request.cameras, not request.own_units)


def refit(policy: AnyPi0, request: FreshRequest) -> AnyPi0:
    """`policy` for the robot of `request`: its weights as far as they fit, the data set's statistics and words.

    Raises:
        UserError: It has adapters that are for other sizes, or no place for the words.
    """
    old = policy.config
    config = replace(sized(old, request), chunk_len=min(old.chunk_len, request.chunk_len))
    statistics = fitted(request, policy.statistics.state.mode)
    eps = policy.statistics.state.eps
    statistics = Pi0Statistics(replace(statistics.state, eps=eps), replace(statistics.action, eps=eps))
    rows = config.decoder.vocab_size
    prompt = type(policy.prompt)(with_words(policy.prompt.tokenizer, request.instructions, rows), rows)
    new = empty_policy(config, prompt, statistics, policy.flow, unnorm_key=request.unnorm_key, kind=type(policy))
    expected, found = new.model.state_dict(), policy.model.state_dict()
    new.resized = frozenset(name for name, tensor in found.items() if changed(name, tensor, expected))
    if policy.base is not None:
        if new.resized:
            raise UserError("the checkpoint's LoRA adapters are for a robot of other sizes: export it first")
        new.model, new.base = policy.model, policy.base
        new.model.config = config
    else:
        new.model.load_state_dict(resized(found, expected, Path("the checkpoint")), assign=True)
    new.source_files = policy.source_files
    return new


def adapt_refitted(policy: Pi0Policy, folder: Path, rank: int) -> None:
    """See `PolicyFamily.adapt`."""
    adapt(policy, folder, weight_files, rank, whole=policy.resized)


def empty_policy(
    config: Pi0ModelConfig,
    prompt: Pi0Prompt,
    statistics: Pi0Statistics,
    flow: FlowSettings,
    *,
    unnorm_key: str,
    kind: type[AnyPi0] = Pi0Policy,
) -> AnyPi0:
    """A policy whose weights take no memory, to be assigned."""
    with torch.device("meta"):
        policy = kind(config, prompt, statistics, flow, unnorm_key=unnorm_key)
    policy.loss_calls = torch.zeros((), dtype=torch.int64)
    return policy
