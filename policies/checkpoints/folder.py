"""Checkpoint folders: read strictly, written all or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.integrity import CHECKSUMS, file_sha256, record, require_finite
from embodied_rl.utils.output import File, replace_folder

_RUN_STATE = "state.json"


def to_json(data: Mapping[str, Any]) -> bytes:
    """The same bytes for the same data."""
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; UserError when it is missing or holds none."""
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it from the checkpoint's source")
    record(path)
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): restore it from the checkpoint's source") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object: restore it from the checkpoint's source")
    return data


def read_config(folder: Path, architecture: str, version: int, keys: tuple[str, ...]) -> dict[str, Any]:
    """config.json of a checkpoint folder, which must be of `architecture` and format `version` and have `keys`.

    UserError otherwise; after an interrupted save it says how to get the one before back.
    """
    if not folder.is_dir():
        for retired in folder.parent.glob(f".{folder.name}.*.old"):
            raise UserError(f"a save to {folder} was interrupted, the one before is whole: mv {retired} {folder}")
        raise UserError(f"no checkpoint folder at {folder}: give the one that holds config.json and model.safetensors")
    config = read_json(folder / "config.json")
    if config.get("architecture") != architecture:
        raise UserError(
            f"{folder} holds architecture {config.get('architecture')!r}, not '{architecture}': "
            "choose the matching --policy"
        )
    if config.get("format") != version:
        raise UserError(
            f"{folder} has format {config.get('format')!r}, this version reads {version}: update embodied-rl"
        )
    for key in keys:
        if key not in config:
            raise UserError(f"{folder / 'config.json'} lacks '{key}': restore the file from the checkpoint's source")
    return config


def verify_checksums(folder: Path) -> None:
    """UserError unless every file is as the checkpoint's SHA-256 list says; a folder without a list passes.

    `save_policy` writes a list into the folder, a training run writes one beside it.
    """
    lists = [(folder / CHECKSUMS, "")]
    if folder.name == "policy" and (folder.parent / "trainer.pt").is_file():
        lists.append((folder.parent / _RUN_STATE, "policy/"))
    for path, prefix in lists:
        if not path.is_file() and not prefix:
            continue
        hashes = read_json(path).get("sha256")
        listed = hashes if isinstance(hashes, dict) else {}
        ours = {name.removeprefix(prefix): sha for name, sha in listed.items() if name.startswith(prefix)}
        if not ours:
            raise UserError(f"{path} lists no SHA-256 of the policy's files: restore the checkpoint from a copy")
        for name, expected in ours.items():
            file = folder / name
            if not file.is_file() or file_sha256(file) != expected:
                what = "has changed" if file.is_file() else "is missing"
                raise UserError(
                    f"checkpoint {folder} is corrupt ({name} {what}, by the SHA-256 in {path.name}): "
                    "restore it from a copy or use another checkpoint"
                )


def read_provenance(folder: Path) -> dict[str, Any]:
    """What the writer of the checkpoint recorded about it; nothing for a published one, which has no such file."""
    path = Path(folder) / "provenance.json"
    return read_json(path) if path.is_file() else {}


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU; UserError when it is missing, damaged or not finite."""
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it from the checkpoint's source")
    record(path)
    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is corrupt ({error}): restore it from a copy or train again") from error
    require_finite(state, path)
    return state


def check_keys(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], source: Path) -> None:
    """UserError naming every missing, unexpected and mis-shaped parameter of `found`."""
    problems = [f"missing {name}" for name in expected if name not in found]
    problems += [f"unexpected {name}" for name in found if name not in expected]
    problems += [
        f"{name} is {list(found[name].shape)}, expected {list(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    if problems:
        raise UserError(
            f"{source} does not fit the model in config.json, use the pair that belongs together: {'; '.join(problems)}"
        )


def require_agreement(published: Mapping[str, Any], runs: Mapping[str, Any], advice: str) -> None:
    """UserError naming the first key of a published config.json that contradicts what would run.

    Args:
        published: the config.json; keys that it lacks, or that are null, are not compared.
        runs: by key, the value that would run.
        advice: what to do, the end of the message.
    """
    for key, value in runs.items():
        found = published.get(key)
        if found is not None and found != value:
            raise UserError(f"config.json says {key} {found!r}, and what would run has {value!r}: {advice}")


def write_folder(folder: Path, files: Mapping[str, File], *, checksums: bool = False) -> None:
    """Write `files` (by their path inside) to `folder`, replacing what was there only once the new ones are on disk.

    checksums: add a list of their SHA-256, for `verify_checksums`.

    A full disk leaves the previous folder untouched. A kill leaves it whole: in `folder`, or, between the two last
    renames, beside it under a name that the error of `read_config` gives. UserError when the folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        listed = {CHECKSUMS: partial(_write_checksums, names=tuple(files))} if checksums else {}
        replace_folder(folder, {**files, **listed})
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"cannot write checkpoint {folder} ({reason}): free space or choose another folder; "
            "the previous checkpoint, if any, is intact"
        ) from error


def _write_checksums(path: Path, names: Sequence[str]) -> None:
    path.write_bytes(to_json({"sha256": {name: file_sha256(path.parent / name) for name in names}}))
