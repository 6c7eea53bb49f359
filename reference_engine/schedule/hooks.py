"""Hooks that the engine puts on the user's modules and parameters.

They know the engine weakly: a module that holds its hooks would otherwise hold the engine, which holds the
module, and memory would wait for Python's cycle collector.  The engine lives as long as the ``ZeroModel``.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch._compile import _disable_dynamo


class EngineHook:
    """Calls a method of the engine, with ``prefix`` before the hook's own arguments, while the engine lives.

    A deep copy of the module is a plain module: the hook of the copy does nothing.
    """

    def __init__(self, method: Callable[..., Any], *prefix: Any) -> None:
        self._method = WeakMethod(method)
        self._prefix = prefix

    @property
    def alive(self) -> bool:
        """Whether the engine is still there."""
        return self._method() is not None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Be the hook."""
        method = self._method()
        return None if method is None else method(*self._prefix, *arguments, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return no_hook

    def __reduce__(self) -> Any:
        raise RuntimeError("a module in a ZeRO engine cannot be pickled: save model.state_dict() instead")


class ModuleHook(EngineHook):
    """A hook of a module; torch.compile does not look into it, and compiles what stands before and after."""

    @_disable_dynamo
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Be the hook."""
        return super().__call__(*arguments, **named)


def no_hook(*arguments: Any, **named: Any) -> None:
    """A hook without effect."""


class Listeners:
    """Methods to be called one after the other, in the order in which they came.

    Bound methods are known weakly, for the reason above: who adds one has to live elsewhere.
    """

    def __init__(self) -> None:
        self._methods: list[Callable[[], Callable[[], None] | None]] = []

    def append(self, method: Callable[[], None]) -> None:
        """Add one."""
        bound = hasattr(method, "__func__")
        self._methods.append(WeakMethod(method) if bound else lambda: method)

    def __call__(self) -> None:
        """Tell all of them."""
        for known in self._methods:
            method = known()
            if method is not None:
                method()
