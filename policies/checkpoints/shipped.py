"""The small policies in the package: one that knows the tabletop, others for suites of LIBERO."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.utils.suites import base_suite

SHIPPED = "shipped"
"""The checkpoint that knows the tabletop suites; SHIPPED:SUITE is the one for `SUITE`."""
_TABLETOP = "nano"


def is_shipped(checkpoint: str) -> bool:
    """Whether `checkpoint` names a policy in the package, and not a folder or a repository."""
    return checkpoint.partition(":")[0] == SHIPPED


def shipped_for(suite: str) -> str | None:
    """The name of the shipped checkpoint for `suite`; None where there is none.

    A suite of LIBERO-PRO has that of the suite that it varies.
    """
    if suite.startswith("tabletop"):
        return SHIPPED
    base = base_suite(suite)
    return f"{SHIPPED}:{base}" if base in _suites() else None


def require_shipped_for(suite: str, option: str = "--checkpoint") -> str:
    """`shipped_for`; UserError where there is none, which says how to come by a policy. option: what names another."""
    name, base = shipped_for(suite), base_suite(suite)
    if name is None:
        raise UserError(
            f"no policy for {suite} ships with the package: name a checkpoint ({option}), or make one: "
            f"embodied-rl collect {base} --out demos, then embodied-rl sft demos --out start"
        )
    return name


def shipped_folder(checkpoint: str) -> Path:
    """The folder of a shipped checkpoint; UserError for a suite that has none."""
    suite = checkpoint.partition(":")[2]
    if suite and suite not in _suites():
        names = ", ".join((f"{SHIPPED} (the tabletop suites)", *(f"{SHIPPED}:{name}" for name in _suites())))
        raise UserError(f"no policy for '{suite}' ships with the package. Those that do: {names}.")
    return _folder() / (suite or _TABLETOP)


def _folder() -> Path:
    return Path(str(files("embodied_rl.assets") / "checkpoints"))


def _suites() -> list[str]:
    return sorted(
        path.name for path in _folder().iterdir() if (path / "config.json").is_file() and path.name != _TABLETOP
    )
