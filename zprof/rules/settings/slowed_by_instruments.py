"""ZP102 slowed_by_instruments: the program's own loggers and debug settings slow the recorded steps.

DeepSpeed's communication logger and wall-clock timers wait for the device around each call, and
``CUDA_LAUNCH_BLOCKING`` around each kernel, so that nothing overlaps; ``TORCH_DISTRIBUTED_DEBUG=DETAIL``
checks each collective on all ranks first. Signal: the engine's configuration and the environment of the
recording. Certain, but its cost is not known from one recording: the saving is 0.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.formatting import printable
from zprof.model.gaps import Gap
from zprof.model.training import SettingEffect
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding

_MAX_NAMED = 4


def slowed_by_instruments(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if a setting that slows the steps was on while they were recorded."""
    names = [
        f"{printable(setting.name)}={printable(setting.value)}"
        for setting in analysis.run.settings
        if setting.effect is SettingEffect.SYNCHRONISES
    ]
    if not names or not analysis.time.per_rank:
        return None
    listed = ", ".join(names[:_MAX_NAMED])
    count = make_fact("settings", len(names))
    return make_finding(
        analysis,
        Cause.SLOWED_BY_INSTRUMENTS,
        sentence=f"the recorded steps ran with {listed}, which slows each collective or kernel: "
        "times and overlap are not those of a run without",
        evidence=[count],
        saving_ns=(0, 0),
        severity=Severity.LOW,
        confidence=Confidence.HIGH,
        fix=f"turn off for production and for measurements: {listed}",
        disprove="record without it: if the steps take as long, it costs nothing here",
    )
