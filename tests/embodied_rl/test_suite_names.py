"""Suites are known by the table, config/suites.py: code asks it what a suite is, and names none itself."""

from __future__ import annotations

import ast

from embodied_rl.config.suites import SUITES
from tests.embodied_rl.test_imports import LINKED, ROOT

TABLE = ("config/suites.py", "utils/suites.py")
STAYS = {
    "__init__.py": "the package gymnasium, whose import registers our ids",
    "api.py": "what make_vec_env opens where no suite is named, as its users read the signature",
    "cli/assets.py": "what is installed: LIBERO's assets, Meta-World's",
    "cli/bench.py": "names of benchmarks of ours and of optional packages",
    "cli/deploy.py": "its suite where none is named, read without importing the table",
    "cli/doctor.py": "a command: doctor libero",
    "cli/eval.py": "`eval` without a benchmark's name takes the built-in one's",
    "cli/select.py": "recipes are called after benchmarks",
    "config/env.py": "names of simulators, as in --env",
    "factory/libero_plus.py": "a folder of the cache",
    "factory/premises.py": "a folder of the cache",
    "factory/tasks.py": "a folder of the cache",
    "jobs/collect.py": "experts of their own, of suites and of simulators",
    "jobs/doctor.py": "a folder of the cache, and scenes that are measured",
    "jobs/doctor_libero.py": "LIBERO's check",
    "jobs/eval_request.py": "short names of suites, and LIBERO's own protocol",
    "jobs/fingerprint.py": "the package of a simulator",
    "jobs/serve.py": "what clients call the robot of LIBERO",
    "jobs/train.py": "which LIBERO is installed is said",
    "studies/compare.py": "physics versions are LIBERO's",
}
"""Files that name a suite or a benchmark all the same, and why."""


def test_only_the_table_names_suites() -> None:
    names = {*SUITES, "libero", "tabletop"}
    found = set()
    for path in (ROOT / "embodied_rl").rglob("*.py"):
        inner = path.relative_to(ROOT / "embodied_rl")
        if inner.parts[0] in LINKED or str(inner) in TABLE:
            continue
        texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        if any(isinstance(text, str) and text in names for text in texts):
            found.add(str(inner))
    assert found - STAYS.keys() == set(), "ask the table: suite_named(name).observes, .benchmark, .simulators"
    assert STAYS.keys() - found == set(), "they name none any more: take them out of STAYS"
