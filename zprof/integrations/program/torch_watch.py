"""Calls a function once torch has been imported: a light import hook that looks at one name.

Needs the standard library only: a child whose interpreter has no zprof loads this file too.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


class TorchWatch(importlib.abc.MetaPathFinder):
    """Stands first among the finders until torch is asked for."""

    def __init__(self, imported: Callable[[], None]) -> None:
        self._imported = imported

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """None for all but torch: the finders behind go on."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _after(spec.loader, self._imported)
        return spec


def watch(imported: Callable[[], None]) -> None:
    """Begin to watch; ``imported`` must not raise.  Where torch is there already it is called now."""
    if "torch" in sys.modules:
        imported()
    else:
        sys.meta_path.insert(0, TorchWatch(imported))


def _after(loader: Any, imported: Callable[[], None]) -> None:
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module  # it was this loader's own, for this one import
        run(module)
        imported()

    loader.exec_module = exec_module
