"""Whether a vector env of an id can stand for its single ones: their episodes are compared before the first is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.rng import EpisodeStream, philox
from embodied_rl.sim.gymnasium.actions import drawn
from embodied_rl.sim.gymnasium.load import SUITE, spec_of
from embodied_rl.sim.gymnasium.probe import one_line
from embodied_rl.sim.gymnasium.spaces import ReadOptions
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv
from embodied_rl.sim.gymnasium.vector_env import VectorEntryVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv

_COMPARED = 10
"""Control steps over which episodes are compared."""
_SAME = ("cameras", "image_shape", "proprio_dim", "state_dim", "action_low", "action_high", "control_hz", "instructed")
"""What the info of both kinds must agree in."""


def open_envs(name: str, num_envs: int, read: ReadOptions) -> VecEnv:
    """The vector env that an id brings itself where its rows run the episodes of the id's single env, else single ones.

    `EnvInfo.reads` of single ones says what is wrong with the vector env. Of an id without single envs, a row must
    run the same episode as another one.

    Raises:
        UserError: There is no such id, neither kind can be made or read, or there is the vector env only, and it does
            not do.
    """
    spec = spec_of(name)
    single = None if spec.entry_point is None else GymnasiumVecEnv([name], num_envs, read)
    if spec.vector_entry_point is None or (single is not None and num_envs == 1):
        return single or GymnasiumVecEnv([name], num_envs, read)  # which says that there is neither
    env, reason = None, ""
    try:
        env = VectorEntryVecEnv(name, num_envs, read)
        reason = _unlike(name, env, single)
    except Exception as error:  # noqa: BLE001 - an env raises what it likes
        reason = one_line(error) if isinstance(error, UserError) else f"{type(error).__name__}: {one_line(error)}"
    if single is not None:
        single.close()  # what was compared; it opens its envs anew
    if env is not None and not reason:
        return env
    if env is not None:
        env.close()
    if single is None:
        raise UserError(f"{name} has a vector env only, which can't be used: {reason}")
    line = f"single envs: its own vector env can't be used ({reason})"
    single.info = replace(single.info, reads=(*single.info.reads, line))
    return single


def _unlike(name: str, env: VectorEntryVecEnv, single: GymnasiumVecEnv | None) -> str:
    """Run episodes of `env` beside each other, replace some of them, run some past their end, and compare.

    Returns:
        What is wrong; '' where nothing is. `env.info` says then whether there is a success flag.
    """
    if single is not None:
        for what in _SAME:
            if (its := getattr(env.info, what)) != (other := getattr(single.info, what)):
                return f"its {what} is {its}, the single env's {other}"
    last, episodes = env.num_envs - 1, _Episodes(env, f"{SUITE}/{name}")
    for rows in ({0: 0, last: 1}, {last: 0, 0: 2}):  # row by initial state
        episodes.begin(rows)
        episodes.go(_COMPARED // 2)
        episodes.begin({0: 3})  # the other one goes on
        episodes.go(_COMPARED)
    episodes.begin({0: 0, last: 4})
    episodes.go(env.info.max_episode_steps, until_one_ends=True)
    episodes.begin({0: 1})
    episodes.go(_COMPARED)
    if (state := _first_unlike(episodes, env if single is None else single, min(1, last))) is not None:
        whose = "the same in every row" if single is None else "that of the single env"
        return f"the episode of initial state {state} is not {whose}"
    if single is not None and env.told_success != single.info.has_success:
        return f"its info says {'of' if env.told_success else 'nothing of'} success, unlike that of the single env"
    env.info = replace(env.info, has_success=env.told_success)
    return ""


class _Episodes:
    """Episodes of random actions that run beside each other.

    shown: by episode, its initial state, and what was seen of it, to be compared.
    """

    def __init__(self, env: VecEnv, task: str) -> None:
        self._env, self.task = env, task
        self._running: dict[int, tuple[list[Any], np.random.Generator]] = {}
        self.shown: list[tuple[int, list[Any]]] = []

    def begin(self, states: Mapping[int, int]) -> None:
        """Begin an episode from an initial state in each of these envs, in place of what runs there."""
        self._env.reset(list(states), [EpisodeSpec(state, self.task, state, state) for state in states.values()])
        for (env_id, state), seen in zip(states.items(), self._look(list(states)), strict=True):
            trace = [seen]
            self.shown.append((state, trace))
            self._running[env_id] = trace, philox(state, EpisodeStream.GYMNASIUM_PROBE)

    def go(self, steps: int, *, until_one_ends: bool = False) -> None:
        """Step all that run, up to `steps` times."""
        low, high = self._env.info.action_low, self._env.info.action_high
        for _ in range(steps):
            if not (ids := list(self._running)):
                return
            actions = np.stack([drawn(draws, low, high) for _, draws in self._running.values()])
            result = self._env.step(ids, torch.from_numpy(actions[:, None]))
            facts = torch.stack([result.terminated, result.truncated, result.success, result.failed]).T.tolist()
            for env_id, seen, reward, flags in zip(
                ids, self._look(ids), result.reward[:, 0].tolist(), facts, strict=True
            ):
                self._running[env_id][0].append((seen, reward, flags))
            for env_id, (terminated, truncated, _, failed) in zip(ids, facts, strict=True):
                if terminated or truncated or failed:
                    del self._running[env_id]
            if until_one_ends and len(self._running) < len(ids):
                return

    def _look(self, env_ids: list[int]) -> list[Any]:
        out = self._env.new_observation(len(env_ids))
        lost = self._env.observe(env_ids, out) or ()
        parts = [part.numpy() for part in (out.images, out.proprio, out.state) if part is not None]
        seen = zip(*([row.tobytes() for row in part] for part in parts), out.instruction, strict=True)
        return [None if row in lost else each for row, each in enumerate(seen)]


def _first_unlike(episodes: _Episodes, env: VecEnv, env_id: int) -> int | None:
    """The initial state of the first episode that is another one where it runs in `env` alone; None: they are alike."""
    for state in dict.fromkeys(state for state, _ in episodes.shown):
        traces = [trace for other, trace in episodes.shown if other == state]
        alone = _Episodes(env, episodes.task)
        alone.begin({env_id: state})
        alone.go(max(map(len, traces)) - 1)
        if any(trace != alone.shown[0][1][: len(trace)] for trace in traces):
            return state
    return None
