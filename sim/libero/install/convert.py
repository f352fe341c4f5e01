"""From what the exporter wrote in the isolated environment to an exported task of this project."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.sim.bddl import parse_bddl
from embodied_rl.sim.libero.exported import BlobStore, pack_array, pack_model, write_exported
from embodied_rl.utils.suites import PRO_SUITES


def convert(folder: Path, root: Path) -> None:
    """Make an exported task under `root` of the four files in `folder`; ValueError when they do not fit together."""
    task = json.loads((folder / "task.json").read_text())
    store = BlobStore(root)
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        states = arrays["init_states"]
        start = {name: pack_array(store, arrays[name]) for name in arrays.files if name != "init_states"}
    if states.shape[1] != (size := task.pop("state_size")):
        raise ValueError(f"initial states have {states.shape[1]} numbers, the scene {size}")
    where = task.pop("cuts")
    models = {
        kind: pack_model(store, (folder / f"{kind}.mjb").read_bytes(), where[kind]) for kind in ("visual", "physics")
    }
    short, bddl = task.pop("name"), task["bddl"]
    language = parse_bddl(bddl, short).language
    exported: dict[str, Any] = {
        **task,
        **models,
        "name": f"{task['suite']}/{short}",
        "start": start,
        "init_states": pack_array(store, states),
        # LIBERO-PRO's file names are those of the tasks that it varies; what it says to policies is in the BDDL file.
        "instruction": language if task["suite"] in PRO_SUITES else instruction(short),
        "bddl_language": language,
    }
    write_exported(root, exported)


def instruction(short_name: str) -> str:
    """The sentence that the benchmark gives to policies: the file name without its scene."""
    return re.sub(r"^[A-Z_]+_SCENE\d+_", "", short_name).replace("_", " ")
