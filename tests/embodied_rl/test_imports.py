"""Who may import whom: ranks, and no cycles. Read from the source, so that imports in functions count too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("sim", "policies", "real_robot", "configs", "assets", "benchmarks")
CONTRACTS = ("types", "vec_env", "policy", "reward_model", "rng", "errors", "version")

# A part may import those of a lower rank. Within a rank, only a part's own modules import each other.
ORDER: tuple[tuple[str, ...], ...] = (
    (*CONTRACTS, "assets"),
    ("utils",),
    ("sim", "policies", "data", "algorithms", "replay", "rollout"),
    ("learner", "evaluation"),
    ("scheduler", "telemetry", "rewards"),
    ("config",),
    ("configs", "training", "factory", "autotune", "real_robot"),
    ("jobs",),
    ("studies",),
    ("api", "cli"),
    ("", "__main__", "benchmarks"),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts} | {
    "policy": 0.5,
    "reward_model": 0.5,
    "vec_env": 0.5,
    "rng": 0.25,
}
# What an arm's computer lacks; only these parts of real_robot run elsewhere.
HEAVY, OFF_BOARD = ("torch", "mujoco", "embodied_rl.sim", "embodied_rl.policies"), ("server", "twin", "env")
# Where a controller takes joints: mink, which is optional, brings MuJoCo.
BROUGHT = {"ik": ("mujoco",)}
# The only place that names the classes of simulators and policies; a benchmark may name what it measures.
CONCRETE = re.compile(
    r"embodied_rl\.(sim\.(mujoco|tabletop|libero|envpool|maniskill)|policies\.(openvla|openvla_oft|pi0|smolvla|act|mlp))\.(.*\.)?"
    r"([A-Z]\w*(VecEnv|Stream|Task|Policy|Factory))$"
)
# What opens a simulator, and the parts below `factory.suites.open_tasks` that may call it, or scenes' own way to.
OPENER = re.compile(r"(?!env_factory$)(\w*VecEnv|\w+Factory|scene_envs|open_warp|drawn_by_warp)$")
OPENERS = {"factory.suites", "factory.scenes", "factory.warp"}
ENV_FUNCTION = re.compile(r"_?open_(\w+_)?envs?$")
MAY_NAME = ("factory", "benchmarks", "sim", "policies")


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
    part, _, inside = name.partition(".")
    found = []
    for target in imported(tree):
        top, _, inner = target.partition(".")
        if top in LINKED:
            found.append(f"{name} imports bare {target}")
        inner_part = inside.partition(".")[0]
        lacking = [heavy for heavy in HEAVY if heavy not in BROUGHT.get(inner_part, ())]
        on_board = part == "real_robot" and inner_part not in OFF_BOARD
        if on_board and any(target == heavy or target.startswith(heavy + ".") for heavy in lacking):
            found.append(f"{name} imports {target}, which an arm's computer lacks")
        if part not in MAY_NAME and CONCRETE.match(target):
            found.append(f"{name} names {target}: only factory/ does")
        goal = inner.partition(".")[0]
        if top == "embodied_rl" and goal != part and RANK[goal] >= RANK[part]:
            found.append(f"{name} imports {target}")
    return found


def opened(name: str, tree: ast.AST) -> list[str]:
    """Where module `name` of the trainer opens envs beside `factory.suites.open_tasks`."""
    if name.partition(".")[0] in LINKED or name in OPENERS:
        return []
    brought = {
        target.rpartition(".")[2] for target in imported(tree) if re.match(r"embodied_rl\.(sim|factory)\.", target)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in brought:
            if OPENER.match(node.func.id):
                found.append(f"{name}:{node.lineno} calls {node.func.id}: open envs by factory.suites.open_tasks")
        elif isinstance(node, ast.FunctionDef) and ENV_FUNCTION.match(node.name):
            found.append(f"{name}:{node.lineno} defines {node.name}: envs are opened by factory.suites.open_tasks")
    return found


def edges(sources: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """Which of the modules each imports."""
    graph: dict[str, set[str]] = {name: set() for name in sources}
    for name, tree in sources.items():
        for target in imported(tree):
            inner = target.removeprefix("embodied_rl.")
            while inner and inner not in graph:
                inner = inner.rpartition(".")[0]
            if target.startswith("embodied_rl.") and inner and inner != name:
                graph[name].add(inner)
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or by way of others; each group sorted."""
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {tuple(sorted(o for o in reached[name] if name in reached[o])) for name in graph if name in reached[name]}
    return sorted(list(group) for group in groups)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += graph[name]
    return found


