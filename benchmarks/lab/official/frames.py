"""Records what the official environment shows; runs as a script inside the isolated environment.

    MUJOCO_GL=osmesa python frames.py ASSETS OUT SIZE STEPS SUITE/NAME ...

For each task: a new environment, seed(0), reset, the first official initial state, then STEPS random actions.
OUT/suite/name.npz gets actions float32 [STEPS, 7], and for every frame (one after set_init_state, one a step): images
uint8 [T, 2, S, S, 3], row 0 at the top, cameras agentview and robot0_eye_in_hand; the poses from which they were drawn,
xpos [T, nbody, 3] and xmat [T, nbody, 9]; site_alpha [T, nsite]; after each step qpos [STEPS, nq].
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import robosuite_patch
from worker import Compiler, read_states

CAMERAS = ("agentview", "robot0_eye_in_hand")


def record(name: str, size: int, steps: int) -> dict[str, Any]:
    """The arrays of one task."""
    paths: Any = importlib.import_module("libero.libero")
    wrapper: Any = importlib.import_module("libero.libero.envs.env_wrapper")
    bddl = Path(paths.get_libero_path("bddl_files")) / f"{name}.bddl"
    state = read_states(Path(paths.get_libero_path("init_states")) / f"{name}.pruned_init")[0]
    env = wrapper.OffScreenRenderEnv(bddl_file_name=str(bddl), camera_heights=size, camera_widths=size)
    return record_env(env, state, steps)


def record_env(env: Any, state: Any, steps: int) -> dict[str, Any]:
    """The arrays of a new environment from an initial state; it is closed."""
    env.seed(0)
    env.env.reset()
    drawn: dict[str, Any] = {}
    render = env.sim.render

    def watch(**options: Any) -> Any:
        data, model = env.sim.data._data, env.sim.model._model
        drawn.update(xpos=data.xpos.copy(), xmat=data.xmat.copy(), site_alpha=model.site_rgba[:, 3].copy())
        return render(**options)

    env.sim.render = watch
    frames: list[dict[str, Any]] = []

    def keep(seen: Any) -> None:
        frames.append({**drawn, "images": np.array([seen[f"{camera}_image"][::-1] for camera in CAMERAS])})

    keep(env.set_init_state(state))
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (steps, 7)).astype(np.float32)
    qpos = []
    for action in actions:
        keep(env.step(action.astype(np.float64))[0])
        qpos.append(env.sim.data._data.qpos.copy())
    recorded = {key: np.array([frame[key] for frame in frames]) for key in frames[0]}
    env.close()
    return {**recorded, "actions": actions, "qpos": np.array(qpos)}


def main() -> None:
    """Record every task that the command line names."""
    assets, out, size, steps, *names = sys.argv[1:]
    os.environ.setdefault("MUJOCO_GL", "osmesa")
    robosuite_patch.apply()
    bindings: Any = importlib.import_module("robosuite.utils.binding_utils")
    bindings.MjSim.from_xml_string = Compiler(Path(assets), fill_missing=True, scratch=Path(out) / "stand_ins")
    for name in names:
        target = Path(out) / f"{name}.npz"
        target.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(target, **record(name, int(size), int(steps)))
        print(name, flush=True)


if __name__ == "__main__":
    main()
