"""A hook on a module of the program, made so that the program can still copy, save and compile the module."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

_is_compiling = torch.compiler.is_compiling


class ModuleHook:
    """Calls ``action(name, module)`` from a module's forward hook, and leaves arguments and result alone."""

    def __init__(self, name: str, action: Callable[[str, Any], None]) -> None:
        self._name = name
        self._action = action

    def __call__(self, module: Any, *_: Any) -> None:
        """Nothing while a graph is traced: what we do would break it, or become a part of it."""
        if not _is_compiling():
            self._action(self._name, module)

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy or a file of the module gets in our place: a callable that does nothing.

        It comes from the standard library, so that the file can be read where this package is missing.
        """
        return getattr, (nullcontext(), "__exit__")
