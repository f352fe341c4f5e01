"""Alarms while a run trains: the policy moved too far, stopped to explore, or lost what it could do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Literal

from embodied_rl.errors import UserError
from embodied_rl.utils.options import Expert

WINDOW = 3
"""Updates whose success is averaged: one rollout alone says little."""
MAX_ROLLBACKS = 3
"""After so many the run only warns."""


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """What counts as a collapse of training, and what is done about it."""

    action: Expert[Literal["warn", "roll_back", "off"]] = "warn"
    """warn says why in one line; roll_back also puts back weights and optimiser of the last good checkpoint and goes on
    with new episodes."""
    max_kl: Expert[float] = 0.5
    """Alarm where an update moves the policy by more than so much (train/approx_kl)."""
    min_ess: Expert[float] = 0.1
    """Alarm where the effective sample size of an update's last minibatch is a smaller share."""
    min_entropy: Expert[float] = 0.1
    """Alarm where the entropy of tokens falls below so much of its first value."""
    max_success_drop: Expert[float] = 0.25
    """Alarm where the success of training episodes, over three updates, falls so far below its best."""

    def __post_init__(self) -> None:
        for name in ("max_kl", "min_ess", "min_entropy", "max_success_drop"):
            if getattr(self, name) < 0:
                raise UserError(f"--guard.{name.replace('_', '-')} must not be negative, got {getattr(self, name)}.")


@dataclass(slots=True)
class _Memory:
    """What the guard knows; part of every checkpoint. good: name of the last checkpoint that was saved in good health;
    best: the highest mean of `WINDOW` updates' success; recent: of the newest updates."""

    entropy: float | None = None
    best: float | None = None
    recent: list[float] = field(default_factory=list)
    good: str | None = None
    rollbacks: int = 0


class Guard:
    """Watches the metrics of each update.

    Args:
        config: the bounds.
        by_success: whether success of training episodes says how good the policy is. Under an adaptive sampler it does
            not: episodes get harder as the policy gets better.

    Example:
        >>> guard = Guard(GuardConfig(max_kl=0.1))
        >>> guard.check({"train/approx_kl": 0.3})
        ['the policy moved too far: train/approx_kl 0.3 is above 0.1']
    """

    def __init__(self, config: GuardConfig, *, by_success: bool = True) -> None:
        self.config = config
        self._by_success = by_success
        self._memory = _Memory()

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """The alarms of an update, each with its reason; empty when all is well, or the guard is off."""
        if self.config.action == "off":
            return []
        # Every one of them, as each remembers what it was shown.
        found = [
            *self._above("train/approx_kl", self.config.max_kl, metrics),
            *self._below("train/ess_last_minibatch", self.config.min_ess, metrics),
            *self._entropy(metrics),
            *self._success(metrics),
        ]
        return found

    def saving(self, name: str) -> None:
        """A checkpoint of that name is about to be saved; it is a good one unless success has fallen half-way."""
        mean, best = self._mean(), self._memory.best
        # Half-way to the alarm: a policy that is already falling is no place to go back to.
        if mean is None or best is None or mean >= best - self.config.max_success_drop / 2:
            self._memory.good = name

    @property
    def good(self) -> str | None:
        """Name of the last good checkpoint; None before the first one."""
        return self._memory.good

    def may_roll_back(self) -> bool:
        """Whether an alarm is answered by going back."""
        return self.config.action == "roll_back" and self._memory.rollbacks < MAX_ROLLBACKS

    def why_not(self) -> str:
        """Why an alarm of a run that asked for `roll_back` was not answered so; '' where it did not ask."""
        if self.config.action != "roll_back":
            return ""
        if not self.may_roll_back():
            return f". Not rolled back: that was done {self._memory.rollbacks} times"
        return ". Not rolled back: there is no good checkpoint yet (--checkpoint.every)"

    def rolled_back(self) -> None:
        """Weights of the good checkpoint are in place: what came since says nothing about them."""
        self._memory.rollbacks += 1
        self._memory.recent.clear()

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return asdict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._memory = _Memory(**state)

    def _above(self, name: str, bound: float, metrics: Mapping[str, float]) -> list[str]:
        value = metrics.get(name)
        if value is None or value <= bound:
            return []
        return [f"the policy moved too far: {name} {value:.3g} is above {bound:g}"]

    def _below(self, name: str, bound: float, metrics: Mapping[str, float]) -> list[str]:
        value = metrics.get(name)
        if value is None or value >= bound:
            return []
        return [f"the policy moved too far: {name} {value:.3g} is below {bound:g}"]

    def _entropy(self, metrics: Mapping[str, float]) -> list[str]:
        value = metrics.get("train/entropy")
        if value is None:
            return []
        if self._memory.entropy is None:
            self._memory.entropy = value
        first = self._memory.entropy
        if first <= 0 or value >= self.config.min_entropy * first:  # that of a density may be negative
            return []
        return [f"exploration has collapsed: train/entropy {value:.3g} began at {first:.3g}"]

    def _success(self, metrics: Mapping[str, float]) -> list[str]:
        value = metrics.get("rollout/success")
        if value is None or not self._by_success:
            return []
        memory = self._memory
        memory.recent = [*memory.recent, float(value)][-WINDOW:]
        mean = self._mean()
        if mean is None:
            return []
        memory.best = mean if memory.best is None else max(memory.best, mean)
        if mean >= memory.best - self.config.max_success_drop:
            return []
        return [f"success fell: rollout/success {mean:.0%} over {WINDOW} updates, its best was {memory.best:.0%}"]

    def _mean(self) -> float | None:
        return fmean(self._memory.recent) if len(self._memory.recent) == WINDOW else None
