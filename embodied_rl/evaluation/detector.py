"""Failure detection at run time: after each decision of an episode, whether it is going to fail.

A detector has an index, which grows as an episode goes wrong, and a limit by task, which 95 % of the successes that
calibrated it never exceed (FLOAT in ARMADA: arXiv 2510.02298). It hears what the policy makes of an observation
(`PolicyTraits.summarise`) and compares that with what the policy makes of demonstrations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from embodied_rl.errors import UserError
from embodied_rl.types import Array

Kind = Literal["clock", "nearest", "steps_to_go"]
"""clock: decisions so far. nearest: distance to the nearest demonstrated state, over the last decisions. steps_to_go:
decisions so far, and those that were still to come from there."""
KINDS: tuple[Kind, ...] = get_args(Kind)
FIRST = 3
"""Decisions of an episode in which no detector raises an alarm."""
QUANTILE = 0.95
"""Share of successes that raise no alarm."""
FEW = 4
"""With fewer successes of a task its limit is that of all tasks' successes together."""
_MEAN = 4
"""Decisions over which distances and steps to go are averaged."""
_VERSION = 1
_HEADER = "detector"
_SPREAD = 0.05
"""Least spread of a feature, as a share of the mean one: one that hardly moves must not decide."""


@dataclass(frozen=True, slots=True)
class DemonstratedStates:
    """What a policy makes of demonstrations, to be compared with.

    Args:
        mean, scale: float32 [W], of the features.
        standard: float32 [M, W], the states' features, standardised.
        to_go: float32 [M], decisions that the demonstration still took.
        task: int64 [M], index into `instructions`.
        instructions: of the tasks.
    """

    mean: Array
    scale: Array
    standard: Array
    to_go: Array
    task: Array
    instructions: tuple[str, ...]

    @classmethod
    def of(cls, features: Array, to_go: Array, instructions: Sequence[str]) -> DemonstratedStates:
        """From M states: features float32 [M, W], to_go [M] and the instruction of each."""
        names = tuple(dict.fromkeys(instructions))
        mean, spread = features.mean(axis=0), features.std(axis=0)
        scale = spread + np.float32(_SPREAD) * spread.mean() + np.finfo(np.float32).tiny
        task = np.array([names.index(words) for words in instructions])
        return cls(mean, scale, (features - mean) / scale, to_go.astype(np.float32), task, names)

    def nearest(self, features: Array, instruction: str) -> tuple[Array, Array]:
        """Of N observations, features float32 [N, W]: distance to the task's nearest state, and its `to_go`.

        The distance is the root mean square over standardised features.

        Raises:
            UserError: the task was not demonstrated.
        """
        if instruction not in self.instructions:
            raise UserError(
                f"the demonstrations show no '{instruction}', but {', '.join(map(repr, self.instructions[:5]))}: add "
                "some of it, or leave its task out."
            )
        mine = np.flatnonzero(self.task == self.instructions.index(instruction))
        known = self.standard[mine]
        distance, at = np.zeros(len(features), np.float32), np.zeros(len(features), np.int64)
        for row, standard in enumerate((features - self.mean) / self.scale):  # by rows: a row's bits are its own
            apart = np.square(known - standard).mean(axis=1)
            at[row] = apart.argmin()
            distance[row] = np.sqrt(apart[at[row]])
        return distance, self.to_go[mine[at]]


@dataclass(frozen=True, slots=True)
class Sight:
    """What a decision's observation says: distance to the nearest demonstrated state, and its decisions to go."""

    distance: float
    to_go: float


def index_of(kind: Kind, sights: Sequence[Sight]) -> float:
    """The index after the decisions whose observations are given, the first one's first; higher is worse."""
    if kind == "clock":
        return float(len(sights))
    recent = sights[-_MEAN:]
    if kind == "nearest":
        return sum(sight.distance for sight in recent) / len(recent)
    return len(sights) + sum(sight.to_go for sight in recent) / len(recent)


def indices(kind: Kind, sights: Sequence[Sight]) -> list[float]:
    """`index_of` after each decision of an episode."""
    return [index_of(kind, sights[: count + 1]) for count in range(len(sights))]


