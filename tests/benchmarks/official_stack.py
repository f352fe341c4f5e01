"""A stand-in for hf-libero and robosuite: packages of the same names and calls, for the real worker to run."""

from __future__ import annotations

import pickle
import shlex
import sys
import zipfile
from pathlib import Path

from embodied_rl.sim.libero.install.environment import Environment
from embodied_rl.types import Array

_LIBERO = """
from pathlib import Path

def get_libero_path(name):
    return str(Path(__file__).parent / {"init_states": "init_files"}.get(name, name))
"""
_WRAPPER = """
import os
import numpy as np
from robosuite.utils import binding_utils

XML = '''<mujoco><asset><texture name="t" type="2d" file="{file}"/></asset><worldbody><body><freejoint/>
<geom size=".1"/></body></worldbody></mujoco>'''

class ControlEnv:
    def __init__(self, bddl_file_name, has_offscreen_renderer=True, use_camera_obs=True, **sizes):
        text = open(bddl_file_name).read()
        if "broken" in text:
            raise RuntimeError("no such problem")
        from libero.libero import get_libero_path
        self.sim = binding_utils.MjSim.from_xml_string(XML.format(file=get_libero_path("assets") + "/lost.png"))
        self.made = [has_offscreen_renderer, use_camera_obs, sizes]
        self.state, self.seeded = np.zeros(3), None

    def seed(self, seed):
        self.seeded = seed

    def reset(self):
        assert self.seeded == 0, "not seeded before this reset"
        self.seeded = None
        self.state = np.full(3, -1.0)

    def set_init_state(self, state):
        assert (self.state == -1).all(), "no reset before set_init_state"
        self.state = np.array(state)

    def step(self, action):
        assert action.dtype == np.float64 and action.shape == (7,)
        if action[0] == 9:
            os._exit(3)
        self.state[:3] += action[:3]

class OffScreenRenderEnv(ControlEnv):
    pass
"""
_VECTOR = """
class SubprocVectorEnv:
    def __init__(self, makers):
        self.envs = [make() for make in makers]
    def seed(self, seeds):
        for env, seed in zip(self.envs, seeds, strict=True):
            env.seed(seed)
    def reset(self):
        for env in self.envs:
            env.reset()
    def set_init_state(self, states):
        for env, state in zip(self.envs, states, strict=True):
            env.set_init_state(state)
    def step(self, actions):
        for env, action in zip(self.envs, actions, strict=True):
            env.step(action)
    def get_env_attr(self, name):
        return [getattr(env, name) for env in self.envs]
    def get_sim_state(self):
        return [env.state for env in self.envs]
    def close(self):
        self.envs = []
"""
_BINDINGS = """
class MjModel: pass
class MjData: pass
class MjSim:
    def __init__(self, model):
        self.model = model
    @classmethod
    def from_xml_string(cls, xml):
        raise AssertionError("the worker compiles")
"""
LOST = "lost.png"
"""The one asset file that every scene of this stack names; it is missing."""


class FakeEnvironment(Environment):
    """This interpreter with the stand-ins above; `build` is counted in `built`."""

    built = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.python = folder / "python"

    def build(self) -> None:
        FakeEnvironment.built += 1
        files = {
            "libero/__init__.py": "",
            "libero/libero/__init__.py": _LIBERO,
            "libero/libero/envs/__init__.py": "",
            "libero/libero/envs/env_wrapper.py": _WRAPPER,
            "libero/libero/envs/venv.py": _VECTOR,
            "robosuite/__init__.py": "",
            "robosuite/utils/__init__.py": "",
            "robosuite/utils/binding_utils.py": _BINDINGS,
        }
        for name, text in files.items():
            path = self.site_packages() / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        site = shlex.quote(str(self.site_packages()))
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {shlex.quote(sys.executable)} "$@"\n')
        self.python.chmod(0o755)

    def site_packages(self) -> Path:
        return self.folder / "site-packages"

    def add_task(self, name: str, states: Array, bddl: str = "(define)") -> None:
        """A task 'suite/short_name' with these official initial states."""
        package = self.site_packages() / "libero" / "libero"
        problem, saved = package / "bddl_files" / f"{name}.bddl", package / "init_files" / f"{name}.pruned_init"
        for path in (problem, saved):
            path.parent.mkdir(parents=True, exist_ok=True)
        problem.write_text(bddl)
        with zipfile.ZipFile(saved, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(states))
