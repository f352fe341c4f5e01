"""The physics-only scene of an official scene: the same bodies and contacts without what only a renderer needs.

Runs inside the isolated environment.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import mujoco
import numpy as np

_COPIED = (
    "body_pos",
    "body_quat",
    "body_ipos",
    "body_iquat",
    "body_invweight0",
    "dof_invweight0",
    "dof_M0",
    "dof_length",
)
"""Taken from the official model: fixture poses, which it sets after it compiled, and constants that differ in rounding
or, for massless bodies, depend on visual geoms without an effect on the motion."""
_COMPARED = ("body_", "jnt_", "dof_", "site_", "actuator_", "sensor_", "eq_", "tendon_", "pair_", "exclude_", "cam_")
_INDICES = ("adr", "num", "_bvh", "plugin", "_matid", "simple", "user", "_rgba")
"""Fields that count geoms, names or materials, or are colours: they differ on purpose."""


def build(xml: str, full: Any) -> Any:
    """Compile `xml` without visual geoms, textures, materials and lights, with the poses and constants of `full`.

    ValueError when anything that moves would differ from `full`.
    """
    model = mujoco.MjModel.from_xml_string(strip(xml))
    for name in _COPIED:
        getattr(model, name)[:] = getattr(full, name)
    _compare(model, full)
    return model


def strip(xml: str) -> str:
    """The XML of the physics-only scene."""
    root = ET.fromstring(xml)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("texture", "material", "light") or (child.tag == "geom" and _visual(child)):
                parent.remove(child)
    used = {geom.get("mesh") for geom in root.iter("geom")}
    for assets in root.iter("asset"):
        for mesh in list(assets.iter("mesh")):
            if mesh.get("name") not in used:
                assets.remove(mesh)
    for element in root.iter():
        element.attrib.pop("material", None)
    return ET.tostring(root, encoding="unicode")


def without_images(xml: str) -> str:
    """`xml` with a point in place of every visual geom, and without textures and materials.

    The official code finds every name that it looks up, and the scene moves to the last bit as before; it compiles in a
    hundredth of the time.
    """
    root = ET.fromstring(xml)
    for geom in root.iter("geom"):
        if _visual(geom):
            for key in ("mesh", "quat", "fitscale", "density"):
                geom.attrib.pop(key, None)
            geom.attrib.update(type="sphere", size="0.001", mass="0")
    used = {geom.get("mesh") for geom in root.iter("geom")}
    for assets in root.iter("asset"):
        for child in list(assets):
            if child.tag in ("texture", "material") or (child.tag == "mesh" and child.get("name") not in used):
                assets.remove(child)
    for element in root.iter():
        element.attrib.pop("material", None)
    return ET.tostring(root, encoding="unicode")


def small_arena(xml: str) -> str:
    """`xml` with 64 MB a state for contacts and constraints, plenty here; the official size reserves 1.3 GB."""
    root = ET.fromstring(xml)
    for size in root.findall("size"):
        root.remove(size)
    ET.SubElement(root, "size", memory="64M")
    return ET.tostring(root, encoding="unicode")


def _visual(geom: ET.Element) -> bool:
    silent = geom.get("contype", "1") == "0" and geom.get("conaffinity", "1") == "0"
    return silent and geom.get("group", "0") != "0"


def _compare(model: Any, full: Any) -> None:
    for name in dir(full):
        if not name.startswith(_COMPARED) or any(word in name for word in _INDICES):
            continue
        ours, theirs = getattr(model, name), getattr(full, name)
        if isinstance(theirs, np.ndarray) and not np.array_equal(ours, theirs):
            raise ValueError(f"the physics-only scene differs from the official one in {name}")
    solid = (full.geom_contype != 0) | (full.geom_conaffinity != 0) | (full.geom_group == 0)
    for name in (
        "geom_type",
        "geom_bodyid",
        "geom_size",
        "geom_pos",
        "geom_quat",
        "geom_friction",
        "geom_solref",
        "geom_solimp",
        "geom_margin",
        "geom_gap",
        "geom_condim",
        "geom_priority",
        "geom_contype",
        "geom_conaffinity",
        "geom_solmix",
    ):
        if not np.array_equal(getattr(model, name), getattr(full, name)[solid]):
            raise ValueError(f"the physics-only scene differs from the official one in {name}")
    for name in ("timestep", "gravity", "integrator", "cone", "solver", "iterations", "tolerance", "impratio"):
        if not np.array_equal(getattr(model.opt, name), getattr(full.opt, name)):
            raise ValueError(f"the physics-only scene differs from the official one in opt.{name}")
