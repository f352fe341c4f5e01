"""The file that a leaderboard is made from. Imports neither torch nor a simulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from embodied_rl.config.env import AUTO, EnvConfig, MujocoConfig
from embodied_rl.config.suites import SUITE
from embodied_rl.config.train import read_env
from embodied_rl.errors import UserError
from embodied_rl.evaluation.adastop import seed_looks
from embodied_rl.factory.made_for import import_modules_of
from embodied_rl.jobs.eval_request import benchmark_of
from embodied_rl.policies.checkpoints.hub import is_repository
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.policy import ActMode
from embodied_rl.utils.dataclass_io import read_dataclass
from embodied_rl.utils.strict_yaml import read_mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]*")


@dataclass(frozen=True, kw_only=True)
class LeaderboardOptions:
    """How the checkpoints of a leaderboard are measured and compared."""

    title: str = "Leaderboard"
    """Title of the page."""
    suites: tuple[str, ...] = (SUITE,)
    """Suites by their whole names, such as libero_spatial."""
    states_per_task: int | None = None
    """Only the first so many held-out states of each task (None: all)."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the episodes; several matter where actions are sampled."""
    protocol: str = AUTO
    """Whose way to run an episode, as `eval --protocol`."""
    mode: ActMode = "greedy"
    """Take the most likely action (greedy), or sample."""
    level: float = 0.05
    """How probable it is, at most, that any two equal policies are told apart."""
    compare: Literal["episodes", "seeds"] = "episodes"
    """episodes: these checkpoints, on the same initial states. seeds: the recipes, each by several checkpoints that
    were trained alike with different seeds."""
    looks: int | None = None
    """How often the test looks at the data; each look needs as many further states, or training seeds (None: 5, or one
    after every five training seeds)."""
    stop_early: bool = True
    """A policy whose comparisons are all decided runs no further states; without it every policy runs every state."""
    videos: int = 1
    """Failed episodes of each evaluation of which videos are recorded, spread over the tasks; 0: none."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policies are."""
    env: EnvConfig = field(default_factory=MujocoConfig)

    def __post_init__(self) -> None:
        if not self.suites or not self.seeds:
            raise UserError("a leaderboard needs at least one of suites and of seeds.")
        if self.videos < 0:
            raise UserError(f"videos must be at least 0, got {self.videos}.")
        if self.looks is not None and self.looks < 1:
            raise UserError(f"looks must be at least 1, got {self.looks}.")
        if self.states_per_task is not None and self.states_per_task < 1:
            raise UserError(f"states_per_task must be at least 1, got {self.states_per_task}.")


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """A leaderboard's file, read. checkpoints: by row; several are training seeds of one recipe."""

    checkpoints: dict[str, tuple[str, ...]]
    options: LeaderboardOptions

    @property
    def seeds_each(self) -> int:
        """Training seeds of each row that has several; UserError where rows have different numbers, or none has two."""
        counts = {row: len(sources) for row, sources in self.checkpoints.items() if len(sources) > 1}
        if len(set(counts.values())) != 1 or len(counts) < 2:
            said = ", ".join(f"{row} {count}" for row, count in counts.items()) or "none has several"
            raise UserError(f"compare: seeds needs two rows or more with as many checkpoints each; here: {said}.")
        return next(iter(counts.values()))


def read_leaderboard(path: Path) -> Leaderboard:
    """The leaderboard's file, checkpoints by whole paths; UserError for what can't be meant."""
    from embodied_rl.sim.libero.protocol import protocol

    data = read_mapping(path)
    checkpoints = data.pop("checkpoints", None)
    if not isinstance(checkpoints, dict) or not checkpoints:
        raise UserError(f"{path}: 'checkpoints' must name at least one, as in 'checkpoints: {{start: shipped}}'.")
    rows = {_row_name(name, path): _sources(str(name), value, path) for name, value in checkpoints.items()}
    for source in (source for sources in rows.values() for source in sources):
        import_modules_of(source)
    env = data.pop("env", {})
    options = read_dataclass(LeaderboardOptions, data, where="leaderboard", source=str(path))
    options = replace(options, env=read_env(env, options.suites[0], str(path)))
    for suite in options.suites:
        benchmark_of(suite)
    if options.protocol != AUTO:
        protocol(options.protocol)
    leaderboard = Leaderboard(rows, options)
    if options.compare == "seeds":
        seed_looks(leaderboard.seeds_each, options.looks, options.level)
    return leaderboard


def _row_name(name: Any, path: Path) -> str:
    if not _NAME.fullmatch(str(name)):
        raise UserError(f"{path}: '{name}' cannot name a row: take letters, digits, spaces and . _ + -.")
    return str(name)


def _sources(name: str, value: Any, path: Path) -> tuple[str, ...]:
    """A row's checkpoints; folders as whole paths, from the leaderboard's file."""
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(item, str) for item in listed):
        raise UserError(f"{path}: checkpoint '{name}' must be a folder, OWNER/NAME, shipped, or a list of them.")
    return tuple(_source(item, path) for item in listed)


def _source(text: str, path: Path) -> str:
    if is_shipped(text):
        return text
    for folder in (path.parent / text, Path(text)):
        if folder.exists():
            return str(folder.absolute())
    if is_repository(text):
        return text
    raise UserError(f"{path}: no checkpoint at {text}: name the folder that sft or train wrote.")


def describe_options(options: LeaderboardOptions) -> Mapping[str, Any]:
    """What a reader of the result must know."""
    return {
        "suites": list(options.suites),
        "states_per_task": options.states_per_task,
        "seeds": list(options.seeds),
        "mode": options.mode,
        "level": options.level,
        "compare": options.compare,
        "stop_early": options.stop_early,
    }
