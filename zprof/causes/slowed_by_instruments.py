"""ZP102: the program's own loggers and debug settings slow the recorded steps.

DeepSpeed's communication logger and wall-clock timers wait for the device around each call, and
``CUDA_LAUNCH_BLOCKING`` around each kernel, so nothing overlaps; ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` checks
each collective on all ranks first. Signal: the engine's configuration and the environment of the recording.
The cause is certain, but one recording does not show its cost: the saving is 0.
"""

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.base.formatting import printable
from zprof.causes.cause import Cause, Signal
from zprof.model.findings import Severity
from zprof.model.quantities import Unit
from zprof.model.training import SettingEffect

_MAX_NAMED = 4

CAUSE = Cause(
    id="ZP102",
    name="slowed_by_instruments",
    meaning="The program's own loggers or debug settings slow the steps that were recorded.",
    sentence="the recorded steps ran with {settings}, which slows each collective or kernel: times and "
    "overlap are not those of a run without",
    evidence={"settings": ("settings that slow the steps", Unit.COUNT)},
    disprove="record without it: if the steps take as long, it costs nothing here",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if a setting that slows the steps was on while they were recorded."""
    names = [
        f"{printable(setting.name)}={printable(setting.value)}"
        for setting in analysis.run.settings
        if setting.effect is SettingEffect.SYNCHRONISES
    ]
    if not names or not analysis.time.per_rank:
        return None
    listed = ", ".join(names[:_MAX_NAMED])
    return Signal(
        words={"settings": listed},
        facts=[make_fact("settings", len(names))],
        severity=Severity.LOW,
        fix=f"turn off for production and for measurements: {listed}",
    )
