"""OpenVLA's action tokens, action un-normalisation and proprio normalisation: pure, paired functions.

An action *bin* b in 0..255 is `digitize(a, linspace(-1, 1, 256)) - 1`. Its vocabulary id is `end - 1 - b` with `end`
one past the last action row (32000 in OpenVLA-7B; Kim et al. 2024). This project stores the *action token* t = 255 - b
in 0..255: the row within the 256 action rows, in vocabulary order. Decoding knows 255 centres, so the bin of exactly
+1 (t = 0) decodes like its neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from embodied_rl.errors import UserError, suggest
from embodied_rl.types import Array

NUM_BINS = 256
ProprioNorm = Literal["mean_std", "bounds"]
_EDGES = np.linspace(-1.0, 1.0, NUM_BINS)
_CENTRES = (_EDGES[:-1] + _EDGES[1:]) / 2.0


def encode_actions(normalised: Array) -> Array:
    """Normalised actions in [-1, 1] (clipped) of any shape -> action tokens uint8."""
    bins = np.digitize(np.clip(normalised, -1.0, 1.0), _EDGES) - 1
    return (NUM_BINS - 1 - bins).astype(np.uint8)


def decode_tokens(tokens: Array) -> Array:
    """Action tokens 0..255 of any shape -> bin centres, float32 in (-1, 1)."""
    bins = NUM_BINS - 1 - tokens.astype(np.int64)
    return _CENTRES[np.clip(bins, 0, NUM_BINS - 2)].astype(np.float32)


def token_centres() -> Array:
    """float32 [256]: the decoded value of each action token, in token order."""
    return decode_tokens(np.arange(NUM_BINS))


@dataclass(frozen=True)
class Statistics:
    """How a data set's actions and proprio were normalised.

    q01, q99: float32 [A], the range mapped to [-1, 1] where `mask` (bool [A]) holds; other dimensions pass through (the
    gripper). A dimension with q01 == q99 is constant: it is normalised to 0 and un-normalised to that number.
    proprio_mean, proprio_std: float32 [P], std > 0. proprio_bounds: with it, proprio is mapped from these two
    float32 [P] (q01 and q99) to [-1, 1] and clipped, as OpenVLA-OFT does, and not by mean and deviation.
    """

    q01: Array
    q99: Array
    mask: Array
    proprio_mean: Array
    proprio_std: Array
    proprio_bounds: tuple[Array, Array] | None = None

    def __post_init__(self) -> None:
        actions, proprio = self.q01.shape, self.proprio_mean.shape
        if self.q99.shape != actions or self.mask.shape != actions or self.proprio_std.shape != proprio:
            raise ValueError("q01, q99 and mask must have one shape, and proprio_mean and proprio_std another")
        low, high = self.proprio_bounds or (self.proprio_mean, self.proprio_std)
        if low.shape != proprio or high.shape != proprio:
            raise ValueError("proprio_bounds must have the shape of proprio_mean")
        numbers = {"action.q01": self.q01[self.mask], "action.q99": self.q99[self.mask]}
        numbers |= {"proprio (its first statistic)": low, "proprio (its second statistic)": high}
        for name, values in numbers.items():
            if not np.isfinite(values).all():
                raise ValueError(f"{name} has numbers that are not finite")
        if (self.q99 < self.q01)[self.mask].any() or not (self.proprio_std > 0).all():
            raise ValueError("q99 must not be below q01 in a normalised dimension, and proprio_std must be positive")

    def normalise_proprio(self, proprio: Tensor) -> Tensor:
        """Raw proprio float32 [N, P] -> what the network sees."""
        device = proprio.device
        if self.proprio_bounds is None:
            mean, std = torch.from_numpy(self.proprio_mean), torch.from_numpy(self.proprio_std)
            return (proprio - mean.to(device)) / std.to(device)
        low, high = (torch.from_numpy(bound).to(device) for bound in self.proprio_bounds)
        return (2.0 * (proprio - low) / (high - low + 1e-8) - 1.0).clamp(-1.0, 1.0)


def identity_statistics(action_dim: int, proprio_dim: int) -> Statistics:
    """Statistics that change nothing: for actions that already fill [-1, 1]."""
    mask = np.ones(action_dim, dtype=bool)
    mask[-1] = False
    ones, zeros = np.ones(action_dim, np.float32), np.zeros(proprio_dim, np.float32)
    return Statistics(-ones, ones, mask, zeros, np.ones(proprio_dim, np.float32))


def fit_statistics(actions: Array, proprio: Array, *, gripper: bool = True) -> Statistics:
    """Statistics of a data set: actions [rows, A], proprio [rows, P]; gripper: the last action is not normalised.

    Ranges and deviations under 1e-3 are widened, so that a dimension that never moves stays finite.
    """
    actions, proprio = actions.astype(np.float64), proprio.astype(np.float64)
    low = np.quantile(actions, 0.01, axis=0).astype(np.float32)
    high = np.quantile(actions, 0.99, axis=0).astype(np.float32)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, np.float32(1e-3))
    mask = np.ones(actions.shape[1], dtype=bool)
    mask[-1] = not gripper
    std = np.maximum(proprio.std(axis=0), 1e-3).astype(np.float32)
    return Statistics(middle - half, middle + half, mask, proprio.mean(axis=0).astype(np.float32), std)


def unnormalise_actions(normalised: Array, statistics: Statistics) -> Array:
    """[..., A] in [-1, 1] -> the data set's units: (a + 1) / 2 * (q99 - q01) + q01 where masked."""
    scaled = 0.5 * (normalised + 1.0) * (statistics.q99 - statistics.q01) + statistics.q01
    return np.where(statistics.mask, scaled, normalised).astype(np.float32)


