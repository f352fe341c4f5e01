"""Who may import whom: read from the source, so that imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("sim", "policies", "real_robot", "configs", "assets", "benchmarks")
CONTRACTS = ("types", "vec_env", "policy", "rng", "errors")

# What each part may import, beside itself and the contracts. `x.config` allows only the options of x.
ALLOWED: dict[str, tuple[str, ...]] = {
    "types": (),
    "vec_env": (),
    "policy": (),
    "rng": (),
    "errors": (),
    "interrupt": (),
    "threads": (),
    "children": (),
    "sim": ("assets",),
    "policies": (),
    "real_robot": (),
    "assets": (),
    "rollout": ("threads", "children"),
    "algorithms": (),
    "learner": ("algorithms", "threads", "children"),
    "scheduler": ("rollout", "algorithms", "learner", "threads"),
    "evaluation": ("rollout",),
    "data": ("interrupt",),
    "runner": ("rollout", "algorithms", "learner", "scheduler", "evaluation", "interrupt"),
    "telemetry": ("evaluation", "rollout.timeline"),
    "policy_config": (),
    "plan": ("policies.memory",),
    "config": (
        "policy_config",
        "algorithms.config",
        "learner.config",
        "rollout.config",
        "evaluation.config",
        "scheduler.config",
    ),
    "configs": (
        "config",
        "policy_config",
        "algorithms.config",
        "learner.config",
        "rollout.config",
        "evaluation.config",
        "scheduler.config",
    ),
    "__main__": ("cli",),
}
# cli and benchmarks put everything together.
ASSEMBLE = ("cli", "benchmarks")
BARE = set(LINKED)


def modules() -> Iterator[tuple[str, Path]]:
    """Every source file with its dotted name under embodied_rl."""
    folders = {"": ROOT / "embodied_rl"} | {name: ROOT / name for name in LINKED}
    for prefix, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder).with_suffix("").parts
            if not prefix and inner[0] in LINKED:
                continue
            parts = [*([prefix] if prefix else []), *inner]
            yield ".".join(part for part in parts if part != "__init__"), path


def imported(tree: ast.AST) -> set[str]:
    """Dotted names that a file imports; `from a.b import c` counts as a.b.c."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def violations(name: str, tree: ast.AST) -> list[str]:
    """The imports of module `name` that break the rule."""
    part = name.partition(".")[0]
    found = []
    for target in imported(tree):
        top, _, inner = target.partition(".")
        if top in BARE:
            found.append(f"{name} imports bare {target}")
        if top != "embodied_rl" or part in ASSEMBLE or not name:
            continue
        goal = inner.partition(".")[0]
        fits = any(inner == rule or inner.startswith(rule + ".") for rule in ALLOWED[part])
        if goal not in (*CONTRACTS, part, "__version__") and not fits:
            found.append(f"{name} imports {target}")
    return found


def test_the_rule_holds_everywhere() -> None:
    broken = [line for name, path in modules() for line in violations(name, ast.parse(path.read_text()))]
    assert broken == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("sim.engine.x", "from embodied_rl.policies.preprocessing.text import load"),
        ("policies.openvla.x", "def f():\n    import embodied_rl.sim.task"),
        ("rollout.x", "from embodied_rl.algorithms.ppo import PPO"),
        ("algorithms.x", "from embodied_rl.learner.learner import Learner"),
        ("runner", "from embodied_rl.cli import main"),
        ("runner", "from embodied_rl.policies.openvla.policy import OpenVLAPolicy"),
        ("config", "from embodied_rl.algorithms.ppo import PPO"),
        ("telemetry.x", "from embodied_rl.training.on_policy import train"),
        ("cli.train", "from sim.task import Task"),
    ],
)
def test_a_broken_rule_is_found(name: str, code: str) -> None:
    assert violations(name, ast.parse(code))


def test_contracts_need_neither_torch_nor_mujoco_at_run_time() -> None:
    for name in CONTRACTS:
        tree = ast.parse((ROOT / "embodied_rl" / f"{name}.py").read_text())
        at_import = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        assert not at_import & {"torch", "mujoco", "numba", "transformers"}
