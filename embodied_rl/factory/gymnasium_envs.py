"""The classes behind the ids of `gymnasium_ids`: our suites opened for gymnasium."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from embodied_rl.config.train import EnvConfig
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.sim.views.gymnasium import GymnasiumEnv, GymnasiumVectorEnv


class SuiteGymnasiumEnv(GymnasiumEnv):
    """`gymnasium.make("embodied_rl/tabletop_spatial-v0")`; arguments as `SuiteGymnasiumVectorEnv`.

    Example:
        >>> env = gymnasium.make("embodied_rl/tabletop_goal-v0", tasks=["turn_on_the_stove"], state=True, cameras=0)
    """

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        env, states = _open(1, render_mode, **options)
        super().__init__(env, states, render_mode=render_mode)


class SuiteGymnasiumVectorEnv(GymnasiumVectorEnv):
    """`gymnasium.make_vec("embodied_rl/tabletop_spatial-v0", num_envs=8)`.

    Args:
        num_envs: episodes that run at the same time.
        render_mode: None or 'rgb_array'.
        options: suite (of the id), tasks, image_size, cameras, state, reward, gamma, num_threads, as `make_vec_env`
            takes them; split: 'train' or 'heldout', the initial states that episodes are drawn from.

    Raises:
        UserError: An option is not one of these, or its value does not fit.
    """

    def __init__(self, num_envs: int = 1, *, render_mode: str | None = None, **options: Any) -> None:
        env, states = _open(num_envs, render_mode, **options)
        super().__init__(env, states, render_mode=render_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What an id takes besides its suite."""

    tasks: str | Sequence[str] = ()
    split: Literal["train", "heldout"] = "train"
    image_size: int = 64
    cameras: int = 2
    state: bool = False
    reward: Literal["sparse", "staged", "shaped"] = "sparse"
    gamma: float | None = None
    num_threads: int | None = None


def _open(num_envs: int, render_mode: str | None, *, suite: str, **given: Any) -> tuple[SuiteEnv, TaskStates]:
    """The simulator, and the initial states of `split`; given: as `_Options`."""
    known = [field.name for field in fields(_Options)]
    for name in given:
        if name not in known:
            raise UserError(f"embodied_rl/{suite}-v0 has no option '{name}'.{suggest(name, known)}")
    options = _Options(**given)
    if render_mode is not None and not options.cameras:
        raise UserError("render_mode needs a renderer: take cameras=1 or more, or no render_mode.")
    if options.split not in ("train", "heldout"):
        raise UserError(f"split must be 'train' or 'heldout', got '{options.split}'.")
    config = EnvConfig(
        num_envs=num_envs, num_threads=options.num_threads, reward=options.reward, reward_gamma=options.gamma
    )
    env = SuiteEnv.open(
        suite, config, tasks=options.tasks, image_size=options.image_size, cameras=options.cameras, state=options.state
    )
    return env, env.train_states if options.split == "train" else env.heldout_states
