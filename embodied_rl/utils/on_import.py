"""Do something as soon as another package has been imported, by whomever, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def on_import(package: str, act: Callable[[], object]) -> None:
    """Call `act` once, right after `package` is imported; at once where it is imported already."""
    if package in sys.modules:
        act()
        return
    sys.meta_path.insert(0, _Finder(package, act))


class _Finder(MetaPathFinder):
    """Finds nothing itself: it lets the others find the package, and its loader call `act` in the end."""

    def __init__(self, package: str, act: Callable[[], object]) -> None:
        self._package, self._act = package, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `MetaPathFinder.find_spec`."""
        if fullname != self._package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._act()

        spec.loader.exec_module = exec_module  # on this loader only: a class of our own would lack its other methods
        return spec
