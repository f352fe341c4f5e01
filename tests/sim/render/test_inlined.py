"""Pictures are the same in the process that compiles the kernels and in those that load them from numba's cache."""

from __future__ import annotations

import ast
from pathlib import Path

import embodied_rl.policies
import embodied_rl.sim


def kernels(file: Path) -> list[tuple[ast.FunctionDef, dict[str, str]]]:
    """The functions of a file that numba compiles, with njit's options."""
    found = []
    for function in ast.walk(ast.parse(file.read_text())):
        for mark in function.decorator_list if isinstance(function, ast.FunctionDef) else ():
            if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "njit":
                assert isinstance(function, ast.FunctionDef)
                found.append((function, {str(k.arg): ast.unparse(k.value) for k in mark.keywords}))
    return found


def test_what_fast_kernels_call_is_inlined() -> None:
    """See `embodied_rl.sim.render.mesh.shade`. Without fastmath both copies round alike."""
    folders = [Path(str(package.__file__)).parent for package in (embodied_rl.sim, embodied_rl.policies)]
    every = [kernel for folder in folders for file in folder.rglob("*.py") for kernel in kernels(file)]
    called = {
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        for function, _ in every
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    }
    fast = {function.name: options for function, options in every if "fastmath" in options and function.name in called}
    assert {"_light", "_draw", "exp"} <= fast.keys()
    for name, options in fast.items():
        assert options.get("forceinline") == "True" or options.get("inline") == "'always'", name
