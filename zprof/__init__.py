"""Profile sharded training: where memory and time go, what communication costs, and what to change.

Public names are imported on first use, so that ``import zprof`` is fast and does not require torch.
"""

from __future__ import annotations

from zprof.version import __version__

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without the import: the command line starts here
if TYPE_CHECKING:
    from typing import Any

    from zprof.base.errors import ZprofError
    from zprof.collectors.record.recorder import Recorder, record
    from zprof.collectors.record.schedule import steps
    from zprof.model.report import Report
    from zprof.model.training import TrainingFacts
    from zprof.notebook.plan import plan
    from zprof.notebook.report import compare, diagnose
    from zprof.notebook.run import AnalysedRun, load
    from zprof.run.reader import Run

_MODULE_BY_NAME = {
    "AnalysedRun": "zprof.notebook.run",
    "Recorder": "zprof.collectors.record.recorder",
    "Report": "zprof.model.report",
    "Run": "zprof.run.reader",
    "TrainingFacts": "zprof.model.training",
    "ZprofError": "zprof.base.errors",
    "compare": "zprof.notebook.report",
    "diagnose": "zprof.notebook.report",
    "load": "zprof.notebook.run",
    "plan": "zprof.notebook.plan",
    "record": "zprof.collectors.record.recorder",
    "steps": "zprof.collectors.record.schedule",
}

__all__ = [
    "AnalysedRun",
    "Recorder",
    "Report",
    "Run",
    "TrainingFacts",
    "ZprofError",
    "__version__",
    "compare",
    "diagnose",
    "load",
    "plan",
    "record",
    "steps",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'zprof' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_MODULE_BY_NAME[name]), name)
    except ImportError as error:
        return _make_unavailable(name, error)


def _make_unavailable(name: str, error: ImportError) -> Any:
    """Return a function that raises when it is called, so that help() and tab completion see every name."""

    def unavailable(*arguments: object, **options: object) -> Any:
        raise error

    unavailable.__name__ = unavailable.__qualname__ = name
    unavailable.__doc__ = f"Not available: {error}"
    return unavailable


def __dir__() -> list[str]:
    return __all__
