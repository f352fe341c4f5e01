"""Call a function as soon as another package has been imported, by whomever, without importing it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def on_import(package: str, module: str, function: str) -> None:
    """Call `function` of `module` once, right after `package` is imported; at once where it is imported already.

    Names, not a function: one in `sys.meta_path` would keep its module, and all that hangs on it, until after the
    interpreter has emptied the modules of OpenGL, whose contexts could not be freed then.
    """
    if package in sys.modules:
        getattr(importlib.import_module(module), function)()
        return
    sys.meta_path.insert(0, _Finder(package, module, function))


class _Finder(MetaPathFinder):
    """Finds nothing itself: it lets the others find the package, and its loader call the function in the end."""

    def __init__(self, package: str, module: str, function: str) -> None:
        self._package, self._module, self._function = package, module, function

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
            getattr(importlib.import_module(self._module), self._function)()

        spec.loader.exec_module = exec_module  # on this loader only: a class of our own would lack its other methods
        return spec
