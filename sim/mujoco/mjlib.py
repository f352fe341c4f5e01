"""libmujoco's C functions and a few mjData fields, reachable from numba code that holds no GIL.

The functions are bound by symbol, not by address, so that compiled kernels can be cached on disk: numba leaves the
symbol open and LLVM resolves it when the machine code is loaded. Fields without a stable Python view (number of
contacts, contact array, warnings) are read at their offset in mjData; `check_layout` compares the offsets with what the
Python bindings report before the first step of a process.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

# From mjdata.h of MuJoCo 4.0.0 on 64-bit systems: offsetof(mjData, ...), sizeof(mjContact), offsetof(mjContact, geom).
_NCON = 160560
_WARNING = 160264
_CONTACT = 161488
_CONTACT_SIZE = 608
_CONTACT_GEOM = 564
_WARNING_SIZE = 8
_WARNING_NUMBER = 4
_BAD = (
    int(mujoco.mjtWarning.mjWARN_BADQPOS),
    int(mujoco.mjtWarning.mjWARN_BADQVEL),
    int(mujoco.mjtWarning.mjWARN_BADQACC),
)

_SUPPORTED = (4, 0)


def _library_path() -> str:
    folder = Path(str(mujoco.__file__)).parent
    found = sorted(p for pattern in ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll") for p in folder.glob(pattern))
    if not found:
        raise ImportError(f"no libmujoco in {folder}: reinstall the mujoco package")
    return str(found[0])


def libmujoco() -> ctypes.CDLL:
    """The library that the Python bindings run on."""
    return ctypes.CDLL(_library_path())


def _load_library() -> None:
    binding.load_library_permanently(_library_path())
    # The Python bindings install a clock with which MuJoCo times every stage of a step (mjData.timer, which nobody here
    # reads): 5 % of a simulation of the tabletop. Their set_mjcb_time(None) leaves it where it is.
    ctypes.c_void_p.in_dll(libmujoco(), "mjcb_time").value = None


_load_library()

_pointer = types.intp
mj_step = types.ExternalFunction("mj_step", types.void(_pointer, _pointer))
mj_step1 = types.ExternalFunction("mj_step1", types.void(_pointer, _pointer))
mj_step2 = types.ExternalFunction("mj_step2", types.void(_pointer, _pointer))
mj_jac_site = types.ExternalFunction("mj_jacSite", types.void(_pointer, _pointer, _pointer, _pointer, types.intc))


def _loader(bits: int, result: Any) -> Any:
    """An intrinsic that reads a signed integer of `bits` bits at an address."""

    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.PointerType(ir.IntType(bits)))
            return builder.load(pointer)

        return result(types.intp), codegen

    return load


load_int32 = _loader(32, types.int32)
load_int64 = _loader(64, types.int64)


@njit(nogil=True)
def num_contacts(data: int) -> int:
    """mjData.ncon; `data` is the address of an mjData."""
    return load_int32(data + _NCON)


@njit(nogil=True)
def contact_geoms(data: int, index: int) -> tuple[int, int]:
    """Ids of the two geoms of contact `index` < num_contacts (-1 for a flex)."""
    at = load_int64(data + _CONTACT) + index * _CONTACT_SIZE + _CONTACT_GEOM
    return load_int32(at), load_int32(at + 4)


@njit(nogil=True)
def diverged(data: int) -> bool:
    """Whether MuJoCo has warned of bad positions, velocities or accelerations since the last mj_resetData."""
    for kind in _BAD:  # noqa: SIM110 (numba has no any() over a generator)
        if load_int32(data + _WARNING + kind * _WARNING_SIZE + _WARNING_NUMBER) > 0:
            return True
    return False


_PROBE = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 .1"/>
<body pos="0 0 .05"><freejoint/><geom size=".1"/></body><body pos="0 .5 .05"><freejoint/><geom size=".1"/></body>
<body pos="0 -.5 .05"><freejoint/><geom size=".1"/></body></worldbody></mujoco>"""


@cache
def check_layout() -> None:
    """Compare the offsets with the bindings' view of a small scene; RuntimeError when mjData is laid out otherwise."""
    version = tuple(int(part) for part in mujoco.__version__.split(".")[:2])
    if version != _SUPPORTED:
        raise RuntimeError(
            f"the CPU engine knows MuJoCo {_SUPPORTED[0]}.{_SUPPORTED[1]}, found {mujoco.__version__}: "
            f"pip install 'mujoco=={_SUPPORTED[0]}.{_SUPPORTED[1]}.*'"
        )
    model = mujoco.MjModel.from_xml_string(_PROBE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    address = data._address

    def read(kind: Any, offset: int) -> int:
        return kind.from_address(address + offset).value

    intact = read(ctypes.c_int32, _NCON) == data.ncon == 3
    if intact:
        first = read(ctypes.c_int64, _CONTACT) - address + _CONTACT_GEOM
        pairs = [[read(ctypes.c_int32, first + i * _CONTACT_SIZE + 4 * k) for k in (0, 1)] for i in range(data.ncon)]
        intact = pairs == data.contact.geom.tolist()
    numbers = [_WARNING + kind * _WARNING_SIZE + _WARNING_NUMBER for kind in _BAD]
    calm = not any(read(ctypes.c_int32, offset) for offset in numbers)
    for kind in _BAD:
        data.warning[kind].number = 7 + kind
    alarmed = [read(ctypes.c_int32, offset) for offset in numbers] == [7 + kind for kind in _BAD]
    if not (intact and calm and alarmed):
        raise RuntimeError(
            f"MuJoCo {mujoco.__version__} on this platform lays out mjData otherwise than the CPU engine expects; "
            "please report this platform"
        )


def arm_mass_addresses(model: mujoco.MjModel, dofs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where mjData.M (lower triangle, compressed rows) holds the inertia between `dofs`: int64 [n, n], symmetric.

    ValueError when two of the dofs are not on one kinematic chain (their entry is not stored).
    """
    n = len(dofs)
    found = np.full((n, n), -1, dtype=np.int64)
    for i, row in enumerate(dofs):
        start = int(model.M_rowadr[row])
        columns = model.M_colind[start : start + int(model.M_rownnz[row])]
        for j, column in enumerate(dofs):
            hit = np.flatnonzero(columns == column)
            if hit.size:
                found[i, j] = found[j, i] = start + int(hit[0])
    if (found < 0).any():
        raise ValueError("the arm's joints are not one kinematic chain")
    return found
