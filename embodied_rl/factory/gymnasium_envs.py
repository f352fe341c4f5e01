"""The classes behind the ids of `gymnasium_ids`: our suites opened for gymnasium."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from embodied_rl.config.env import MujocoConfig
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import View
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.sim.views.gymnasium import GymnasiumEnv, GymnasiumVectorEnv
from embodied_rl.utils.console import LastingConsole


class UnexpectedArgument(UserError, TypeError):
    """An option that an id does not take, in the words of Python's own TypeError.

    Trainers try options of other environments (`frameskip`, `render_mode`), and leave out those that such a TypeError
    names: Stable-Baselines3 by its class, TorchRL by its words.
    """


class SuiteGymnasiumEnv(GymnasiumEnv):
    """`gymnasium.make("embodied_rl/tabletop_spatial-v0")`; arguments as `SuiteGymnasiumVectorEnv`.

    Example:
        >>> env = gymnasium.make("embodied_rl/tabletop_goal-v0", tasks=["turn_on_the_stove"], state=True, cameras=0)
    """

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        env, states = _open(type(self), 1, render_mode, **options)
        super().__init__(env, states, render_mode=render_mode)
        self.metadata["render_modes"] = _render_modes(env)


class SuiteGymnasiumVectorEnv(GymnasiumVectorEnv):
    """`gymnasium.make_vec("embodied_rl/tabletop_spatial-v0", num_envs=8)`.

    Args:
        num_envs: episodes that run at the same time.
        render_mode: None or 'rgb_array'.
        options: suite (of the id), tasks, image_size, cameras, state, reward, gamma, num_threads, as `make_vec_env`
            takes them; split: 'train' or 'heldout', the initial states that episodes are drawn from.

    Raises:
        UnexpectedArgument: An option is not one of these, or it is `render_mode` where nothing is drawn (cameras=0).
        UserError: An option's value does not fit.
    """

    def __init__(self, num_envs: int = 1, *, render_mode: str | None = None, **options: Any) -> None:
        env, states = _open(type(self), num_envs, render_mode, **options)
        super().__init__(env, states, render_mode=render_mode)
        self.metadata["render_modes"] = _render_modes(env)


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


def _open(
    kind: type, num_envs: int, render_mode: str | None, *, suite: str, **given: Any
) -> tuple[SuiteEnv, TaskStates]:
    """The simulator, and the initial states of `split`; given: as `_Options`; kind: whose arguments they are."""
    known = [field.name for field in fields(_Options)]
    for name in given:
        if name not in known:
            raise UnexpectedArgument(_unexpected(kind, name) + f".{suggest(name, known)}")
    options = _Options(**given)
    if render_mode is not None and not options.cameras:
        raise UnexpectedArgument(
            f"{_unexpected(kind, 'render_mode')}: with cameras=0 nothing is drawn; take cameras=1 or more."
        )
    if options.split not in ("train", "heldout"):
        raise UserError(f"split must be 'train' or 'heldout', got '{options.split}'.")
    config = MujocoConfig(
        num_envs=num_envs, num_threads=options.num_threads, reward=options.reward, reward_gamma=options.gamma
    )
    tasks, _ = load(suite, options.tasks, config).judged(LastingConsole(stderr=True))
    view = View(image_size=options.image_size, cameras=options.cameras, state=options.state)
    env = open_tasks(tasks, config, view)
    return env, env.train_states if options.split == "train" else env.heldout_states


def _unexpected(kind: type, name: str) -> str:
    return f"{kind.__name__}.__init__() got an unexpected keyword argument '{name}'"


def _render_modes(env: SuiteEnv) -> list[str]:
    """What `render_mode` may be; gymnasium's checker opens the environment with each of them."""
    return ["rgb_array"] if env.info.cameras else []
