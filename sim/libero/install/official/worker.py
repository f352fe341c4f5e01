"""Exports LIBERO tasks with the official code; runs as a script inside the isolated environment.

    python worker.py ASSETS OUT [--fill-missing]

Reads requests from stdin, one a line: {"suite", "name", "index"}; answers each with one line of JSON on stdout:
{"ok": true}, {"missing": [files]}, {"errno": of a full disk} or {"error": text}. OUT/altered.json, where it exists,
lists files in ASSETS that count as missing. A task goes to OUT/suite/name/: visual.mjb, physics.mjb, arrays.npz,
task.json.
What the official code prints goes to stderr.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import json
import os
import pickle
import re
import sys
import sysconfig
import traceback
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import physics_scene
import robosuite_patch
import stand_ins
from cuts import cuts, saved
from goal import describe_goal

STALE = ("ee_pos", "ee_ori_mat", "ee_pos_vel", "ee_ori_vel", "joint_pos", "joint_vel", "J_full", "mass_matrix")
"""What the controller computed at env.reset and still uses in the first substep."""
_PLACEMENT_TRIES = 20
_DRAWN_STATES = 50
_RESET_NOISE = 0.02
"""Of the joints, rad; robosuite's default."""


class MissingFiles(Exception):
    """Asset files that a scene names and that are not there."""


class Compiler:
    """Stands where robosuite compiles its XML: sees which files a scene needs, and keeps the text.

    small_arena: a smaller buffer for contacts than the official one, see physics_scene.small_arena. base: the working
    directory; files below it are named relative to it, since a model remembers their names, and should be the same
    wherever it is made. altered: files in `assets` that count as missing. poses: of all bodies as the last scene was
    compiled, before a reset places the fixtures.
    """

    def __init__(
        self,
        assets: Path,
        fill_missing: bool,
        scratch: Path,
        *,
        small_arena: bool = True,
        base: str | None = None,
        altered: Sequence[str] = (),
    ) -> None:
        self.base = base
        self.altered = {str(assets.resolve() / path) for path in altered}
        self.assets, self.fill_missing, self.scratch, self.small_arena = assets, fill_missing, scratch, small_arena
        self.xml = ""
        self.stand_ins: list[str] = []
        self.poses = np.zeros((0, 3)), np.zeros((0, 4))

    def __call__(self, xml: str) -> Any:
        missing = stand_ins.missing_files(xml, self.altered)
        names = [os.path.relpath(os.path.realpath(path), self.assets.resolve()) for path in missing]
        if missing and not self.fill_missing:
            raise MissingFiles(names)
        for path in missing:
            xml = xml.replace(f'"{path}"', f'"{stand_ins.make(path, self.scratch)}"')
        if self.base is not None:
            xml = re.sub(r' (meshdir|texturedir)="[^"]*"', "", xml.replace(f'"{self.base}/', '"'))
        if self.small_arena:
            xml = physics_scene.small_arena(xml)
        self.xml, self.stand_ins = xml, names
        bindings: Any = importlib.import_module("robosuite.utils.binding_utils")
        model = mujoco.MjModel.from_xml_string(xml)
        self.poses = model.body_pos.copy(), model.body_quat.copy()
        return bindings.MjSim(model)


def export(suite: str, name: str, index: int, out: Path, compiler: Compiler) -> None:
    """Write one task's files; the fixture poses are those of seed 0 and the first reset."""
    import libero.libero as official  # pyright: ignore[reportMissingImports]

    bddl = Path(official.get_libero_path("bddl_files")) / suite / f"{name}.bddl"
    env = _environment(bddl)
    robot = env.robots[0]
    full, data = env.sim.model._model, env.sim.data._data
    physics = physics_scene.build(compiler.xml, full)
    left = start(robot, data)
    folder = out / suite / name
    folder.mkdir(parents=True, exist_ok=True)
    where = {}
    for kind, model in (("visual", full), ("physics", physics)):
        binary = saved(model)
        (folder / f"{kind}.mjb").write_bytes(binary)
        where[kind] = cuts(model, binary)
    goal, burners = describe_goal(env)
    task = {
        "suite": suite,
        "name": name,
        "index": index,
        "mujoco": mujoco.__version__,
        "bddl": bddl.read_text(),
        "approximate": sorted(compiler.stand_ins),
        "goal": goal,
        "indicators": burners,
        "fixtures": _fixtures(env, full),
        "cameras": _cameras(full),
        "gripper": _gripper(robot, full),
        "cuts": where,
        "state_size": 1 + full.nq + full.nv,
    }
    (folder / "task.json").write_text(json.dumps(task))
    np.savez(folder / "arrays.npz", init_states=_init_states(bddl, official, env, compiler), **left)


def _environment(bddl: Path) -> Any:
    """A new environment after seed(0) and its first reset."""
    wrapper: Any = importlib.import_module("libero.libero.envs.env_wrapper")
    env = wrapper.ControlEnv(bddl_file_name=str(bddl), has_offscreen_renderer=False, use_camera_obs=False).env
    env.seed(0)
    _reset(env)
    return env


def _reset(env: Any) -> None:
    """The official wrapper's reset, which tries again where it finds no placement, but without hiding other errors."""
    errors: Any = importlib.import_module("robosuite.utils.errors")
    for _ in range(_PLACEMENT_TRIES):
        try:
            env.reset()
        except errors.RandomizationError:
            continue
        return
    raise RuntimeError(f"no placement of the objects was found in {_PLACEMENT_TRIES} tries")


