"""Call a function once torch has been imported, with a light import hook for that one name.

It needs only the standard library, because a child whose interpreter has no zprof loads this file too.
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
    """First meta path finder until torch has been imported; a mere ``find_spec("torch")`` does not count."""

    def __init__(self, imported: Callable[[], None]) -> None:
        self._imported = imported
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return torch's spec with a wrapped loader; None for other names, so that the next finders go on."""
        thread = _thread.get_ident()
        if name != _WATCHED or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.discard(thread)
        if spec is not None and spec.loader is not None:
            with suppress(AttributeError):  # a loader without writable attributes: nothing is recorded
                self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        if "exec_module" in vars(loader):  # wrapped by an earlier lookup, and the loader was kept
            return
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if module.__name__ == _WATCHED:
                loader.__dict__.pop("exec_module", None)  # the wrapper is for this one import
                self._done()

        loader.exec_module = exec_module

    def _done(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._imported()


def watch(imported: Callable[[], None]) -> None:
    """Start to watch; ``imported`` must not raise. If torch is already imported, call it now."""
    if _WATCHED in sys.modules:
        imported()
    else:
        sys.meta_path.insert(0, TorchWatch(imported))
