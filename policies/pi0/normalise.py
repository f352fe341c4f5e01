"""How pi0 policies normalise states and actions: by mean and deviation, or by the 1st and 99th percentile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.types import Array

NormMode = Literal["mean_std", "quantiles"]
NEEDED: dict[str, tuple[str, str]] = {"mean_std": ("mean", "std"), "quantiles": ("q01", "q99")}
STATISTICS = ("mean", "std", "q01", "q99")
OPENPI_EPS = 1e-6


@dataclass(frozen=True)
class Normaliser:
    """Statistics of one vector of a data set, and which of them count.

    stats: float32 [dim] each, some of mean, std, q01, q99, in the data set's units; those that `mode` needs are there.
    eps: added to the deviation, or to the span of the percentiles; so a constant dimension un-normalises to its number.
    """

    mode: NormMode
    stats: Mapping[str, Array]
    eps: float = OPENPI_EPS

    def __post_init__(self) -> None:
        if self.mode not in NEEDED:
            raise UserError(f"unknown normalisation '{self.mode}': use {' or '.join(get_args(NormMode))}")
        missing = [name for name in NEEDED[self.mode] if name not in self.stats]
        if missing:
            raise UserError(
                f"normalisation '{self.mode}' needs {' and '.join(missing)}, the statistics have only "
                f"{', '.join(self.stats)}: choose the normalisation that the checkpoint was trained with"
            )
        low, high = (self.stats[name] for name in NEEDED[self.mode])
        if len({array.shape for array in self.stats.values()}) > 1 or low.ndim != 1:
            raise UserError(f"statistics must be vectors of one length, got {[a.shape for a in self.stats.values()]}")
        span = high - low if self.mode == "quantiles" else high
        for name in NEEDED[self.mode]:
            if not np.isfinite(self.stats[name]).all():
                raise UserError(f"the statistics' {name} has numbers that are not finite: restore their file")
        if (span < 0).any() or not np.isfinite(span).all() or not 0 <= self.eps < np.inf:
            raise UserError(f"statistics for '{self.mode}' must have std >= 0, q99 >= q01 and eps >= 0: {self.stats}")

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return len(self.stats[NEEDED[self.mode][0]])

    def normalise(self, x: Tensor) -> Tensor:
        """[..., dim] in the data set's units -> normalised."""
        low, high = self._pair(x)
        if self.mode == "mean_std":
            return (x - low) / (high + self.eps)
        return (x - low) / (high - low + self.eps) * 2.0 - 1.0

    def unnormalise(self, x: Tensor) -> Tensor:
        """Inverse of `normalise`."""
        low, high = self._pair(x)
        if self.mode == "mean_std":
            return x * (high + self.eps) + low
        return (x + 1.0) / 2.0 * (high - low + self.eps) + low

    def _pair(self, like: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (torch.from_numpy(self.stats[name]).to(like.device) for name in NEEDED[self.mode])
        return low, high

    def to_json(self) -> dict[str, Any]:
        """Plain data; `normaliser_from_json` is the inverse."""
        eps = {} if self.eps == OPENPI_EPS else {"eps": self.eps}
        return {"mode": self.mode} | eps | {name: values.tolist() for name, values in self.stats.items()}


@dataclass(frozen=True)
class Pi0Statistics:
    """Normalisers of state [P] and action [A]."""

    state: Normaliser
    action: Normaliser


@dataclass(frozen=True)
class Robot:
    """What a policy knows of the robot of a data set.

    cameras: which of the policy's it has; () all. clip_actions: see `Pi0ModelConfig.clip_actions`.
    """

    statistics: Pi0Statistics
    cameras: tuple[int, ...] = ()
    clip_actions: bool = True


def fit(values: Array, mode: NormMode) -> Normaliser:
    """Statistics of `values` [rows, dim]. Deviations under 1e-3 are widened, so that what never moves stays finite."""
    half, values = np.float32(1e-3), values.astype(np.float64)
    low, high = (np.quantile(values, share, axis=0).astype(np.float32) for share in (0.01, 0.99))
    middle, reach = (low + high) / 2, np.maximum((high - low) / 2, half)
    stats = {
        "mean": values.mean(axis=0).astype(np.float32),
        "std": np.maximum(values.std(axis=0), half).astype(np.float32),
        "q01": middle - reach,
        "q99": middle + reach,
    }
    return Normaliser(mode, stats)


def unit(dim: int) -> Normaliser:
    """For values that already fill [-1, 1]."""
    ones = np.ones(dim, np.float32)
    return Normaliser("quantiles", {"q01": -ones, "q99": ones})


def normaliser_from_json(data: Any, where: str) -> Normaliser:
    """Read what `Normaliser.to_json` wrote; UserError when it is unusable."""
    try:
        with np.errstate(over="ignore"):  # Normaliser refuses infinity
            stats = {name: np.asarray(data[name], np.float32) for name in STATISTICS if name in data}
        return Normaliser(data["mode"], stats, float(data.get("eps", OPENPI_EPS)))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} holds unusable statistics ({error!r}): restore the file") from error


def robots_from_json(data: Mapping[str, Any], *, clip_actions: bool) -> dict[str, Robot]:
    """Read dataset_statistics.json, an entry a data set; clip_actions: of entries that do not say it."""
    return {key: _robot_from_json(entry, key, clip_actions) for key, entry in data.items()}


def _robot_from_json(entry: Any, key: str, clip_actions: bool) -> Robot:
    parts = entry if isinstance(entry, dict) else {}
    state, action = (
        normaliser_from_json(parts.get(part), f"dataset_statistics.json, '{key}.{part}'")
        for part in ("state", "action")
    )
    cameras, clip = parts.get("cameras", []), parts.get("clip_actions", clip_actions)
    if not isinstance(cameras, list) or not all(type(n) is int and n >= 0 for n in cameras) or type(clip) is not bool:
        raise UserError(f"dataset_statistics.json, '{key}', holds unusable cameras or clip_actions: restore the file")
    return Robot(Pi0Statistics(state, action), tuple(cameras), clip)


def robots_to_json(robots: Mapping[str, Robot]) -> dict[str, Any]:
    """dataset_statistics.json; `robots_from_json` is the inverse."""
    return {
        key: {"state": robot.statistics.state.to_json(), "action": robot.statistics.action.to_json()}
        | ({"cameras": list(robot.cameras)} if robot.cameras else {})
        | ({} if len(robots) == 1 else {"clip_actions": robot.clip_actions})
        for key, robot in robots.items()
    }
