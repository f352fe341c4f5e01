"""Records how official tasks settle, and scripted picks; runs as a script inside an isolated environment of any MuJoCo.

    python settle.py ASSETS OUT STATES STEPS SUITE/NAME[:pick] ...

For each task: a new environment, seed(0), reset, then the official initial states 0 to STATES - 1, each followed by
STEPS control steps of zero action with an open gripper. OUT/suite/name.npz gets
  start_*         what env.reset leaves behind, which every state begins with, by the golden data's names
  fixed           body poses of the scene that are no part of a state: pos and quat [nbody, 7]
  settled         body positions after the last step, float64 [STATES, nbody, 3]
  bodies          their names
  on, holds       the 'on' facts between two objects that the task begins with, as JSON (root bodies and contact geoms),
                  and bool [STATES, facts], whether the official predicate holds after the last step
  picked, bowl    with :pick, bool [STATES], success of `pick.Pick` from each state; where the bowl is then [STATES, 3]
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import physics_scene
import pick
import worker

_REST = np.array([0.0] * 6 + [pick.OPEN])


class Scene:
    """An official environment whose states all begin with what its first reset left behind."""

    def __init__(self, name: str) -> None:
        paths: Any = importlib.import_module("libero.libero")
        wrapper: Any = importlib.import_module("libero.libero.envs.env_wrapper")
        bddl = Path(paths.get_libero_path("bddl_files")) / f"{name}.bddl"
        self.states = worker.read_states(Path(paths.get_libero_path("init_states")) / f"{name}.pruned_init")
        self.env = wrapper.ControlEnv(bddl_file_name=str(bddl), has_offscreen_renderer=False, use_camera_obs=False)
        self.env.seed(0)
        self.env.env.reset()
        self.model, self.data = self.env.sim.model._model, self.env.sim.data._data
        self.start = worker.start(self.env.robots[0], self.data)

    def begin(self, state: int) -> None:
        """Put the environment into a state, as the first one after a reset."""
        robot, start = self.env.robots[0], self.start
        control = robot.controller
        self.data.qacc_warmstart[:], self.data.ctrl[:] = start["qacc_warmstart0"], start["ctrl0"]
        control.goal_ori, control.goal_pos = start["ctl_goal_ori0"].copy(), start["ctl_goal_pos0"].copy()
        robot.gripper.current_action = start["gripper_current_action0"].copy()
        for name in worker.STALE:
            setattr(control, name, start[f"stale_{name}"].copy())
        self.env.env.timestep, self.env.env.done = 0, False
        self.env.set_init_state(self.states[state])
        control.new_update = bool(start["stale_new_update"])

    def facts(self) -> list[tuple[str, str, str]]:
        """The 'on' facts of the task's beginning whose both sides are objects."""
        env = self.env.env
        found = [tuple(fact) for fact in env.parsed_problem["initial_state"] if fact[0] == "on"]
        return [fact for fact in found if all(name in env.objects_dict for name in fact[1:])]


def record(name: str, states: int, steps: int, *, picks: bool) -> dict[str, Any]:
    """The arrays of one task."""
    scene = Scene(name)
    model, env, facts = scene.model, scene.env.env, scene.facts()
    settled, holds = [], []
    for state in range(states):
        scene.begin(state)
        for _ in range(steps):
            scene.env.step(_REST)
        settled.append(scene.data.xpos.copy())
        holds.append([bool(env._eval_predicate(fact)) for fact in facts])
    found: dict[str, Any] = {f"start_{key}": value for key, value in scene.start.items()}
    found |= {
        "fixed": np.hstack([model.body_pos, model.body_quat]),
        "settled": np.array(settled),
        "bodies": np.array([model.body(i).name for i in range(model.nbody)]),
        "on": json.dumps([_fact(env, *fact[1:]) for fact in facts]),
        "holds": np.array(holds, dtype=bool).reshape(states, len(facts)),
    }
    if picks:
        outcomes = [_pick(scene, state) for state in range(states)]
        found |= {"picked": np.array([won for won, _ in outcomes]), "bowl": np.array([bowl for _, bowl in outcomes])}
    scene.env.close()
    return found


def _fact(env: Any, first: str, second: str) -> dict[str, Any]:
    thing, other = env.get_object(first), env.get_object(second)
    return {
        "body": thing.root_body,
        "other": other.root_body,
        "body_geoms": thing.contact_geoms,
        "other_geoms": other.contact_geoms,
    }


def _pick(scene: Scene, state: int) -> tuple[bool, Any]:
    scene.begin(state)
    for _ in range(pick.SETTLE_STEPS):
        scene.env.step(_REST)
    script, won = pick.Pick(scene.model, scene.data), False
    for _ in range(pick.STEPS):
        scene.env.step(script.act())
        won = won or bool(scene.env.check_success())
    return won, scene.data.body(pick.BOWL).xpos.copy()


def main() -> None:
    """Record every task that the command line names."""
    assets, out, states, steps, *names = sys.argv[1:]
    os.dup2(2, 1)  # the official code prints
    worker.prepare()
    bindings: Any = importlib.import_module("robosuite.utils.binding_utils")
    compiler = worker.Compiler(Path(assets), fill_missing=False, scratch=Path(out) / "stand_ins")
    bindings.MjSim.from_xml_string = lambda xml: compiler(physics_scene.without_images(xml))
    for word in names:
        name, _, picks = word.partition(":")
        target = Path(out) / f"{name}.npz"
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part.npz")
        np.savez_compressed(part, **record(name, int(states), int(steps), picks=bool(picks)))
        part.replace(target)
        gc.collect()  # robosuite's objects refer to each other; a scene is hundreds of MB


if __name__ == "__main__":
    main()
