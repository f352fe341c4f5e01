"""The official LIBERO stack as `bench libero` runs it: where it is found, and a process of it that answers requests."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install.export import Official
from embodied_rl.sim.libero.tasks import LiberoTask
from embodied_rl.types import Array

WORKER = Path(__file__).parents[1] / "sim" / "libero" / "install" / "official" / "bench.py"
ANSWER_SECONDS = 900.0
"""The official reset tries again for ever when anything in it fails, so an answer may never come."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a job: wall, and CPU of all processes together."""

    wall: float
    cpu: float


class OfficialEnvs:
    """A process with the official SubprocVectorEnv; official/bench.py says what it does. Close it."""

    def __init__(self, official: Official) -> None:
        official.link_assets()
        self._log = official.scratch / "bench.log"
        settings = {**official.settings(), "MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}
        command = [str(official.environment.python), "-s", str(WORKER), str(official.assets), str(official.scratch)]
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=settings,
                start_new_session=True,  # one group, so that none of its processes outlives it
            )

    def start(self, task: LiberoTask, count: int, cameras: bool, size: int) -> None:
        """N envs of `task` in its first initial states. UserError when it was exported from other assets."""
        answer = self._ask("start", task=task.name, count=count, cameras=cameras, size=size)
        if set(answer["stand_ins"]) != set(task.approximate):
            differ = sorted(set(answer["stand_ins"]) ^ set(task.approximate))
            raise UserError(
                f"'{task.name}' was not exported from these assets: {differ[0]} is only in one of them; "
                "give the same assets (--assets DIR) or install again: embodied-rl assets install libero"
            )

    def reset(self) -> Timing:
        """All envs to their first states."""
        return _timing(self._ask("reset"))

    def step(self, actions: Array) -> tuple[Timing, list[list[float]]]:
        """Control steps with actions float [T, N, 7]; also each env's [time, qpos, qvel] after them."""
        answer = self._ask("step", actions=actions.tolist())
        return _timing(answer), answer["states"]

    def memory(self) -> list[int]:
        """Bytes that each of the N processes has for itself alone."""
        return self._ask("memory")["unique"]

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a request that it ended before reading
                    pipe.close()

    def _ask(self, do: str, **words: Any) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"do": do, **words}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._fail(f"it ended with status {process.wait()}")
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
            return self._fail(f"no answer to '{do}' within {ANSWER_SECONDS:.0f} s")
        line = process.stdout.readline()
        if not line:
            return self._fail(f"it ended with status {process.wait()}")
        answer = json.loads(line)
        return self._fail(answer["error"]) if "error" in answer else answer

    def _fail(self, reason: str) -> dict[str, Any]:
        raise UserError(f"the official environment failed: {reason}; see {self._log}")


def _timing(answer: dict[str, Any]) -> Timing:
    return Timing(answer["wall"], answer["cpu"])
