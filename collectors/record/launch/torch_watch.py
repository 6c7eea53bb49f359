"""Call a function once torch has been imported, with a lightweight import hook.

Uses only the standard library, because children whose interpreter lacks zprof load this file too.
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
    """First meta path finder until torch has been imported; ``find_spec("torch")`` alone does not count."""

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import
        self._searching: set[int] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return torch's spec with a wrapped loader; None for other names, to use the next finders."""
        thread = _thread.get_ident()
        if name != _WATCHED or thread in self._searching:
            return None
        self._searching.add(thread)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(thread)
        if spec is not None and spec.loader is not None:
            with suppress(AttributeError):  # a loader without writable attributes: nothing is recorded
                self._wrap_loader(spec.loader)
        return spec

    def _wrap_loader(self, loader: Any) -> None:
        if "exec_module" in vars(loader):  # already wrapped by an earlier lookup
            return
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            if module.__name__ == _WATCHED:
                loader.__dict__.pop("exec_module", None)  # the wrapper is for this one import
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._on_import()

        loader.exec_module = exec_module


def call_after_import(on_import: Callable[[], None]) -> None:
    """Call ``on_import``, which must not raise, once torch is imported, or now if it already is."""
    if _WATCHED in sys.modules:
        on_import()
    else:
        sys.meta_path.insert(0, TorchWatch(on_import))
