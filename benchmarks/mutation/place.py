"""Puts the changed source of a module in the place of the one that is imported already.

Others hold its functions and classes by now, so those stay the objects that they are and get the new code.
"""

import sys
from types import FunctionType
from typing import Any


def put_in_place(path: str, source: bytes) -> None:
    """Let the module of that file do what ``source`` says."""
    name = path.removesuffix(".py").replace("/", ".")
    module = sys.modules[name]
    changed: dict[str, Any] = {"__name__": name, "__file__": module.__file__}
    exec(compile(source, path, "exec", dont_inherit=True), changed)
    for key, new in changed.items():
        old = module.__dict__.get(key)
        if key.startswith("__") or getattr(new, "__module__", name) != name:
            continue
        if isinstance(old, type):
            _recode_class(old, new)
        elif callable(old):
            _recode(old, new)
        elif type(old) is type(new) and old != new:
            setattr(module, key, new)
            _tell_others(key, old, new)


def _tell_others(key: str, old: Any, new: Any) -> None:
    """Those that imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("zprof.") and module.__dict__.get(key) is old:
            setattr(module, key, new)


def _recode_class(old: type, new: type) -> None:
    for key, part in vars(new).items():
        _recode(vars(old).get(key), part)


def _recode(old: Any, new: Any) -> None:
    old, new = (getattr(part, "fget", None) or getattr(part, "__func__", None) or part for part in (old, new))
    if hasattr(old, "cache_clear"):
        old.cache_clear()
        old, new = old.__wrapped__, new.__wrapped__
    if isinstance(old, FunctionType) and isinstance(new, FunctionType):
        old.__code__ = new.__code__
        old.__defaults__, old.__kwdefaults__ = new.__defaults__, new.__kwdefaults__
