"""What tests register is gone afterwards: other tests of the process list what there is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.config import env, policies, register, suites
from embodied_rl.utils import plugins

TABLES: tuple[dict[str, Any], ...] = (
    suites.SUITES,
    env.ENVS,
    policies.POLICIES,
    register.CUSTOM_ENVS,
    register.CUSTOM_POLICIES,
)


@contextmanager
def modules_of(folder: Path) -> Iterator[None]:
    """Modules in `folder` can be imported; afterwards they, and what was registered, are forgotten."""
    kept, before = [dict(table) for table in TABLES], set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(plugins, "_named", [])
        patch.setattr(plugins, "_installed_are_loaded", [True])
        yield
    for table, old in zip(TABLES, kept, strict=True):
        table.clear()
        table.update(old)
    here = {path.stem if path.suffix else path.name for path in folder.iterdir()}
    for name in [name for name in sys.modules if name not in before and name.partition(".")[0] in here]:
        del sys.modules[name]
