"""Episodes with an answer that comes late: who waits, who aligns, who goes on, and how hard the seams are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from embodied_rl.policies.realtime import ChunkPrefix
from embodied_rl.policy import Policy, action_array
from embodied_rl.real_robot.core.executor import Chunk, ChunkExecutor, ExecutorConfig, Overlap, PrefixRequest
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Array, EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv

STEP_NS = 50_000_000
Way = Literal["naive", "aligned", "newest", "rtc"]


@dataclass(frozen=True)
class Setting:
    """How chunks are executed.

    way: naive: executed whole, from its first action on when it comes; the arm waits meanwhile. aligned: each action at
        the step that it was decided for, chunks blended where they overlap. newest: the same with the newer chunk from
        its arrival on. rtc: newest, and each chunk goes on from the actions under way.
    latency: control steps from an observation to its chunk.
    horizon: control steps from one question to the next.
    """

    way: Way
    latency: int
    horizon: int

    @property
    def name(self) -> str:
        return f"{self.way}, latency {self.latency}, asked every {self.horizon}"


@dataclass
class OpenEpisode:
    """One episode under way: tool positions [m] and actions, a row a control step, and the steps that begin anew."""

    executor: ChunkExecutor
    positions: list[Array] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)
    seams: list[int] = field(default_factory=list)
    arriving: deque[tuple[int, Chunk]] = field(default_factory=deque)
    source: int | None = None
    decision: int = 0
    success: bool = False


@dataclass(frozen=True)
class Figures:
    """Of some episodes. jerk: RMS of the tool's, m/s^3; jump: RMS of an action's change, in action units."""

    episodes: int
    successes: int
    steps: float
    seam_jerk: float
    seam_jump: float
    jerk: float


def executor_for(setting: Setting, chunk_len: int, action_dim: int) -> ChunkExecutor:
    """As `deploy` would have it; the gripper's command, the last number, is never averaged."""
    overlap = Overlap.BLEND if setting.way == "aligned" else Overlap.NEWEST
    config = ExecutorConfig(
        chunk_len, action_dim, STEP_NS, overlap, discrete=(action_dim - 1,), execution_horizon=setting.horizon
    )
    return ChunkExecutor(config, 0)


def run_episodes(env: VecEnv, policy: Policy, specs: Sequence[EpisodeSpec], setting: Setting) -> Figures:
    """Run all episodes, as many at a time as `env` holds."""
    done: list[OpenEpisode] = []
    for first in range(0, len(specs), env.num_envs):
        done += _run_group(env, policy, specs[first : first + env.num_envs], setting)
    return figures(done)


def _run_group(env: VecEnv, policy: Policy, specs: Sequence[EpisodeSpec], setting: Setting) -> list[OpenEpisode]:
    env.reset(list(range(len(specs))), list(specs))
    episodes = [OpenEpisode(executor_for(setting, policy.chunk_len, policy.action_dim)) for _ in specs]
    alive, step = list(range(len(specs))), 0
    while alive:
        obs = env.new_observation(len(alive))
        env.observe(alive, obs)
        for row, index in enumerate(alive):
            episodes[index].positions.append(obs.proprio[row, :3].numpy().astype(np.float64))
            _deliver(episodes[index], setting, step)
        asked = [row for row, index in enumerate(alive) if _asks(episodes[index], setting, step)]
        if asked:
            members = [(episodes[alive[row]], specs[alive[row]]) for row in asked]
            _ask(policy, obs.rows(asked), members, step, setting)
        actions = np.stack([_act(episodes[index], step, policy.action_dim) for index in alive])
        result = env.step(alive, torch.from_numpy(actions[:, None]).float())
        over = result.terminated | result.truncated | result.failed
        for row, index in enumerate(alive):
            episodes[index].success |= bool(result.success[row])
        alive, step = [index for row, index in enumerate(alive) if not over[row]], step + 1
    return episodes