def test_the_rule_holds_everywhere() -> None:
    broken = [line for name, path in modules() for line in violations(name, ast.parse(path.read_text()))]
    assert broken == []


def test_envs_are_opened_by_one_function() -> None:
    assert [line for name, path in modules() for line in opened(name, ast.parse(path.read_text()))] == []
    for code in (
        "from embodied_rl.factory.scenes import scene_envs\nscene_envs((), config, view)",
        "from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv\nMujocoVecEnv(tasks, 1)",
        "def open_env(): ...",
    ):
        assert opened("jobs.x", ast.parse(code))
        assert not opened("factory.scenes", ast.parse(code))


def test_no_modules_import_each_other() -> None:
    assert cycles(edges({name: ast.parse(path.read_text()) for name, path in modules()})) == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("sim.mujoco.x", "from embodied_rl.policies.preprocessing.text import load"),
        ("policies.openvla.x", "def f():\n    import embodied_rl.sim.task"),
        ("rollout.x", "from embodied_rl.algorithms.ppo import PPO"),
        ("algorithms.x", "from embodied_rl.learner.learner import Learner"),
        ("types", "from embodied_rl.vec_env import VecEnv"),
        ("utils.x", "from embodied_rl.rollout.sampler import EpisodeSampler"),
        ("learner.x", "from embodied_rl.scheduler.make import make_scheduler"),
        ("scheduler.x", "from embodied_rl.config.train import TrainConfig"),
        ("training.x", "from embodied_rl.factory.suites import open_tasks"),
        ("factory.x", "from embodied_rl.jobs.train import run"),
        ("autotune.x", "def f():\n    from embodied_rl.cli.plan import main"),
        ("jobs.x", "from embodied_rl.cli.train import main"),
        ("jobs.x", "from embodied_rl.sim.libero.tasks import LiberoTask"),
        ("jobs.x", "from embodied_rl.policies.pi0.policy import Pi0Policy"),
        ("cli.x", "def f():\n    from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv"),
        ("cli.x", "from embodied_rl.benchmarks.vla import main"),
        ("cli.x", "from sim.task import Task"),
        ("real_robot.core.gate", "import torch"),
        ("real_robot.core.gate", "import mujoco"),
        ("real_robot.ik", "from embodied_rl.sim.task import Task"),
        ("real_robot.client", "from embodied_rl.sim.task import Task"),
    ],
)
def test_a_broken_rule_is_found(name: str, code: str) -> None:
    assert violations(name, ast.parse(code))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("jobs.x", "from embodied_rl.factory.suites import open_tasks"),
        ("factory.x", "from embodied_rl.sim.libero.tasks import LiberoTask"),
        ("benchmarks.x", "from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv"),
        ("real_robot.twin.x", "from embodied_rl.sim.task import Task"),
        ("real_robot.ik", "import mujoco"),
        ("vec_env", "from embodied_rl.types import Observation"),
        ("sim.x", "from embodied_rl.version import __version__"),
    ],
)
def test_what_is_allowed_is_not_reported(name: str, code: str) -> None:
    assert violations(name, ast.parse(code)) == []


def test_a_cycle_is_found_through_functions_and_third_modules() -> None:
    sources = {
        "a": "from embodied_rl.b import x",
        "b": "def f():\n    import embodied_rl.c.d",
        "c.d": "from embodied_rl import a",
        "e": "from embodied_rl.a import y",
    }
    assert cycles(edges({name: ast.parse(code) for name, code in sources.items()})) == [["a", "b", "c.d"]]


def test_contracts_need_neither_torch_nor_mujoco_at_run_time() -> None:
    for name in ("types", "vec_env", "policy", "rng", "errors"):
        tree = ast.parse((ROOT / "embodied_rl" / f"{name}.py").read_text())
        at_import = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        assert not at_import & {"torch", "mujoco", "numba", "transformers"}
