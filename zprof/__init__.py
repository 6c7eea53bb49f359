"""Profile sharded training: where memory and time go, what communication costs, and what to change.

Public names are imported on first use, so that ``import zprof`` is fast and does not require torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zprof.version import __version__

if TYPE_CHECKING:
    from zprof.collectors.recorder import Recorder, record
    from zprof.collectors.schedule import steps
    from zprof.model.report import Report
    from zprof.model.training import TrainingFacts
    from zprof.rules.diagnose import diagnose
    from zprof.run.reader import Run, load

_MODULE_BY_NAME = {
    "Recorder": "zprof.collectors.recorder",
    "Report": "zprof.model.report",
    "Run": "zprof.run.reader",
    "TrainingFacts": "zprof.model.training",
    "diagnose": "zprof.rules.diagnose",
    "load": "zprof.run.reader",
    "record": "zprof.collectors.recorder",
    "steps": "zprof.collectors.schedule",
}

__all__ = ["Recorder", "Report", "Run", "TrainingFacts", "__version__", "diagnose", "load", "record", "steps"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'zprof' has no attribute {name!r}")
    return getattr(import_module(_MODULE_BY_NAME[name]), name)
