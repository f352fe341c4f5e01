"""Opens ALOHA's envs: which cameras are drawn at which size, and what steps pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embodied_rl.sim.aloha.tasks import load_tasks, num_objects
from embodied_rl.sim.mujoco.factory import MujocoFactory, choose_renderer
from embodied_rl.sim.pinned_wheel import ALOHA
from embodied_rl.sim.state.joints import JointStateLayout
from embodied_rl.sim.state.staged import Shaping
from embodied_rl.sim.step_reward import RewardMode, choose_reward

USUAL_CAMERAS = ("top",)
"""gym-aloha's and LeRobot's."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is asked of ALOHA's envs.

    Args:
        width: of the images, in pixels; they are 4 : 3, as gym-aloha's 640 x 480.
        cameras: by name; (): none is drawn.
        renderer: 'auto', or a renderer that draws meshes.
        threads: that step and draw; None: one a core.
        reward, gamma: see `embodied_rl.sim.step_reward`; the simulator's own reward is the stage, 0 to 4.
    """

    width: int = 64
    cameras: tuple[str, ...] = ()
    renderer: str = "auto"
    threads: int | None = None
    reward: RewardMode = "auto"
    gamma: float = 1.0


def aloha_factory(suite: str, names: Sequence[str], setup: Setup) -> MujocoFactory:
    """What opens so many envs of `suite`; it can be pickled.

    Raises:
        UserError: gym-aloha is not installed, there is no such task, or nothing can draw.
    """
    tasks = tuple(load_tasks(suite, names))
    mode = choose_reward(setup.reward, has_success=True, task=tasks[0].name)
    renderer: Any = choose_renderer(setup.renderer, tasks, "fast").name if setup.cameras else "auto"  # never 'warp'
    return MujocoFactory(
        tasks,
        renderer,
        official=False,
        image_size=(max(1, round(setup.width * 3 / 4)), setup.width),
        threads=setup.threads,
        stop_at_success=mode != "native",
        cameras=setup.cameras,
        max_scene_bytes=2 << 30,
        ladders=ALOHA.root() / "ladders",
        layout=JointStateLayout.of(tasks, num_objects(suite)),
        shaping=Shaping("staged", setup.gamma) if mode == "progress" else None,
        pay_stages=mode == "native",
    )
