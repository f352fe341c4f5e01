"""The folder of a training run: claimed by one process, with the config that a resume needs.

Imports neither torch nor a simulator: a taken folder or a damaged config is refused before they load.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embodied_rl.config.train import (
    AUTO,
    TrainConfig,
    as_written_today,
    dump_yaml,
    from_dict,
    kind_of,
    read_yaml,
    to_dict,
)
from embodied_rl.errors import UserError
from embodied_rl.utils.lock import LOCK, locked
from embodied_rl.utils.processes import peak_memory
from embodied_rl.utils.words import counted

CONFIG_FILE, RUN_INFO = "config.yaml", "run.json"
MAY_DIFFER = frozenset(
    {
        "output",
        "iterations",
        "device",
        "num_threads",
        "track",
        "trace",
        "videos",
        "env.num_threads",
        "env.processes",
        "learner.num_processes",
        "scheduler.workers",
        "scheduler.address",
        "learner.fsdp",
        "checkpoint.every",
        "checkpoint.keep",
    }
)
"""Keys of config.yaml that may be edited before a resume: how far and on what machine, not what is learned."""
_BEFORE_CONFIG = frozenset({LOCK, RUN_INFO, "run.new", "config.new", "metrics.jsonl", "tensorboard", "wandb"})
"""What a start may leave in its folder if it is killed before it writes the config."""
_KEYS_NAMED = 5
_REMOVE = "remove it and resume; only what it says of earlier sessions is lost."


@contextmanager
def new_run(config: TrainConfig) -> Iterator[TrainConfig]:
    """Claim the folder of a new run for the `with` block; yield the config with the folder as `output`.

    A start that fails before it has written the config leaves no folder behind, so that it can be tried again.

    Raises:
        UserError: the folder holds something, another process has it, or it can't be written.
    """
    folder, made = _new_folder(config)
    try:
        with locked(folder / LOCK, f"training in {folder}"):
            if _is_taken(folder):
                raise UserError(_taken(folder))
            _clear(folder)
            try:
                yield dataclasses.replace(config, output=str(folder))
            finally:
                if not (folder / CONFIG_FILE).exists():
                    _clear(folder)
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def existing_run(folder: Path, iterations: int | None) -> Iterator[TrainConfig]:
    """Claim the folder of a run that is to be resumed for the `with` block; yield its config.

    Args:
        folder: it may have been moved since the run began.
        iterations: how many the run is to have in all; None: as many as before.

    Raises:
        UserError: it isn't a run's folder, another process has it, its config lacks keys, or `iterations` is fewer
            than it had.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise UserError(_not_begun(folder))
    with locked(folder / LOCK, f"training in {folder}"):
        config = dataclasses.replace(_read_whole(path), output=str(folder))
        if iterations is not None and iterations < config.iterations:
            raise UserError(
                f"--iterations {iterations}: {folder} is a run of {counted(config.iterations, 'iteration')}; "
                "give as many or more."
            )
        yield config if iterations is None else dataclasses.replace(config, iterations=iterations)


def write_config(config: TrainConfig) -> None:
    """Write the config into its run's folder, whole or not at all."""
    _replace(Path(config.output) / CONFIG_FILE, dump_yaml(config))


def write_run_info(stamp: dict[str, Any], config: TrainConfig, *, resume: bool) -> None:
    """Write config.yaml, and into run.json a stamp for each session: a run may be resumed on another machine.

    Raises:
        UserError: run.json is damaged, or one of them can't be written.
    """
    folder = Path(config.output)
    sessions = read_run_info(folder) if resume and (folder / RUN_INFO).is_file() else []
    try:
        _replace(folder / RUN_INFO, json.dumps([*sessions, stamp], indent=1))
        write_config(config)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; make room there.") from error


def check_bundles(config: TrainConfig, bundles: str) -> None:
    """UserError where a run began on other bundles of LIBERO's tasks than are installed now.

    bundles: `factory.tasks.bundles_digest` of the tasks.
    """
    folder = Path(config.output)
    began = read_run_info(folder)[0].get("bundles", bundles) if (folder / RUN_INFO).is_file() else bundles
    if began != bundles:
        raise UserError(
            f"{folder} began on other bundles of {config.suite} than are installed now, so it can't go on as it was: "
            "begin a new run (--policy.checkpoint names this one's policy)."
        )


def end_session(folder: Path, began: float, *, finished: bool, result: str | None = None) -> None:
    """Add to run.json what this session took in all, evaluations and films too; a killed session has no such line.

    Args:
        folder: of the run.
        began: `time.perf_counter()` when the session started. CPU time and peak memory are the process's own, imports
            included.
        finished: the run has all its iterations, evaluations and films.
        result: what came out, in words.
    """
    *earlier, last = read_run_info(folder)
    outcome = {} if result is None else {"result": result}
    took = {
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time(), 1),
        "peak_memory_bytes": peak_memory(),
    }
    _replace(folder / RUN_INFO, json.dumps([*earlier, last | outcome | took | {"finished": finished}], indent=1))


