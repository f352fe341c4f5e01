"""The folder of a training run: claimed by one process, with the config that a resume needs.

Imports neither torch nor a simulator: a taken folder or a damaged config is refused before they load.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embodied_rl.config.earlier import as_written_today, with_later_options
from embodied_rl.config.train import AUTO, TrainConfig, dump_yaml, from_dict, iterations_of, kind_of, to_dict
from embodied_rl.errors import UserError
from embodied_rl.jobs.run_info import RUN_INFO, add_session, read_run_info
from embodied_rl.telemetry.info import RunInfo
from embodied_rl.utils.lock import LOCK, locked
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.strict_yaml import read_mapping
from embodied_rl.utils.words import counted

CONFIG_FILE = "config.yaml"
DETECTOR = "detector.safetensors"
"""The run's copy of --people-detector."""
RECORDINGS = "recordings"
"""Where a run on an arm has what the arm did, a file a session."""
MAY_DIFFER = frozenset(
    {
        "output",
        "iterations",
        "device",
        "num_threads",
        "track",
        "trace",
        "videos",
        "imports",
        "robot_speed",
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
_BEFORE_CONFIG = frozenset(
    {
        LOCK,
        RUN_INFO,
        f"{RUN_INFO}.partial",
        f"{CONFIG_FILE}.partial",
        DETECTOR,
        "metrics.jsonl",
        "tensorboard",
        "wandb",
        RECORDINGS,
        "rollouts",
    }
)
"""What a start may leave in its folder if it is killed before it writes the config."""
_KEYS_NAMED = 5


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
def existing_run(folder: Path, iterations: int | None, episodes: int | None = None) -> Iterator[TrainConfig]:
    """Claim the folder of a run that is to be resumed for the `with` block; yield its config.

    Args:
        folder: it may have been moved since the run began.
        iterations: how many the run is to have in all; None: as many as before.
        episodes: the same in training episodes.

    Raises:
        UserError: it isn't a run's folder, another process has it, its config lacks keys, or `iterations` is fewer
            than it had.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise UserError(_not_begun(folder))
    with locked(folder / LOCK, f"training in {folder}"):
        config = dataclasses.replace(_read_whole(path), output=str(folder))
        if episodes is not None and iterations is None:
            iterations = iterations_of(config, episodes)
        if iterations is not None and iterations < config.iterations:
            raise UserError(
                f"--iterations {iterations}: {folder} is a run of {counted(config.iterations, 'iteration')}; "
                "give as many or more."
            )
        yield config if iterations is None else dataclasses.replace(config, iterations=iterations)


def write_config(config: TrainConfig) -> None:
    """Write the config into its run's folder, whole or not at all."""
    replace_text(Path(config.output) / CONFIG_FILE, dump_yaml(config))


def write_run_info(info: RunInfo, config: TrainConfig, *, resume: bool) -> None:
    """Write config.yaml, and a further session into run.json.

    Raises:
        UserError: run.json is damaged, or one of them can't be written.
    """
    folder = Path(config.output)
    try:
        add_session(folder, info, resume=resume)
        write_config(config)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; make room there.") from error


def check_unchanged(config: TrainConfig, before: Mapping[str, Any]) -> None:
    """Raise UserError naming the keys that differ between `config` and the one that a checkpoint was saved under.

    Args:
        config: of the run that is resumed.
        before: `to_dict` of the config, as the checkpoint has it.
    """
    now, then = flat(to_dict(config)), flat(with_later_options(as_written_today(before)))
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
    if RUN_INFO in found and (command := read_run_info(folder)[-1].command):
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
    data = with_later_options(as_written_today(read_mapping(path), source=str(path)))
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