def _init_states(bddl: Path, official: Any, env: Any, compiler: Compiler) -> np.ndarray[Any, Any]:
    """The 50 official states, then those of the unpruned file that are none of them; where there are none, new ones.

    A layout of LIBERO-plus has one state, and is for evaluation only.
    """
    folder = Path(official.get_libero_path("init_states")) / bddl.parent.name
    chosen = read_states(folder / f"{bddl.stem}.pruned_init")
    if chosen.ndim == 1:
        return chosen[None]
    every = folder / f"{bddl.stem}.init"
    known = {row.tobytes() for row in chosen}
    others = [row for row in read_states(every) if row.tobytes() not in known] if every.is_file() else []
    return np.vstack([chosen, *(others or draw_states(env, compiler))])


def draw_states(env: Any, compiler: Compiler, count: int = _DRAWN_STATES) -> list[np.ndarray[Any, Any]]:
    """States of env.reset with its default noise, before anything settles, as LIBERO's files have them.

    For libero_object, libero_goal and LIBERO-PRO, which have no unpruned file. LIBERO-PRO's own states lack the noise.
    """
    model = env.sim.model._model
    env.hard_reset = False  # the same scene again, without compiling it
    for robot in env.robots:
        robot.initialization_noise["magnitude"] = _RESET_NOISE
    states = []
    for seed in range(1, count + 1):
        # What stands on a fixture is placed at the fixture's new pose plus where its site is before the fixture moves.
        model.body_pos[:], model.body_quat[:] = compiler.poses
        env.seed(seed)
        _reset(env)
        states.append(env.sim.get_state().flatten())
    return states


def read_states(path: Path) -> np.ndarray[Any, Any]:
    """torch.save's archive of a NumPy array, read without torch; LIBERO-PRO's package has it in NumPy's format."""
    if not path.is_file():
        with np.load(path.with_name(f"{path.name}.npz"), allow_pickle=False) as arrays:
            return np.ascontiguousarray(arrays["states"], dtype=np.float64)
    with zipfile.ZipFile(path) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return np.ascontiguousarray(_ArrayUnpickler(io.BytesIO(archive.read(entry))).load(), dtype=np.float64)


class _ArrayUnpickler(pickle.Unpickler):
    """Makes NumPy arrays of numbers and nothing else, so that a file of states runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        """What a pickled array names; UnpicklingError for anything else."""
        module = module.replace("numpy.core", "numpy._core")  # before NumPy 2
        if (module, name) not in _OF_ARRAYS:
            raise pickle.UnpicklingError(f"a file of states holds arrays only, and this one asks for {module}.{name}")
        return super().find_class(module, name)


_OF_ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


def start(robot: Any, data: Any) -> dict[str, Any]:
    """Controller and solver as env.reset leaves them, by the golden data's names."""
    control = robot.controller
    left = {
        "qacc_warmstart0": data.qacc_warmstart,
        "ctrl0": data.ctrl,
        "ctl_initial_joint": control.initial_joint,
        "ctl_goal_ori0": control.goal_ori,
        "ctl_goal_pos0": control.goal_pos,
        "gripper_current_action0": robot.gripper.current_action,
        "stale_new_update": control.new_update,
    }
    left.update({f"stale_{name}": getattr(control, name) for name in STALE})
    return {name: np.array(value, dtype=np.float64) for name, value in left.items()}


def _fixtures(env: Any, model: Any) -> dict[str, Any]:
    found = {}
    for name, fixture in env.fixtures_dict.items():
        body = model.body(fixture.root_body)
        found[name] = {"body": fixture.root_body, "pos": body.pos.tolist(), "quat": body.quat.tolist()}
    return found


def _cameras(model: Any) -> dict[str, Any]:
    cameras = {}
    for i in range(model.ncam):
        camera = model.camera(i)
        cameras[camera.name] = {
            "body": model.body(int(camera.bodyid[0])).name,
            "pos": camera.pos.tolist(),
            "quat": camera.quat.tolist(),
            "fovy": float(camera.fovy[0]),
        }
    return cameras


def _gripper(robot: Any, model: Any) -> dict[str, Any]:
    gripper = robot.gripper
    ranges = [model.actuator(name).ctrlrange.tolist() for name in gripper.actuators]
    return {
        "finger_joints": list(gripper.joints),
        "finger_actuators": list(gripper.actuators),
        "ctrl_range": ranges,
        "speed": float(gripper.speed),
    }


def _answer(request: dict[str, Any], out: Path, compiler: Compiler) -> dict[str, Any]:
    try:
        export(request["suite"], request["name"], request["index"], out, compiler)
    except MissingFiles as error:
        return {"missing": error.args[0]}
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return {"errno": error.errno}
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    except Exception as error:  # noqa: BLE001 - one task's failure is reported and must not stop the others
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()  # robosuite's objects refer to each other; a scene is hundreds of MB
    return {"ok": True}


def prepare() -> None:
    """Patch robosuite and keep it from loading an OpenGL library: nothing is rendered here."""
    context = types.ModuleType("robosuite.renderers.context.egl_context")
    context.EGLGLContext = object  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules[context.__name__] = context
    robosuite_patch.apply()


def main() -> None:
    """Serve requests until stdin ends."""
    assets, out, *flags = sys.argv[1:]
    assets, scratch = Path(assets).resolve(), Path(out).resolve()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    prepare()
    packages = sysconfig.get_paths()["purelib"]
    os.chdir(packages)
    bindings: Any = importlib.import_module("robosuite.utils.binding_utils")
    listed = scratch / "altered.json"
    altered = json.loads(listed.read_text()) if listed.is_file() else ()
    compiler = Compiler(assets, "--fill-missing" in flags, scratch / "stand_ins", base=packages, altered=altered)
    bindings.MjSim.from_xml_string = compiler
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), scratch, compiler)), file=answers)


if __name__ == "__main__":
    main()
