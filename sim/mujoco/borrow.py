"""Arrays without their owner: what compiled code hands from function to function without counting references.

Numba counts a reference wherever an array is passed on or read from a tuple. The count is an atomic instruction, taken
hundreds of times in a control step.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic


@intrinsic
def borrowed(typing_context: Any, value: Any) -> Any:
    """`value`, an array or a tuple of arrays, numbers and such tuples, which owns its memory no longer.

    Only for arguments of the function that Python calls: their owners are held until it returns. An array that compiled
    code makes is freed after its last use that counts. Other types are refused when the caller is compiled.
    """
    _check(value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _without_owner(context, builder, signature.args[0], args[0])

    return value(value), codegen


def _check(kind: Any) -> None:
    """TypingError for what holds references in other ways."""
    if isinstance(kind, types.BaseTuple):
        members: Any = kind
        for member in members:
            _check(member)
    elif not isinstance(kind, types.Array | types.Number | types.Boolean):
        raise TypingError(f"only arrays, numbers and tuples of them can be borrowed, not {kind}")


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value=value)
        for owner in ("meminfo", "parent"):
            setattr(array, owner, ir.Constant(getattr(array, owner).type, None))
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        members: Any = kind
        values = cgutils.unpack_tuple(builder, value, len(members))
        parts = [_without_owner(context, builder, *part) for part in zip(members, values, strict=True)]
        return context.make_tuple(builder, kind, parts)
    return value
