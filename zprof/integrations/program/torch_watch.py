"""Calls a function once torch has been imported: a light import hook that looks at one name.

Needs the standard library only: a child whose interpreter has no zprof loads this file too.
"""

from __future__ import annotations

import _thread
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_WATCHED = "torch"


class TorchWatch(importlib.abc.MetaPathFinder):
    """Stands first among the finders until torch has been imported: many only ask whether it is there."""

    def __init__(self, imported: Callable[[], None]) -> None:
        self._imported = imported
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """None for all but torch: the finders behind go on."""
        thread = _thread.get_ident()
        if name != _WATCHED or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.discard(thread)
        if spec is not None and spec.loader is not None:
            with suppress(AttributeError):  # a loader that cannot be told: nothing is recorded
                self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        if "exec_module" in vars(loader):  # asked for before, with a loader that is kept
            return
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if module.__name__ == _WATCHED:
                loader.__dict__.pop("exec_module", None)  # it was this loader's own, for this one import
                self._done()

        loader.exec_module = exec_module

    def _done(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._imported()


def watch(imported: Callable[[], None]) -> None:
    """Begin to watch; ``imported`` must not raise.  Where torch is there already it is called now."""
    if _WATCHED in sys.modules:
        imported()
    else:
        sys.meta_path.insert(0, TorchWatch(imported))
