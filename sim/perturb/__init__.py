"""Perturbed episodes, in the manner of LIBERO-PRO and LIBERO-Plus: another view, light, colour, layout or wording.

    variant = Perturber(tasks, ("camera", "instruction")).variant(spec)

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
from embodied_rl.rng import philox
from embodied_rl.sim.perturb.objects import move_objects
from embodied_rl.sim.perturb.visual import change_colours, change_light, move_camera
from embodied_rl.sim.perturb.words import paraphrase
from embodied_rl.sim.task import Task
from embodied_rl.types import EpisodeSpec

KINDS = ("camera", "light", "texture", "object", "instruction")
_STREAM = 2**40
"""Philox counter of the first kind: far above any decision's number, which the policy's draws are keyed by."""
_Change = Callable[[mujoco.MjModel, np.random.Generator, float], dict[str, Any]]
_VISUAL: dict[str, _Change] = {"camera": move_camera, "light": change_light, "texture": change_colours}


@dataclass(frozen=True, slots=True)
class Variant:
    """One perturbed episode. task: has one initial state, number 0; drawn: what was changed, by kind, plain values."""

    task: Task
    drawn: Mapping[str, Any]


def variant_spec(spec: EpisodeSpec) -> EpisodeSpec:
    """What to reset an environment of variants to: the variant's task and its only initial state."""
    return replace(spec, task=f"{spec.task}#{spec.episode_id}", init_state=0)


class Perturber:
    """Makes the variants of `tasks`. level: scales every shift, turn and tint; words do not depend on it.

    The models of a task are built once and stay in memory; a variant that looks different holds a copy of the visual
    one. UserError for a negative level and for kinds that are unknown or named twice.
    """

    def __init__(self, tasks: Sequence[Task], kinds: Sequence[str], level: float = 1.0) -> None:
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
        self._models: dict[tuple[str, bool], mujoco.MjModel] = {}

    def variant(self, spec: EpisodeSpec) -> Variant:
        """The task of one episode, perturbed. UserError for a scene that lacks what a kind changes."""
        task = self._tasks[spec.task]
        drawn: dict[str, Any] = {}
        state, instruction = task.init_states[spec.init_state], task.instruction
        if "object" in self.kinds:
            state, drawn["object"] = move_objects(
                self._model(task, visual=False), state, _rng(spec, "object"), self.level
            )
        if "instruction" in self.kinds:
            drawn["instruction"] = instruction = paraphrase(instruction, _rng(spec, "instruction"))
        look = self._model(task, visual=True)
        if any(kind in _VISUAL for kind in self.kinds):
            look = copy.copy(look)
            for kind in self.kinds:
                if kind in _VISUAL:
                    drawn[kind] = _VISUAL[kind](look, _rng(spec, kind), self.level)
        variant = replace(
            task, name=variant_spec(spec).task, instruction=instruction, init_states=state[None],
            train_states=range(0), heldout_states=range(1),
            build_physics=partial(self._model, task, visual=False), build_visual=lambda: look,
        )  # fmt: skip
        return Variant(variant, drawn)

    def _model(self, task: Task, *, visual: bool) -> mujoco.MjModel:
        key = task.name, visual
        if key not in self._models:
            self._models[key] = task.build_visual() if visual else task.build_physics()
        return self._models[key]


def _rng(spec: EpisodeSpec, kind: str) -> np.random.Generator:
    return philox(spec.seed, _STREAM + KINDS.index(kind))
