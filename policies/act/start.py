"""Where training an ACT begins: random weights, or those of another policy, for a data set's robot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.policies.act.config import ACTModelConfig, preset
from embodied_rl.policies.act.policy import ACTPolicy, check_sizes
from embodied_rl.policies.checkpoints.resize import changed, resized
from embodied_rl.policies.family import FreshRequest
from embodied_rl.policies.pi0.normalise import Normaliser, Pi0Statistics, Robot, fit
from embodied_rl.types import Array

_FRESH = ("log_std", "value_head.")
"""What another robot's policy learned about its own rewards is of no use."""


def fresh(request: FreshRequest) -> ACTPolicy:
    """A randomly initialised policy for the data set of `request`."""
    config = sized(preset(request.preset), request)
    robots = {request.unnorm_key: Robot(fitted(request))}
    return ACTPolicy.fresh(config, robots, seed=request.seed, unnorm_key=request.unnorm_key)


def sized(base: ACTModelConfig, request: FreshRequest) -> ACTModelConfig:
    """`base` for the robot of `request`."""
    if request.room is not None:
        raise UserError("act learns from one robot, and these data sets are of several: pi0 and smolvla take them")
    return replace(
        base,
        horizon=request.chunk_len,
        chunk_len=request.chunk_len,
        num_cameras=request.num_cameras,
        image_mean=base.image_mean if request.num_cameras == base.num_cameras else (),
        image_std=base.image_std if request.num_cameras == base.num_cameras else (),
        action_dim=request.action.shape[1],
        proprio_dim=request.state.shape[1],
        clip_actions=request.bounds is None and not request.own_units,
    )


def fitted(request: FreshRequest) -> Pi0Statistics:
    """Means and deviations of a data set; of actions that are known to lie within bounds the middle and the reach."""
    state = fit(request.state, "mean_std")
    if request.bounds is not None:
        return Pi0Statistics(state, within(*request.bounds))
    if request.unit_actions:
        ones = np.ones(request.action.shape[1], np.float32)
        return Pi0Statistics(state, within(-ones, ones))
    return Pi0Statistics(state, fit(request.action, "mean_std"))


def within(low: Array, high: Array) -> Normaliser:
    """For values between `low` and `high`, which become -1 and 1."""
    stats = {"mean": (low + high) / 2, "std": (high - low) / 2, "q01": low, "q99": high}
    return Normaliser("mean_std", {name: np.asarray(values, np.float32) for name, values in stats.items()})


def add_robot(policy: ACTPolicy, request: FreshRequest) -> None:
    """Let `policy` know a further data set, of the same robot; UserError for another."""
    statistics = fitted(request)
    check_sizes(statistics, policy.config)
    policy.robots[request.unnorm_key] = Robot(statistics)


def refit(policy: ACTPolicy, request: FreshRequest) -> ACTPolicy:
    """`policy` for the robot of `request`: its weights as far as they fit, the data set's statistics."""
    old = policy.config
    config = sized(replace(old, temporal_ensemble_coeff=None), request)
    if old.temporal_ensemble_coeff is None:
        config = replace(config, chunk_len=min(old.chunk_len, request.chunk_len))
    robots = {request.unnorm_key: Robot(fitted(request))}
    new = ACTPolicy.fresh(config, robots, seed=request.seed, unnorm_key=request.unnorm_key)
    expected = {name: tensor for name, tensor in new.model.state_dict().items() if not name.startswith(_FRESH)}
    found = {name: tensor for name, tensor in policy.model.state_dict().items() if not name.startswith(_FRESH)}
    new.resized = frozenset(name for name, tensor in found.items() if changed(name, tensor, expected))
    with torch.no_grad():
        new.model.load_state_dict(resized(found, expected, Path("the checkpoint")), strict=False)
    new.source_files = policy.source_files
    return new


def adapt_refitted(policy: ACTPolicy, folder: Path, rank: int) -> None:
    """See `PolicyFamily.adapt`; UserError, as ACT has none."""
    raise UserError("--lora-rank: act is small and trains whole: leave it out.")
