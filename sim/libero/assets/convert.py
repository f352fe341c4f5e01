"""From what the exporter wrote in the isolated environment to a bundle of this project."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from embodied_rl.sim.bddl import parse_bddl
from embodied_rl.sim.libero.bundle import BlobStore, pack_array, pack_model, write_bundle
from embodied_rl.utils.suites import PRO_SUITES

_OWN_BLOB = 1 << 16
"""A texture or mesh part of at least this many bytes gets a blob of its own."""
_PARTS = {
    "tex_adr": ("tex_data",),
    "mesh_vertadr": ("mesh_vert", "mesh_polymapnum", "mesh_polymapadr"),
    "mesh_normaladr": ("mesh_normal",),
    "mesh_texcoordadr": ("mesh_texcoord",),
    "mesh_faceadr": ("mesh_face", "mesh_facenormal", "mesh_facetexcoord"),
    "mesh_bvhadr": ("bvh_aabb", "bvh_child", "bvh_nodeid", "bvh_depth"),
}
"""Large arrays of a model, by the field that says where each mesh or texture begins in them (in rows)."""


def convert(folder: Path, root: Path) -> None:
    """Make a bundle under `root` of the four files in `folder`; ValueError when they do not fit together."""
    task = json.loads((folder / "task.json").read_text())
    store = BlobStore(root)
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        states = arrays["init_states"]
        start = {name: pack_array(store, arrays[name]) for name in arrays.files if name != "init_states"}
    models = {}
    for kind in ("visual", "physics"):
        binary = (folder / f"{kind}.mjb").read_bytes()
        model = mujoco.MjModel.from_binary_path("scene.mjb", {"scene.mjb": binary})
        if states.shape[1] != 1 + model.nq + model.nv:
            raise ValueError(f"initial states have {states.shape[1]} numbers, the scene {1 + model.nq + model.nv}")
        models[kind] = pack_model(store, binary, cuts(model, binary))
    short, bddl = task.pop("name"), task["bddl"]
    language = parse_bddl(bddl, short).language
    bundle: dict[str, Any] = {
        **task,
        **models,
        "name": f"{task['suite']}/{short}",
        "start": start,
        "init_states": pack_array(store, states),
        # LIBERO-PRO's file names are those of the tasks that it varies; what it says to policies is in the BDDL file.
        "instruction": language if task["suite"] in PRO_SUITES else instruction(short),
        "bddl_language": language,
    }
    write_bundle(root, bundle)


def instruction(short_name: str) -> str:
    """The sentence that the benchmark gives to policies: the file name without its scene."""
    return re.sub(r"^[A-Z_]+_SCENE\d+_", "", short_name).replace("_", " ")


def cuts(model: mujoco.MjModel, binary: bytes) -> list[int]:
    """Byte offsets in an MJB of `model` where large textures and mesh parts begin and end."""
    found: list[int] = []
    for field, names in _PARTS.items():
        for name in names:
            values = np.ascontiguousarray(getattr(model, name))
            if values.nbytes < _OWN_BLOB:
                continue
            begin = binary.find(values.tobytes())
            row = values.itemsize * (values.shape[1] if values.ndim > 1 else 1)
            for first, last in _spans(np.asarray(getattr(model, field)), len(values)):
                if (last - first) * row >= _OWN_BLOB:
                    found += [begin + first * row, begin + last * row]
    return found


def _spans(addresses: np.ndarray[Any, Any], rows: int) -> Iterator[tuple[int, int]]:
    """First and last row of each part; parts without rows have address -1 or share an address."""
    borders = sorted({int(a) for a in addresses if a >= 0} | {rows})
    yield from pairwise(borders)