def raises_alarm(kind: Kind, sights: Sequence[Sight], limit: float) -> bool:
    """Whether the last decision of an episode so far raises an alarm."""
    return len(sights) > FIRST and index_of(kind, sights) > limit


@dataclass(frozen=True, slots=True)
class WatchedEpisode:
    """An episode for calibration or a test: sights of its decisions, and the control step at which each began."""

    instruction: str
    success: bool
    sights: Sequence[Sight]
    first_step: Sequence[int]
    steps: int


@dataclass(frozen=True, slots=True)
class Detector:
    """Says after each decision whether an episode is going to fail.

    Args:
        kind: of its index.
        policy: digest of the weights whose successes calibrated it; of another policy it knows nothing.
        chunk_len: control steps of a decision.
        limits: by instruction, the index above which it raises an alarm.
        states: None for a clock.
        facts: how it was made, for whoever reads the file.

    Example:
        >>> detector = load_detector(Path("detector.safetensors"))
        >>> sights.append(detector.see(features, "open the drawer"))
        >>> detector.alarm(sights, "open the drawer")
        False
    """

    kind: Kind
    policy: str
    chunk_len: int
    limits: Mapping[str, float]
    states: DemonstratedStates | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def see(self, features: Array, instruction: str) -> Sight:
        """What an observation says, from its features float32 [W]."""
        assert self.states is not None, "a clock does not look"
        distance, to_go = self.states.nearest(features[None], instruction)
        return Sight(float(distance[0]), float(to_go[0]))

    def limit(self, instruction: str) -> float:
        """The index above which it raises an alarm.

        Raises:
            UserError: it was not calibrated for the task.
        """
        if instruction not in self.limits:
            known = ", ".join(map(repr, list(self.limits)[:5]))
            raise UserError(f"the detector was not calibrated for '{instruction}', but for {known}: make another one.")
        return self.limits[instruction]

    def alarm(self, sights: Sequence[Sight], instruction: str) -> bool:
        """Whether the last of these decisions raises an alarm; UserError as `limit`."""
        return raises_alarm(self.kind, sights, self.limit(instruction))

    def require_chunk_len(self, chunk_len: int, path: Path) -> None:
        """UserError unless a decision of the policy has as many control steps. path: the detector's."""
        if chunk_len != self.chunk_len:
            raise UserError(
                f"{path} watches decisions of {self.chunk_len} control steps, and the policy makes them for "
                f"{chunk_len}: calibrate it as the policy acts here."
            )

    def require_policy(self, digest: str, name: str, path: Path) -> None:
        """UserError unless `digest` is of the weights that calibrated it. name: of the policy. path: the detector's."""
        if digest != self.policy:
            raise UserError(
                f"{path} was calibrated with another policy ({self.policy[:12]}) than {name} ({digest[:12]}): "
                f"calibrate one with embodied-rl watch {name}, or name the policy that it is for."
            )


def calibrate(kind: Kind, episodes: Sequence[WatchedEpisode]) -> dict[str, float]:
    """The limit of each task: the quantile of its successes' highest index.

    Raises:
        UserError: nothing succeeded.
    """
    highest: dict[str, list[float]] = {episode.instruction: [] for episode in episodes}
    for episode in episodes:
        if episode.success:
            highest[episode.instruction].append(max(indices(kind, episode.sights)[FIRST:], default=0.0))
    together = [value for values in highest.values() for value in values]
    if not together:
        raise UserError(
            "no episode that calibrates succeeded, and a detector knows failures by what successes never do: watch "
            "more episodes, or a policy that succeeds now and then."
        )
    return {task: _quantile(values if len(values) >= FEW else together) for task, values in highest.items()}


def _quantile(values: Sequence[float]) -> float:
    """What one more of n such values exceeds with probability 1 - QUANTILE, or 1 / (n + 1) where they are few."""
    return float(np.quantile(values, QUANTILE, method="weibull"))


