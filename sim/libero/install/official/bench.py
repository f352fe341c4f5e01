"""Times the official vector environment; runs as a script inside the isolated environment.

    MUJOCO_GL=osmesa python bench.py ASSETS OUT

Reads requests from stdin, one a line; answers each with one line of JSON on stdout, {"error": text} when it failed:

{"do": "start", "task": "suite/name", "count": N, "cameras": bool, "size": S}
    a SubprocVectorEnv of N processes instead of the last one, after seed 0, reset and the first N official initial
    states -> {"stand_ins": [asset files that are missing]}
{"do": "reset"}                          seed 0, then timed: reset and set_init_state -> {"wall", "cpu"}
{"do": "step", "actions": [T][N][7]}     timed: T calls of step -> {"wall", "cpu", "states": [N][1 + nq + nv]}
{"do": "memory"}                         -> {"unique": [bytes that each of the N processes has for itself]}
{"do": "close"}                          ends the processes -> {}

Seconds; CPU seconds are those of all processes together. Nothing of the official code is changed but for what lets it
run on this MuJoCo version, and for stand-ins of missing asset files. What it prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import robosuite_patch
from worker import Compiler, read_states


def unique_bytes() -> int:
    """Memory of this process that no other one shares (Linux)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


class Stack:
    """The official vector environment, one task at a time."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._envs: Any = None
        self._states = np.zeros((0, 0))

    def start(self, task: str, count: int, cameras: bool, size: int) -> dict[str, Any]:
        """New processes for `task`, in the first official initial states."""
        self.close()
        paths: Any = importlib.import_module("libero.libero")
        vector: Any = importlib.import_module("libero.libero.envs.venv")
        wrapper: Any = importlib.import_module("libero.libero.envs.env_wrapper")
        # get_env_attr reads attributes of the environment in its own process; its wrapper has no room for more methods
        wrapper.ControlEnv.cpu_seconds = property(lambda _: time.process_time())
        wrapper.ControlEnv.unique_bytes = property(lambda _: unique_bytes())
        wrapper.ControlEnv.stand_ins = property(lambda _: self._compiler.stand_ins)
        bddl = str(Path(paths.get_libero_path("bddl_files")) / f"{task}.bddl")
        if cameras:
            make = partial(wrapper.OffScreenRenderEnv, bddl_file_name=bddl, camera_heights=size, camera_widths=size)
        else:
            make = partial(wrapper.ControlEnv, bddl_file_name=bddl, has_offscreen_renderer=False, use_camera_obs=False)
        self._states = read_states(Path(paths.get_libero_path("init_states")) / f"{task}.pruned_init")[:count]
        self._envs = vector.SubprocVectorEnv([make] * count)
        self.reset()
        return {"stand_ins": sorted({path for paths in self._envs.get_env_attr("stand_ins") for path in paths})}

    def reset(self) -> dict[str, Any]:
        """The fixture poses are those of seed 0 and its first reset, as in our exported tasks."""
        self._envs.seed([0] * len(self._states))

        def job() -> None:
            self._envs.reset()
            self._envs.set_init_state(self._states)

        return self._timed(job)

    def step(self, actions: list[Any]) -> dict[str, Any]:
        """Control steps, one by one."""
        rows = np.array(actions, dtype=np.float32).astype(np.float64)

        def job() -> None:
            for row in rows:
                self._envs.step(row)

        return self._timed(job) | {"states": [state.tolist() for state in self._envs.get_sim_state()]}

    def memory(self) -> dict[str, Any]:
        """Of each process."""
        return {"unique": self._envs.get_env_attr("unique_bytes")}

    def close(self) -> dict[str, Any]:
        """End the processes."""
        if self._envs is not None:
            self._envs.close()
        self._envs = None
        return {}

    def _timed(self, job: Any) -> dict[str, float]:
        cpu, started = self._cpu_seconds(), time.perf_counter()
        job()
        seconds = time.perf_counter() - started
        return {"wall": seconds, "cpu": self._cpu_seconds() - cpu}

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(self._envs.get_env_attr("cpu_seconds"))


def main() -> None:
    """Serve requests until stdin ends."""
    assets, out = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    robosuite_patch.apply()
    bindings: Any = importlib.import_module("robosuite.utils.binding_utils")
    compiler = Compiler(Path(assets), fill_missing=True, scratch=Path(out) / "stand_ins", small_arena=False)
    bindings.MjSim.from_xml_string = compiler
    stack = Stack(compiler)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(stack, request.pop("do"))(**request)
        except Exception as error:  # noqa: BLE001 - the other side shows the reason and ends this process
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)
    stack.close()


if __name__ == "__main__":
    main()
