"""Detect the updates of DeepSpeed's engines.

The optimizer inside an engine steps once per parameter group or sub-group, steps once while the engine is set
up, and does not step at all if the loss scale overflows. The engine's own count of updates is the step.
"""

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from zprof.collectors.record.engines.deepspeed import ENGINE_MODULE

_PACKAGE = "deepspeed."
#: Classes and methods that update the model, where their modules are imported.
_UPDATES = (
    (ENGINE_MODULE, "DeepSpeedEngine", "step"),
    ("deepspeed.runtime.pipe.engine", "PipelineEngine", "train_batch"),
)


class EngineSteps:
    """Patch the engines' classes between ``install`` and ``remove``. The callbacks must not raise.

    Args:
        before: Called with the engine before a call that may update the model.
        after: Called with the engine and whether the update was skipped, after it has updated the model.
    """

    def __init__(self, before: Callable[[Any], None], after: Callable[[Any, bool], None]) -> None:
        self._before, self._after = before, after
        self._local = threading.local()
        self._is_active = True
        self._patched: dict[type[Any], tuple[str, Any, Any]] = {}

    def install(self) -> None:
        """Patch the engines' classes that are imported by now; call it again for later ones."""
        for module, class_name, method in _UPDATES:
            kind = getattr(sys.modules.get(module), class_name, None)
            original = None if kind is None or kind in self._patched else kind.__dict__.get(method)
            if kind is not None and original is not None and self._is_active:
                wrapper = self._wrap(original)
                setattr(kind, method, wrapper)
                self._patched[kind] = method, original, wrapper

    def remove(self) -> None:
        """Restore the classes; a wrapper that was wrapped in the meantime stays in place, inactive."""
        self._is_active = False
        for kind, (method, original, wrapper) in self._patched.items():
            if kind.__dict__.get(method) is wrapper:
                setattr(kind, method, original)
        self._patched.clear()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_active or getattr(self._local, "is_inside", False):
                return original(engine, *args, **kwargs)
            self._local.is_inside = True
            try:
                self._before(engine)
                result, skipped = call_update(engine, lambda: original(engine, *args, **kwargs))
            finally:
                self._local.is_inside = False
            if skipped is not None:
                self._after(engine, skipped)
            return result

        return update


def call_update(engine: Any, call: Callable[[], Any]) -> tuple[Any, bool | None]:
    """Call a method of an engine that may update its model; return its result, and if the update was skipped.

    None: there was no update. ``global_steps`` counts in all modes. ``is_gradient_accumulation_boundary()``
    would have to be called before the step, and returns False if the caller decides when gradients are
    complete.
    """
    steps, skipped = engine.global_steps, _count_skipped(engine)
    result = call()
    return result, None if engine.global_steps == steps else _count_skipped(engine) != skipped


def is_called_by_engine() -> bool:
    """Return True if code of DeepSpeed is among the callers: its optimizer's steps are not the program's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


def _count_skipped(engine: Any) -> int:
    return int(getattr(engine, "skipped_steps", 0))
