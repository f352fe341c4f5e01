"""Values and failure detectors of `bench few-episodes`: each is read on episodes that did not teach it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from embodied_rl.benchmarks.few_episodes_policy import FlowPolicy
from embodied_rl.benchmarks.few_episodes_world import CHUNK, HORIZON, TASKS, Draw, Episode
from embodied_rl.rng import philox
from embodied_rl.types import Array

_FOLDS = 3
_STEPS = 400
_BEFORE = 3
"""Decisions before which no detector speaks."""
_QUANTILE = 0.95
"""Share of the calibration's successes that raise no alarm."""
_MEAN = 4
"""Decisions over which an index is averaged."""


def returns_of(episode: Episode) -> Array:
    """Steps to go as a share of the horizon, -1 to 0, float32 [T]; failures, and what came before help, are -1."""
    to_go = np.arange(len(episode.human), 0, -1) / HORIZON
    if not episode.success:
        to_go = np.ones_like(to_go)
    elif episode.helped:
        to_go = np.where(episode.human, to_go / CHUNK, 1.0)
    return -to_go.clip(0.0, 1.0).astype(np.float32)


def advantages(policy: FlowPolicy, episodes: Sequence[Episode], seed: int) -> Array:
    """Return minus value of every row, the value learned from other episodes: float32 [sum of T]."""
    returns = [returns_of(episode) for episode in episodes]
    state = policy.seen(torch.from_numpy(np.concatenate([episode.states[:-1] for episode in episodes])))
    fold = np.concatenate([np.full(len(part), number % _FOLDS) for number, part in enumerate(returns)])
    wanted = torch.from_numpy(np.concatenate(returns))
    value = torch.zeros(len(wanted))
    for number in range(_FOLDS):
        known, unknown = (torch.from_numpy(np.flatnonzero((fold == number) == own)) for own in (False, True))
        network = _fit(state[known], wanted[known], seed, number, binary=False)
        value[unknown] = network(state[unknown])[:, 0].detach()
    return (wanted - value).numpy()


