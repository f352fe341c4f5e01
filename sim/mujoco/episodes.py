"""What an episode shows: its task's scene, or the same scene with a look, words and a start of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.pool import FrameRenderer, Scene
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.perturb import Perturber, changes_look, look
from embodied_rl.types import Array, EpisodeSpec


@dataclass(frozen=True, slots=True)
class TrainingEpisodes:
    """How episodes of training may differ from their tasks' own. Can be pickled.

    Args:
        perturb: what is perturbed in episodes with a `perturb_seed`, kinds of `Perturber`; none: such are refused.
        perturb_level: how much, as `Perturber`.
    """

    perturb: tuple[str, ...] = ()
    perturb_level: float = 1.0


TASKS_OWN = TrainingEpisodes()
"""Episodes as the tasks say."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a policy is shown of an episode.

    Args:
        instruction: what it is told.
        drawn: the renderer's number of the scene, None where nothing is drawn.
        owned: the scene was added for this episode alone.
    """

    instruction: str
    drawn: int | None
    owned: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """How an episode begins.

    Args:
        state: float64 [1 + nq + nv], the initial state.
        shown: what a policy is shown.
    """

    state: Array
    shown: Shown


class Shows:
    """Begins episodes as their specs say; the physics model is the task's own in any case. Thread-safe.

    Args:
        tasks: of the environment.
        renderer: of the environment.
        training: how episodes may differ from the tasks' own.
    """

    def __init__(
        self, tasks: tuple[MujocoTask, ...], renderer: FrameRenderer | None, training: TrainingEpisodes
    ) -> None:
        self._renderer = renderer
        kinds, level = training.perturb, training.perturb_level
        self._perturber = Perturber(tasks, kinds, level) if kinds else None

    def begin(self, scene: Scene, spec: EpisodeSpec) -> Begun:
        """Where `spec` begins, and what it shows; UserError for what this environment was not opened for."""
        task = scene.task
        if spec.perturb_seed is None:
            return Begun(task.init_states[spec.init_state], Shown(task.instruction, scene.drawn))
        if self._perturber is None:
            raise UserError(f"episode {spec.episode_id} is to be perturbed, and this environment perturbs nothing")
        drawn = self._perturber.draw(task, replace(spec, seed=spec.perturb_seed), lambda: scene.model)
        if self._renderer is None or scene.visual is None or not changes_look(drawn.changes):
            return Begun(drawn.state, Shown(drawn.instruction, scene.drawn))
        number = self._renderer.add_scene(look(scene.visual, drawn.changes))
        return Begun(drawn.state, Shown(drawn.instruction, number, owned=True))

    def end(self, shown: Shown | None) -> None:
        """Free what was made for one episode, which shows nothing any more."""
        if shown is not None and shown.owned and shown.drawn is not None and self._renderer is not None:
            self._renderer.remove_scene(shown.drawn)
