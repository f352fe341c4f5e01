"""Perturbed episodes, in the manner of LIBERO-PRO and LIBERO-Plus: another view, light, colour, layout or wording.

    variant = Perturber(tasks, ("camera", "instruction")).variant(spec)  # a task of its own, for an evaluation
    drawn = perturber.draw(task, spec, physics)                          # the same in the task's scene, for training

Every draw comes from the episode's own seed, so an episode is perturbed alike on every machine and in every order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mujoco
import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.rng import EpisodeStream, philox
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.perturb.objects import move_objects
from embodied_rl.sim.perturb.visual import (
    Values,
    change_colours,
    change_light,
    draw_camera,
    draw_colours,
    draw_light,
    move_camera,
)
from embodied_rl.sim.perturb.words import paraphrase
from embodied_rl.types import Array, EpisodeSpec

KINDS = ("camera", "light", "texture", "object", "instruction")
_Look = tuple[Callable[[np.random.Generator, float], Values], Callable[[mujoco.MjModel, Values], None]]
_LOOKS: dict[str, _Look] = {
    "camera": (draw_camera, move_camera),
    "light": (draw_light, change_light),
    "texture": (draw_colours, change_colours),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One perturbed episode. task: has one initial state, number 0; drawn: what was changed, by kind, plain values."""

    task: MujocoTask
    drawn: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for one episode.

    Args:
        state: float64 [1 + nq + nv], the initial state.
        instruction: what the policy is told.
        changes: what was changed, by kind, plain values.
    """

    state: Array
    instruction: str
    changes: Mapping[str, Any]


def variant_spec(spec: EpisodeSpec) -> EpisodeSpec:
    """What to reset an environment of variants to: the variant's task and its only initial state."""
    return replace(spec, task=f"{spec.task}#{spec.episode_id}", init_state=0)


class Perturber:
    """Makes the variants of `tasks`. level: scales every shift, turn and tint; words do not depend on it.

    A variant's visual model is made when it is asked for, so that variants cost no memory before they run. UserError
    for a negative level and for kinds that are unknown or named twice.
    """

    def __init__(self, tasks: Sequence[MujocoTask], kinds: Sequence[str], level: float = 1.0) -> None:
        if level < 0 or not math.isfinite(level):
            raise UserError(f"the level of a perturbation must not be negative, got {level}.")
        for kind in kinds:
            if kind not in KINDS:
                raise UserError(f"unknown perturbation '{kind}'.{suggest(kind, KINDS)}")
            if kinds.count(kind) > 1:
                raise UserError(f"perturbation '{kind}' is named twice.")
        self.kinds = [kind for kind in KINDS if kind in kinds]
        """In the order in which they are drawn."""
        self.level = level
        self._tasks = {task.name: task for task in tasks}
        self._physics: dict[str, mujoco.MjModel] = {}

    def variant(self, spec: EpisodeSpec) -> Variant:
        """The task of one episode, perturbed."""
        task = self._tasks[spec.task]
        drawn = self.draw(task, spec, partial(self._model, task))
        variant = replace(
            task,
            name=variant_spec(spec).task,
            instruction=drawn.instruction,
            init_states=drawn.state[None],
            train_states=range(0),
            heldout_states=range(1),
            build_physics=partial(self._model, task),
            build_visual=partial(_build_look, task, drawn.changes),
        )
        return Variant(variant, drawn.changes)

    def draw(self, task: MujocoTask, spec: EpisodeSpec, physics: Callable[[], mujoco.MjModel]) -> Drawn:
        """What changes in the episode `spec` of `task`; physics: the task's model, asked for where objects move."""
        changes: dict[str, Any] = {}
        state, instruction = task.init_states[spec.init_state], task.instruction
        if "object" in self.kinds:
            state, changes["object"] = move_objects(physics(), state, _rng(spec, "object"), self.level)
        if "instruction" in self.kinds:
            changes["instruction"] = instruction = paraphrase(instruction, _rng(spec, "instruction"))
        for kind in self.kinds:
            if kind in _LOOKS:
                changes[kind] = _LOOKS[kind][0](_rng(spec, kind), self.level)
        return Drawn(state, instruction, changes)

    def _model(self, task: MujocoTask) -> mujoco.MjModel:
        """The physics model, which all variants of a task share."""
        if task.name not in self._physics:
            self._physics[task.name] = task.build_physics()
        return self._physics[task.name]


def changes_look(changes: Mapping[str, Any]) -> bool:
    """Whether any of these changes shows in a visual model."""
    return any(kind in changes for kind in _LOOKS)


def look(model: mujoco.MjModel, changes: Mapping[str, Any]) -> mujoco.MjModel:
    """A copy of a visual model with these changes; UserError for a scene that lacks what a kind changes."""
    model = copy.copy(model)
    for kind, (_, change) in _LOOKS.items():
        if kind in changes:
            change(model, changes[kind])
    return model


def _build_look(task: MujocoTask, changes: Mapping[str, Any]) -> mujoco.MjModel:
    return look(task.build_visual(), changes)


def _rng(spec: EpisodeSpec, kind: str) -> np.random.Generator:
    return philox(spec.seed, EpisodeStream[kind.upper()])