def save_detector(detector: Detector, path: Path) -> None:
    """Write a detector as one file: safetensors, whose header says the rest."""
    states = detector.states
    tensors = {} if states is None else {name: getattr(states, name) for name in _TENSORS}
    about = {
        "version": _VERSION,
        "kind": detector.kind,
        "policy": detector.policy,
        "chunk_len": detector.chunk_len,
        "limits": dict(detector.limits),
        "instructions": [] if states is None else list(states.instructions),
        "facts": dict(detector.facts),
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(save(tensors, {_HEADER: json.dumps(about)}))
    partial.replace(path)


_TENSORS = ("mean", "scale", "standard", "to_go", "task")


def load_detector(path: Path) -> Detector:
    """Read what `save_detector` wrote.

    Raises:
        UserError: there is no such file, it is no detector, or of another version.
    """
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads((file.metadata() or {})[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["version"] != _VERSION:
            raise UserError(f"{path} is a detector of version {about['version']}, here {_VERSION}: make it again.")
        states = DemonstratedStates(**tensors, instructions=tuple(about["instructions"])) if tensors else None
        names = ("kind", "policy", "chunk_len", "limits", "facts")
        return Detector(**{name: about[name] for name in names}, states=states)
    except OSError as error:
        raise UserError(f"cannot read the detector {path}: {error.strerror or 'there is no such file'}.") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no detector: embodied-rl watch makes one.") from error


def detector_digest(path: Path) -> str:
    """SHA-256 of a detector's file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class AlarmFigures:
    """How a detector did on episodes that did not calibrate it; None where none failed, or none succeeded.

    Args:
        kind: of its index.
        balanced_accuracy: mean of the shares of failures found and of successes left alone.
        found: share of the failures.
        false_alarms: share of the successes.
        decision: at which it raised the alarm, from 1, median over the failures; a missed one counts as its last.
        saved: share of the failures' control steps that came after the alarm.
        same_decision, same_saved: with its limits moved until there are no more false alarms than the clock's.
    """

    kind: Kind
    balanced_accuracy: float | None = None
    found: float | None = None
    false_alarms: float | None = None
    decision: float | None = None
    saved: float | None = None
    same_decision: float | None = None
    same_saved: float | None = None


def figures(limits: Mapping[Kind, Mapping[str, float]], episodes: Sequence[WatchedEpisode]) -> list[AlarmFigures]:
    """Try each kind with its limits, the clock's among them, on `episodes`."""
    won = [episode for episode in episodes if episode.success]
    lost = [episode for episode in episodes if not episode.success]
    if not won or not lost:
        return [AlarmFigures(kind) for kind in limits]

    def scores(kind: Kind, episode: WatchedEpisode) -> list[float]:
        """Its index over the limit, from the first decision that may raise an alarm."""
        limit = max(limits[kind][episode.instruction], float(np.finfo(np.float32).tiny))
        return [index / limit for index in indices(kind, episode.sights)[FIRST:]]

    most = sum(max(scores("clock", episode), default=0.0) > 1 for episode in won)
    found = []
    for kind in limits:
        highest = sorted((max(scores(kind, episode), default=0.0) for episode in won), reverse=True)
        level = highest[most] if most < len(highest) else 0.0
        at = [_first_above(scores(kind, episode), 1.0) for episode in lost]
        share = sum(when is not None for when in at) / len(lost)
        false = sum(value > 1 for value in highest) / len(won)
        same = [_first_above(scores(kind, episode), level) for episode in lost]
        found.append(AlarmFigures(kind, (share + 1 - false) / 2, share, false, *_early(lost, at), *_early(lost, same)))
    return found


def _first_above(scores: Sequence[float], level: float) -> int | None:
    """Number of the decision, from 0, whose score is the first above `level`."""
    return next((FIRST + number for number, score in enumerate(scores) if score > level), None)


def _early(lost: Sequence[WatchedEpisode], at: Sequence[int | None]) -> tuple[float, float]:
    """(median decision of the alarm, share of the control steps after it)."""
    decisions, saved = [], 0
    for episode, when in zip(lost, at, strict=True):
        decisions.append(len(episode.sights) if when is None else when + 1)
        saved += 0 if when is None else episode.steps - episode.first_step[when]
    return float(np.median(decisions)), saved / sum(episode.steps for episode in lost)