def _fit(inputs: Tensor, wanted: Tensor, seed: int, number: int, *, binary: bool) -> nn.Module:
    """A small network; binary: its output is a logit."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(philox(seed, Draw.VALUE, number).integers(2**62)))
        network = nn.Sequential(
            nn.Linear(inputs.shape[1], 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.1, fused=True)
    for step in range(_STEPS):
        batch = torch.from_numpy(philox(seed, Draw.VALUE, number + 1, step).integers(len(inputs), size=256))
        out = network(inputs[batch])[:, 0]
        loss = (
            functional.binary_cross_entropy_with_logits(out, wanted[batch])
            if binary
            else (out - wanted[batch]).square().mean()
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return network.eval()


@dataclass(frozen=True, slots=True)
class Alarms:
    """How a detector did on held-out episodes; decisions are counted from 1.

    false_alarms: share of successes. found: share of failures. decision: median over the failures; a missed one counts
    as found at the horizon. saved: share of the failures' decisions that came after the alarm. same_decision,
    same_saved: where its threshold gives no more false alarms on these episodes than the clock's. None: not known, as
    none failed or none succeeded.
    """

    detector: str
    false_alarms: float | None
    found: float | None
    decision: float | None
    saved: float | None
    same_decision: float | None
    same_saved: float | None


Index = Callable[[Episode], Array]
"""The higher, the more hopeless: float [T], one of each decision, known then."""


def detect(
    policy: FlowPolicy, shown: Sequence[Episode], calibration: Sequence[Episode], held: Sequence[Episode], seed: int
) -> list[Alarms]:
    """Calibrate each detector on episodes from fresh states and try it on `held`; shown: demonstrations."""
    pairs = [number // len(TASKS) % 2 for number in range(len(calibration))]  # the tasks come in turn
    teaching, judging = ([e for e, part in zip(calibration, pairs, strict=True) if part == own] for own in (0, 1))
    nearest = _Nearest(policy, shown)
    learned = _learned(policy, teaching, seed)
    detectors: dict[str, tuple[Index, Sequence[Episode]]] = {
        "clock": (lambda episode: np.arange(1.0, len(episode.human) + 1), calibration),
        "nearest state": (nearest.distance, calibration),
        "steps to go": (nearest.length, calibration),
        "learned": (learned, judging),
    }
    found, most = [], None
    for name, (index, episodes) in detectors.items():
        limits = _limits(index, episodes)
        scores = [index(episode)[_BEFORE:] / limits[episode.task] for episode in held]
        if most is None:
            most = sum(bool((score > 1).any()) for score, episode in zip(scores, held, strict=True) if episode.success)
        highest = sorted((score.max(initial=0.0) for score, e in zip(scores, held, strict=True) if e.success))[::-1]
        level = float(highest[most]) if most < len(highest) else 0.0
        found.append(Alarms(name, *_alarms(scores, held, 1.0), *_alarms(scores, held, level)[2:]))
    return found


def _limits(index: Index, episodes: Sequence[Episode]) -> list[float]:
    """By task: what so many of its successes never go beyond; infinite where there are none."""
    limits = []
    for task in range(len(TASKS)):
        highest = [index(e)[_BEFORE:].max(initial=0.0) for e in episodes if e.success and e.task == task]
        limits.append(float(np.quantile(highest, _QUANTILE)) if highest else np.inf)
    return limits


def _alarms(scores: Sequence[Array], held: Sequence[Episode], level: float) -> tuple[float | None, ...]:
    """(false alarms, found, median decision, saved) where a score above `level` is an alarm."""
    at = [_BEFORE + 1 + int((score > level).argmax()) if (score > level).any() else None for score in scores]
    failures = [(HORIZON if when is None else when) for when, e in zip(at, held, strict=True) if not e.success]
    heard = [when is not None for when, e in zip(at, held, strict=True) if not e.success]
    false = [when is not None for when, e in zip(at, held, strict=True) if e.success]
    if not failures or not false:
        return (None, None, None, None)
    return (
        float(np.mean(false)),
        float(np.mean(heard)),
        float(np.median(failures)),
        1 - float(np.mean(failures)) / HORIZON,
    )


class _Nearest:
    """The demonstrated state that is most like the present one, in the policy's own eyes."""

    def __init__(self, policy: FlowPolicy, shown: Sequence[Episode]) -> None:
        self._policy = policy
        summaries = [policy.summary(torch.from_numpy(episode.states[:-1])) for episode in shown]
        self._mean, self._std = torch.cat(summaries).mean(0), torch.cat(summaries).std(0) + 0.05
        self._known: list[tuple[Tensor, Array]] = []
        for task in range(len(TASKS)):
            mine = [n for n, episode in enumerate(shown) if episode.task == task]
            to_go = [np.arange(len(summaries[n]), 0, -1) / CHUNK for n in mine]
            self._known.append((self._scaled(torch.cat([summaries[n] for n in mine])), np.concatenate(to_go)))

    def _scaled(self, summary: Tensor) -> Tensor:
        return functional.normalize((summary - self._mean) / self._std, dim=1)

    def _apart(self, episode: Episode) -> Tensor:
        """Cosine distances [T, demonstrated states]."""
        return (
            1
            - self._scaled(self._policy.summary(torch.from_numpy(episode.states[:-1]))) @ self._known[episode.task][0].T
        )

    def distance(self, episode: Episode) -> Array:
        """To the nearest one, averaged over the last decisions."""
        return _recent(self._apart(episode).amin(1).numpy())

    def length(self, episode: Episode) -> Array:
        """Decisions so far and those that were still to come from the nearest one on."""
        to_go = self._known[episode.task][1][self._apart(episode).argmin(1).numpy()]
        return np.arange(1.0, len(to_go) + 1) + _recent(to_go)


def _recent(index: Array) -> Array:
    total = np.concatenate([[0.0], np.cumsum(index)])
    at = np.arange(1, len(index) + 1)
    first = np.maximum(at - _MEAN, 0)
    return (total[at] - total[first]) / (at - first)


def _learned(policy: FlowPolicy, episodes: Sequence[Episode], seed: int) -> Index:
    """The chance of failure by state and time, learned from episodes of both outcomes."""

    def seen(episode: Episode) -> Tensor:
        states = policy.seen(torch.from_numpy(episode.states[:-1]))
        return torch.cat([states, torch.arange(len(states))[:, None] / HORIZON], dim=1)

    inputs = torch.cat([seen(episode) for episode in episodes])
    failed = torch.cat([torch.full((len(e.human),), float(not e.success)) for e in episodes])
    network = _fit(inputs, failed, seed, _FOLDS, binary=True)

    def index(episode: Episode) -> Array:
        with torch.no_grad():
            return network(seen(episode))[:, 0].sigmoid().numpy().astype(np.float64)

    return index
