"""What keeps the code easy to read: small files and short parameter lists."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.test_vocabulary import ROOT, sources

MAX_LINES, MAX_PARAMETERS = 400, 8
MANY_PARAMETERS = {
    "embodied_rl/api.py make_vec_env": "the options of a public function, all by keyword",
    "policies/openvla/config.py nano": "the sizes of a network, all by keyword",
    "policies/pi0/config.py nano": "the sizes of a network, all by keyword",
    "policies/cpu/decode.py decode": "hands arrays on to a compiled kernel",
    "sim/mujoco/vec_env.py __init__": "the options of a public class, all by keyword",
    "sim/warp/vec_env.py __init__": "the options of a public class, all by keyword",
}


def is_kernel(node: ast.FunctionDef) -> bool:
    """Whether it is compiled, by numba or by Warp: its arrays come one by one."""
    return any(word in ast.unparse(d) for d in node.decorator_list for word in ("njit", "wp.kernel", "wp.func"))


def long_parameter_lists(path: Path) -> list[str]:
    """Functions outside compiled kernels with more parameters than a reader can hold."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef) or is_kernel(node):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if len([a for a in arguments if a.arg not in ("self", "cls")]) > MAX_PARAMETERS:
            found.append(node.name)
    return found


def test_no_file_is_long() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_parameter_lists_are_short() -> None:
    found = {f"{path.relative_to(ROOT)} {name}" for path in sources() for name in long_parameter_lists(path)}
    assert found == set(MANY_PARAMETERS)


def test_a_long_list_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(f"def f({', '.join('abcdefghi')}): ...\n@njit\ndef g({', '.join('abcdefghi')}): ...\n")
    assert long_parameter_lists(path) == ["f"]
