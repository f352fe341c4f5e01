"""What an environment shows before its first episode: a success flag, and whether a seed repeats an episode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from embodied_rl.errors import UserError
from embodied_rl.rng import GYMNASIUM_RESET, EpisodeStream, philox
from embodied_rl.sim.gymnasium.actions import ActionMap, drawn
from embodied_rl.sim.gymnasium.spaces import ArrayObservation, ObservationLayout

SUCCESS_KEYS = ("is_success", "success")
"""What an env's info may call it when the goal holds."""
INSTRUCTION_KEYS = ("task", "instruction")
"""What an env's info may call what is to be done in an episode."""
INSTRUCTION_ATTRIBUTES = ("task_description", "task")
"""Where else an env may say it, as LeRobot's do."""
_COMPARED = 10
"""Control steps over which two episodes of one seed are compared."""
_TRIED = 8
"""Initial states that are tried until one does not break."""
_REPEATED = 4
"""Further initial states whose episodes are compared: a task may ignore its seed in some."""
_log = logging.getLogger("embodied_rl.gymnasium")


@dataclass(frozen=True, slots=True)
class Taken:
    """A control step. success: what info says of it; None where it says nothing."""

    seen: ArrayObservation
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None


@dataclass(frozen=True, slots=True)
class Probed:
    """What a task's episodes are like.

    has_success: whether info has a flag of `SUCCESS_KEYS`. repeatable: whether a seed gives one episode only.
    instruction: what the first episode says that is to be done; '' where it says nothing.
    """

    has_success: bool
    repeatable: bool
    instruction: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The first observation of an episode, and what it says that is to be done; '' where it says nothing."""

    seen: ArrayObservation
    instruction: str


def begin(env: gymnasium.Env[Any, Any], layout: ObservationLayout, init_state: int, seed: int) -> Begun:
    """Reset `env` to an episode of its own random numbers; whatever it raises comes through.

    Raises:
        ValueError: What it shows is not of the form that it declares, or not finite.
    """
    observation, info = env.reset(seed=reset_seed(init_state))
    env.unwrapped.np_random = philox(seed, EpisodeStream.GYMNASIUM_STEPS)
    return Begun(layout.read(observation), instruction_of(env, info))


def reset_seed(init_state: int) -> int:
    """What an env is reset with to an initial state."""
    return int(philox(init_state, GYMNASIUM_RESET).integers(2**31))


def instruction_of(env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> str:
    """What is to be done in the episode that has begun; '' where neither info nor the env says it in words."""
    said = [info.get(key) for key in INSTRUCTION_KEYS]
    said += [env.get_wrapper_attr(name) for name in INSTRUCTION_ATTRIBUTES if env.has_wrapper_attr(name)]
    return next((words.strip() for words in said if isinstance(words, str) and words.strip()), "")


def advance(env: gymnasium.Env[Any, Any], layout: ObservationLayout, action: Any) -> Taken:
    """A control step; `action` is as the env takes it. Whatever the env raises comes through.

    Raises:
        ValueError: What it gives is not of the form that it declares, or not finite, or a flag is neither 0 nor 1.
    """
    observation, reward, terminated, truncated, info = env.step(action)
    value = float(reward)
    if not np.isfinite(value):
        raise ValueError(f"the reward is {value}")
    over = _flag(np.asarray(terminated).item(), "terminated")  # of an array of several nobody knows which counts
    late = _flag(np.asarray(truncated).item(), "truncated")
    return Taken(layout.read(observation), value, over, late, success_of(info))


def success_of(info: Mapping[str, Any]) -> bool | None:
    """Whether the goal holds, as info says; None where it does not say.

    Raises:
        ValueError: It says something else than 0 or 1.
    """
    for key in SUCCESS_KEYS:
        if info.get(key) is not None:
            return _flag(info[key], f"info[{key!r}]")
    return None


def _flag(value: Any, name: str) -> bool:
    flags = np.asarray(value)
    if flags.dtype.kind not in "biuf" or not flags.size or not np.isin(flags, (0, 1)).all():
        raise ValueError(f"{name} is {value!r}, and only 0 and 1 say whether it holds")
    return bool(flags.any())


def probe(
    make: Callable[[], gymnasium.Env[Any, Any]], layout: ObservationLayout, actions: ActionMap, horizon: int
) -> Probed:
    """Run an episode in one env, some of other seeds, the first again there, and all of them in a new env.

    An episode runs to its end to find out whether info has a flag, as some only say it there.

    Raises:
        UserError: Every initial state that was tried breaks.
    """
    first, second = make(), make()
    try:
        state, reason = 0, ""
        while state < _TRIED:
            shown, reason, flag = _run(first, layout, actions, state, _COMPARED)
            if len(shown) > 1:
                break
            state += 1
        else:
            raise UserError(f"it breaks from each of {_TRIED} initial states: {reason}")
        others = range(state + 1, state + 1 + _REPEATED)
        once = [shown, *(_run(first, layout, actions, other, _COMPARED)[0] for other in others)]
        again, *_ = _run(first, layout, actions, state, _COMPARED)
        anew = [_run(second, layout, actions, other, _COMPARED)[0] for other in (state, *others)]
        if flag is None:
            _, _, flag = _run(first, layout, actions, state, horizon)
        return Probed(flag is not None, shown == again and once == anew, shown[0][-1])
    finally:
        for env in (first, second):
            close(env)


def close(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
    """Close `env`. One that raises is named and left: its episodes are over."""
    try:
        env.close()
    except Exception as error:  # noqa: BLE001 - an env raises what it likes
        _log.warning("%s did not close: %s: %s", env, type(error).__name__, one_line(error))


def _run(
    env: gymnasium.Env[Any, Any], layout: ObservationLayout, actions: ActionMap, state: int, steps: int
) -> tuple[list[Any], str, bool | None]:
    """Up to `steps` control steps of random actions.

    Returns:
        What was seen as far as nothing broke, to be compared; why it broke, if so; what info said of success last.
    """
    draws, shown, flag = philox(state, EpisodeStream.GYMNASIUM_PROBE), list[Any](), None
    try:
        begun = begin(env, layout, state, state)
        shown.append((*_bytes(begun.seen), begun.instruction))
        for _ in range(steps):
            taken = advance(env, layout, actions.convert(drawn(draws, actions.low, actions.high)))
            shown.append((*_bytes(taken.seen), taken.reward, taken.terminated, taken.truncated, taken.success))
            flag = taken.success if taken.success is not None else flag
            if taken.terminated or taken.truncated:
                break
    except Exception as error:  # noqa: BLE001 - an env raises what it likes
        return shown, f"{type(error).__name__}: {one_line(error)}", flag
    return shown, "", flag


def _bytes(seen: ArrayObservation) -> tuple[bytes, ...]:
    return seen.images.tobytes(), seen.proprio.tobytes(), seen.state.tobytes()


def one_line(error: Exception) -> str:
    """What an exception says."""
    return " ".join(str(error).split()) or type(error).__name__
