"""Two operations that numpy has no name for: the fused multiply-add, and a norm in extended precision."""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

import math
import platform
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from embodied_rl.types import Array

_double = ir.DoubleType()


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding (an instruction where the processor has one, else libm's function)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


class _Extended(ir.types.Type):
    """The x87 register format: 64 bits of mantissa. llvmlite does not name it."""

    intrinsic_name = "f80"

    def __str__(self) -> str:
        return "x86_fp80"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Extended)

    def __hash__(self) -> int:
        return hash(_Extended)


_extended = _Extended()


@intrinsic
def _root_of_squares(typing_context: Any, x: Any, y: Any, z: Any, w: Any, v: Any) -> Any:
    """sqrt(x^2 + y^2 + z^2 + w^2 + v^2), each operation rounded to 64 bits, the result to 53."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total = None
        for arg in args:
            value = builder.fpext(arg, _extended)
            square = builder.fmul(value, value)
            total = square if total is None else builder.fadd(total, square)
        root = builder.module.declare_intrinsic("llvm.sqrt", [_extended])
        return builder.fptrunc(builder.call(root, [total]), _double)

    return types.float64(*[types.float64] * 5), codegen


def _tail_norm_extended(x: Array, n: int) -> float:
    a = x[1] if n > 1 else 0.0
    b = x[2] if n > 2 else 0.0
    c = x[3] if n > 3 else 0.0
    d = x[4] if n > 4 else 0.0
    e = x[5] if n > 5 else 0.0
    return _root_of_squares(a, b, c, d, e)  # one zero more changes no sum


def _tail_norm_double(x: Array, n: int) -> float:
    total = 0.0
    for i in range(1, n):
        total += x[i] * x[i]
    return math.sqrt(total)


# Elsewhere MuJoCo itself rounds otherwise than on x86-64, so that no episode could agree to the last bit.
tail_norm = njit(nogil=True)(
    _tail_norm_extended if platform.machine().lower() in ("x86_64", "amd64") else _tail_norm_double
)
"""Euclidean norm of x[1:n], n <= 6: OpenBLAS's dnrm2, which sums in extended precision."""
