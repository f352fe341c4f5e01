"""The files of a run's folder that say what ran: config.yaml and run.json."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embodied_rl.config.train import AUTO, TrainConfig, dump_yaml, kind_of, load_yaml
from embodied_rl.errors import UserError

CONFIG_FILE = "config.yaml"


@contextmanager
def new_run(config: TrainConfig) -> Iterator[TrainConfig]:
    """The config with its folder named; UserError if that folder is taken."""
    if config.output == AUTO:
        when = time.strftime("%Y%m%d-%H%M%S")
        name = f"{config.suite}-{kind_of('algorithm', config.algorithm)}-seed{config.seed}-{when}"
        config = dataclasses.replace(config, output=str(Path("runs") / name))
    folder = Path(config.output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already: choose another --output, or continue it with --resume {folder}")
    yield config


@contextmanager
def existing_run(folder: Path, iterations: int | None) -> Iterator[TrainConfig]:
    """The config of the run in `folder`, which may have been moved, with as many iterations in all (None: as it has).

    UserError if there is no run, or fewer iterations are asked for than it has.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no {CONFIG_FILE}.")
    config = dataclasses.replace(load_yaml(folder / CONFIG_FILE), output=str(folder))
    if iterations is not None and iterations <= config.iterations:
        raise UserError(f"--iterations {iterations}: {folder} is a run of {config.iterations} iterations; give more.")
    yield config if iterations is None else dataclasses.replace(config, iterations=iterations)


def write_config(config: TrainConfig) -> None:
    """Write the config into its run's folder, whole or not at all: a run that is resumed needs the one it has."""
    _replace(Path(config.output) / CONFIG_FILE, dump_yaml(config))


def write_run_info(folder: Path, stamp: dict[str, Any], config: TrainConfig, resume: bool) -> None:
    """run.json has a stamp for each session: a run may be resumed on another machine."""
    path = folder / "run.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sessions = json.loads(path.read_text()) if resume and path.is_file() else []
        _replace(path, json.dumps([*sessions, stamp], indent=1))
        write_config(config)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; choose another --output.") from error


def add_end_times(folder: Path, began: float) -> None:
    """Add to run.json how long this session took in all, evaluations and films too; a killed session has no such line.

    began: `time.perf_counter()` when it started. CPU time is the process's own, with all its threads and its imports.
    """
    path = folder / "run.json"
    *earlier, last = json.loads(path.read_text(encoding="utf-8"))
    times = {"seconds": round(time.perf_counter() - began, 1), "cpu_seconds": round(time.process_time(), 1)}
    _replace(path, json.dumps([*earlier, last | times], indent=1))


def _replace(path: Path, text: str) -> None:
    """Write the whole file or leave what was there."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
