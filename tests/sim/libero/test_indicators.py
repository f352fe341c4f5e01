"""A burner is drawn by the knob's position when the control step began: LIBERO switches it after each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.tasks import Indicator, LiberoTask, load_task
from embodied_rl.sim.mujoco.indicators import compile_switches, lit_groups
from embodied_rl.sim.mujoco.task import JointRange
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.render.raycast import RaycastRenderer
from embodied_rl.types import Array, EpisodeSpec
from tests.sim.libero.exported_tasks import KNOB, NAME, SITE, install_fake


class Watching:
    """Notes which site groups each picture shows."""

    name = "watching"

    def __init__(self) -> None:
        self.shown: list[tuple[int, ...]] = []

    def add_scene(self, visual_model: mujoco.MjModel) -> int:
        return 0

    def remove_scene(self, scene: int) -> None:
        pass

    def render(
        self,
        scene: int,
        xpos: Array,
        xmat: Array,
        cameras: tuple[str, ...],
        out: Array,
        site_groups: tuple[int, ...] = (),
    ) -> None:
        self.shown.append(site_groups)


@pytest.fixture
def turning(tmp_path: Path) -> LiberoTask:
    """The knob starts below the threshold of 0.5 rad and turns on by itself."""
    install_fake(tmp_path)
    task = load_task(tmp_path, NAME)
    joint, states = task.build_physics().joint(KNOB), np.array(task.init_states)
    states[:, 1 + joint.qposadr[0]] = 0.49
    states[:, 1 + task.build_physics().nq + joint.dofadr[0]] = 4.0
    return replace(task, init_states=states)


def test_the_frame_after_a_step_shows_the_switch_as_it_was_before(turning: LiberoTask) -> None:
    renderer = Watching()
    env = MujocoVecEnv([turning], 1, image_size=8, renderer=renderer, threads=1, stop_at_success=False)
    env.reset([0], [EpisodeSpec(0, turning.name, 0, 0)])
    address = turning.build_physics().joint(KNOB).qposadr[0]
    before, wanted, positions = env.data(0).qpos[address], [], []
    out = env.new_observation(1)
    env.observe([0], out)
    wanted.append((3,) if before >= 0.5 else ())
    for _ in range(4):
        before = env.data(0).qpos[address]
        env.step([0], torch.zeros(1, 1, 7))
        positions.append(float(env.data(0).qpos[address]))
        env.observe([0], out)
        wanted.append((3,) if before >= 0.5 else ())
    assert renderer.shown == wanted
    assert positions[0] > 0.5, "it crossed in the first step"
    assert renderer.shown[1:3] == [(), (3,)], "so the second frame is still dark"
    env.reset([0], [EpisodeSpec(1, turning.name, 0, 0)])
    env.observe([0], out)
    assert renderer.shown[-1] == (), "a reset looks anew"


@pytest.mark.parametrize(
    ("rule", "lit"),
    [
        (JointRange((KNOB,), 0.5, above=True, need_all=False, inclusive=True), [False, True, True]),
        (JointRange((KNOB,), 0.5, above=True, need_all=False), [False, False, True]),
        (JointRange((KNOB,), 0.5, above=False, need_all=True, inclusive=True), [True, True, False]),
        (JointRange((KNOB, "robot0_joint1"), 0.5, above=True, need_all=True), [False, False, False]),
        (JointRange((KNOB, "robot0_joint1"), 0.5, above=True, need_all=False), [False, False, True]),
    ],
)
def test_ranges(turning: LiberoTask, rule: JointRange, lit: list[bool]) -> None:
    model = turning.build_physics()
    switches = compile_switches([Indicator(SITE, rule)], model)
    qpos = np.zeros(model.nq)
    found = []
    for angle in (0.4, 0.5, 0.6):
        qpos[model.joint(KNOB).qposadr[0]] = angle
        found.append(lit_groups(switches, qpos) == (3,))
    assert found == lit


def test_what_cannot_be_drawn_is_said(turning: LiberoTask) -> None:
    with pytest.raises(UserError, match="4 indicators; 3 can be drawn"):
        compile_switches(turning.indicators * 4, turning.build_physics())
    renderer, model = RaycastRenderer(), turning.build_visual()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with pytest.raises(UserError, match="draws no sites"):
        renderer.render(
            renderer.add_scene(model), data.xpos, data.xmat, ("agentview",), np.zeros((1, 8, 8, 3), np.uint8), (3,)
        )