def is_finished(folder: Path) -> bool:
    """Whether the newest session came to the run's end."""
    path = folder / RUN_INFO
    return path.is_file() and bool(read_run_info(folder)[-1].get("finished"))


def read_run_info(folder: Path) -> list[dict[str, Any]]:
    """The stamps in run.json, oldest first; UserError when it is damaged."""
    path = folder / RUN_INFO
    try:
        sessions = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): {_REMOVE}") from error
    if not (isinstance(sessions, list) and sessions and all(isinstance(stamp, dict) for stamp in sessions)):
        raise UserError(f"{path} is damaged (no list of sessions): {_REMOVE}")
    return sessions


def check_unchanged(config: TrainConfig, before: Mapping[str, Any]) -> None:
    """Raise UserError naming the keys that differ between `config` and the one that a checkpoint was saved under.

    Args:
        config: of the run that is resumed.
        before: `to_dict` of the config, as the checkpoint has it.
    """
    now, then = flat(to_dict(config)), flat(as_written_today(before))
    differ = [key for key in sorted({*now, *then}) if now.get(key) != then.get(key) and key not in MAY_DIFFER]
    if differ:
        changes = "; ".join(f"{key} was {then.get(key)!r} and is {now.get(key)!r}" for key in differ[:_KEYS_NAMED])
        raise UserError(
            f"{Path(config.output) / CONFIG_FILE} was edited since the checkpoint: {changes}{_more(differ)}. A run is "
            "resumed as it began: put the old values back, or begin a new run with --config."
        )


def _not_begun(folder: Path) -> str:
    """Why a folder without a config cannot be resumed, and what to do."""
    if not folder.is_dir():
        return f"{folder} is not the folder of a run: there is no such folder."
    found = {path.name for path in folder.iterdir()}
    if LOCK not in found or not found <= _BEFORE_CONFIG:
        return f"{folder} is not the folder of a run: it has no {CONFIG_FILE}."
    again = "give the command again that began it"
    if RUN_INFO in found and (command := read_run_info(folder)[-1].get("command")):
        again += f": {command}"
    return f"{folder} was stopped before its first update, and has nothing to go on from; {again}"


def _new_folder(config: TrainConfig) -> tuple[Path, bool]:
    """The folder that `output` names, with 'auto' one that nobody else has; and whether it was made just now."""
    folder = Path(config.output)
    try:
        if config.output == AUTO:
            return _own_folder(config), True
        made = not folder.exists()
        # Before a lock is written into a folder that is no run's.
        if not made and not (folder / LOCK).exists() and _is_taken(folder):
            raise UserError(_taken(folder))
        folder.mkdir(parents=True, exist_ok=True)
        return folder, made
    except OSError as error:
        where = "runs" if config.output == AUTO else config.output
        raise UserError(f"cannot make the folder {where}: {error.strerror}; choose another --output.") from error


def _own_folder(config: TrainConfig) -> Path:
    """A new folder under runs/; a number is added to its name if another run of this second has it."""
    when = time.strftime("%Y%m%d-%H%M%S")
    name = f"{config.suite}-{kind_of('algorithm', config.algorithm)}-seed{config.seed}-{when}"
    Path("runs").mkdir(exist_ok=True)
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError


def _is_taken(folder: Path) -> bool:
    """Whether it holds more than a start leaves that was killed before it wrote the config."""
    if not folder.is_dir():
        return True
    names = {path.name for path in folder.iterdir()}
    return not names <= (_BEFORE_CONFIG if LOCK in names else set())


def _taken(folder: Path) -> str:
    resume = f", or continue it with --resume {folder}" if (folder / CONFIG_FILE).is_file() else ""
    return f"{folder} exists already: choose another --output{resume}"


def _clear(folder: Path) -> None:
    """Remove everything but the lock."""
    for path in folder.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _read_whole(path: Path) -> TrainConfig:
    """The config in a file that must have every key: a default in place of a lost one would be another run."""
    data = as_written_today(read_yaml(path), source=str(path))
    config = from_dict(data, None, str(path))
    lost = [key for key in flat(to_dict(config)) if key not in flat(data)]
    if lost:
        raise UserError(
            f"{path} lacks {', '.join(lost[:_KEYS_NAMED])}{_more(lost)}: a run is resumed with every value that it "
            "began with; put them back."
        )
    return config


def flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """{'learner': {'lr': 1}} as {'learner.lr': 1}."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        flat |= {f"{key}.{name}": item for name, item in inner} if inner else {key: value}
    return flat


def _more(keys: list[str]) -> str:
    return f" and {len(keys) - _KEYS_NAMED} more" if len(keys) > _KEYS_NAMED else ""


def _replace(path: Path, text: str) -> None:
    """Write the whole file or leave what was there."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