def normalise_actions(actions: Array, statistics: Statistics) -> Array:
    """Inverse of `unnormalise_actions`, clipped to [-1, 1]."""
    span = np.where(statistics.mask, statistics.q99 - statistics.q01, 1.0)
    constant = span == 0.0
    scaled = np.where(statistics.mask, 2.0 * (actions - statistics.q01) / np.where(constant, 1.0, span) - 1.0, actions)
    scaled = np.where(constant, 0.0, scaled)  # as OpenVLA's data loader does
    return np.clip(scaled, -1.0, 1.0).astype(np.float32)


def gripper_to_env(normalised: Array) -> Array:
    """OpenVLA's gripper g in [0, 1], 1 opens -> the simulator's -sign(2g - 1), -1 opens; the last dimension."""
    actions = normalised.copy()
    actions[..., -1] = np.where(actions[..., -1] > 0.5, -1.0, 1.0)
    return actions


def gripper_from_env(actions: Array) -> Array:
    """Inverse of `gripper_to_env`: negative (open) -> 1, else -> 0, last dimension."""
    normalised = actions.copy()
    normalised[..., -1] = np.where(actions[..., -1] < 0.0, 1.0, 0.0)
    return normalised


def statistics_to_json(statistics: Statistics) -> dict[str, Any]:
    """The entry of one `unnorm_key` in dataset_statistics.json (OpenVLA's layout)."""
    proprio = {"mean": statistics.proprio_mean.tolist(), "std": statistics.proprio_std.tolist()}
    if statistics.proprio_bounds is not None:
        proprio["q01"], proprio["q99"] = (bound.tolist() for bound in statistics.proprio_bounds)
    return {
        "action": {"q01": statistics.q01.tolist(), "q99": statistics.q99.tolist(), "mask": statistics.mask.tolist()},
        "proprio": proprio,
    }


def statistics_from_json(data: dict[str, Any], key: str, proprio: ProprioNorm | None = "mean_std") -> Statistics:
    """Read entry `key` of dataset_statistics.json (or of `norm_stats` in a published config.json).

    proprio: how the network's proprio is normalised; None for a network without, whose entry may have useless numbers
    there. UserError names a missing key, with those that there are, or a missing field.
    """
    if key not in data:
        hint = suggest(key, data)
        listed = "" if hint.startswith(" Known") else f" Available: {', '.join(sorted(data))}."
        raise UserError(f"the dataset statistics have no entry '{key}'.{hint}{listed}")
    try:
        action = data[key]["action"]
        with np.errstate(over="ignore"):  # Statistics refuses infinity
            q01, q99 = np.asarray(action["q01"], np.float32), np.asarray(action["q99"], np.float32)
        mask = np.asarray(action.get("mask", np.ones_like(q01)), bool)
        return Statistics(q01, q99, mask, *_proprio_from_json(data[key], proprio))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"entry '{key}' of dataset_statistics.json is unusable: {reason}; restore the file") from error


def _proprio_from_json(
    entry: dict[str, Any], norm: ProprioNorm | None
) -> tuple[Array, Array, tuple[Array, Array] | None]:
    """Mean, deviation and bounds of an entry's proprio."""
    if norm is None:
        return np.zeros(0, np.float32), np.ones(0, np.float32), None

    def numbers(name: str) -> Array:
        return np.asarray(entry["proprio"][name], np.float32)

    mean, std = numbers("mean"), numbers("std")
    if norm == "mean_std":
        return mean, std, None
    # mean and deviation are not used then, and published ones may be zero
    return mean, np.where(std > 0, std, 1.0).astype(np.float32), (numbers("q01"), numbers("q99"))