def _asks(episode: OpenEpisode, setting: Setting, step: int) -> bool:
    if setting.way == "naive":  # when nothing is left to do and nothing is on its way
        return not episode.arriving and episode.executor.action(step * STEP_NS) is None
    return episode.executor.due(step * STEP_NS)


def _ask(
    policy: Policy, obs: Observation, members: Sequence[tuple[OpenEpisode, EpisodeSpec]], step: int, setting: Setting
) -> None:
    """Decide for some envs; the answers come `latency` steps later, at once with a latency of 0."""
    requests = [episode.executor.request(step * STEP_NS) for episode, _ in members]
    rng = DecisionRng(
        np.array([spec.seed for _, spec in members]), np.array([episode.decision for episode, _ in members])
    )
    actions = action_array(_decide(policy, obs, rng, requests, setting))
    for (episode, _), chunk in zip(members, actions, strict=True):
        begins = step + setting.latency if setting.way == "naive" else step
        episode.arriving.append((step + setting.latency, Chunk(begins * STEP_NS, chunk)))
        episode.decision += 1
        _deliver(episode, setting, step)


def _decide(
    policy: Policy, obs: Observation, rng: DecisionRng, requests: Sequence[PrefixRequest], setting: Setting
) -> torch.Tensor:
    planned = [request.planned > 0 for request in requests]
    if setting.way != "rtc" or not any(planned):
        return policy.act(obs, rng, "greedy").actions
    continue_chunk = policy.traits.continue_chunk
    assert continue_chunk is not None
    previous = torch.from_numpy(np.stack([request.previous for request in requests])).float().clamp(-1, 1)
    weights = torch.from_numpy(np.stack([request.weights * (request.planned > 0) for request in requests])).float()
    return continue_chunk(obs, rng, ChunkPrefix(previous, weights))


def _deliver(episode: OpenEpisode, setting: Setting, step: int) -> None:
    while episode.arriving and episode.arriving[0][0] <= step:
        receipt = episode.executor.add(episode.arriving.popleft()[1], step * STEP_NS)
        assert receipt.accepted, receipt.reason


def _act(episode: OpenEpisode, step: int, action_dim: int) -> Array:
    """The step's action; while there is none the arm stays and the gripper keeps its command."""
    planned = episode.executor.action(step * STEP_NS)
    source = None if planned is None else max(part[0] for part in planned.parts)
    if source != episode.source and step > 0:
        episode.seams.append(step)
    episode.source = source
    if planned is None:
        action = np.zeros(action_dim)
        action[-1] = episode.actions[-1][-1] if episode.actions else -1.0
    else:
        action = np.clip(planned.values, -1.0, 1.0)
    episode.actions.append(action)
    return action


def figures(episodes: Sequence[OpenEpisode]) -> Figures:
    """Sum up; jerk of the steps that a seam touches, and of all steps."""
    seam_jerk, seam_jump, jerk = [], [], []
    for episode in episodes:
        actions = np.array(episode.actions)[:, :3]
        third = np.diff(np.array(episode.positions), 3, axis=0) * (1e9 / STEP_NS) ** 3
        jerk.append(third)
        for seam in episode.seams:  # the action of step s is seen in positions from s + 1 on: third[s - 2] is the first
            seam_jerk.append(third[max(seam - 2, 0) : seam + 1])
            seam_jump.append(actions[seam : seam + 1] - actions[seam - 1 : seam])
    return Figures(
        episodes=len(episodes),
        successes=sum(episode.success for episode in episodes),
        steps=float(np.mean([len(episode.actions) for episode in episodes])),
        seam_jerk=_rms(seam_jerk),
        seam_jump=_rms(seam_jump),
        jerk=_rms(jerk),
    )


def _rms(parts: Sequence[Any]) -> float:
    """Root of the mean square of the vectors' lengths; 0 without any."""
    if not parts:
        return 0.0
    rows = np.concatenate(parts)
    return float(np.sqrt(np.square(rows).sum(axis=1).mean())) if len(rows) else 0.0
