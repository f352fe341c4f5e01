"""The small policies in the package: one that knows the tabletop, others for suites of LIBERO."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from embodied_rl.errors import UserError, suggest

SHIPPED = "shipped"
"""The checkpoint that knows the tabletop suites; SHIPPED:SUITE is the one for `SUITE`."""
_TABLETOP = "nano"


def is_shipped(checkpoint: str) -> bool:
    """Whether `checkpoint` names a policy in the package, and not a folder or a repository."""
    return checkpoint.partition(":")[0] == SHIPPED


def shipped_for(suite: str) -> str | None:
    """The name of the shipped checkpoint that was made for `suite`; None where there is none."""
    if suite.startswith("tabletop"):
        return SHIPPED
    return f"{SHIPPED}:{suite}" if suite in _suites() else None


def shipped_folder(checkpoint: str) -> Path:
    """The folder of a shipped checkpoint; UserError for a suite that has none."""
    suite = checkpoint.partition(":")[2]
    if suite and suite not in _suites():
        raise UserError(f"no policy for '{suite}' ships with the package.{suggest(suite, _suites())}")
    return _folder() / (suite or _TABLETOP)


def _folder() -> Path:
    return Path(str(files("embodied_rl.assets") / "checkpoints"))


def _suites() -> list[str]:
    return sorted(
        path.name for path in _folder().iterdir() if (path / "config.json").is_file() and path.name != _TABLETOP
    )
