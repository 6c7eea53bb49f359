"""ZP418 option_without_effect: an option that the program sets to hide communication changes nothing.

Signal: the engine's own configuration, read while it trained, and the exposed time of the collectives that
the option is meant to hide: at least 3 % of the step. That the option is ignored is certain; what an overlap
would save is not claimed, so the saving is 0.
"""

from collections.abc import Mapping, Sequence

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Evidence, Finding, Severity
from zprof.model.formatting import format_ns, printable
from zprof.model.gaps import Gap
from zprof.model.training import NO_EFFECT_REASONS, EngineSetting, SettingEffect
from zprof.rules.rule import make_finding, mean_per_step, mean_wall_ns

_MIN_STEP_RATIO = 0.03


#: Collectives that an option is meant to hide.
_HIDDEN_BY: Mapping[str, Sequence[CollectiveKind]] = {
    "overlap_comm": (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE),
    "forward_prefetch": (CollectiveKind.ALL_GATHER,),
}
_FIXES: Mapping[SettingEffect, str] = {
    SettingEffect.IGNORED_BY_FSDP2: "for block, following in zip(blocks, blocks[1:]):\n"
    "    block.set_modules_to_forward_prefetch([following])  # FSDP2's own way",
}
_GENERAL_FIX = (
    "do not count on $name here: fewer and larger collectives cost less "
    "(larger units or buckets, more micro-batches per step)"
)


def option_without_effect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if collectives are exposed that an option without effect is meant to hide."""
    found = [
        (setting, exposed)
        for setting in analysis.run.settings
        if setting.is_set and setting.effect in NO_EFFECT_REASONS and setting.name in _HIDDEN_BY
        if (exposed := _measure_exposed_ns(analysis, _HIDDEN_BY[setting.name]))
        >= _MIN_STEP_RATIO * mean_wall_ns(analysis)
        > 0
    ]
    return _make_finding(*max(found, key=lambda entry: entry[1])) if found else None


def _measure_exposed_ns(analysis: RunAnalysis, kinds: Sequence[CollectiveKind]) -> float:
    rows = analysis.collectives
    if rows.empty:
        return 0.0
    hidden = rows[rows["kind"].astype(str).isin([kind.value for kind in kinds])]
    return mean_per_step(analysis, float(hidden[["exposed_wait_ns", "exposed_transfer_ns"]].sum().sum()))


def _make_finding(setting: EngineSetting, exposed_ns: float) -> Finding:
    name, value = printable(setting.name), printable(setting.value)
    what = "exposed per step, mean of the ranks"
    exposed = Evidence(key="exposed_per_step", what=what, value=exposed_ns, unit="ns")
    return make_finding(
        Cause.OPTION_WITHOUT_EFFECT,
        sentence=f"{name} is set to {value} and changes nothing: {NO_EFFECT_REASONS[setting.effect]}; "
        f"{format_ns(exposed_ns)} of the collectives that it is meant to hide are exposed per step",
        evidence=[exposed],
        saving_ns=(0, 0),
        severity=Severity.LOW,
        confidence=Confidence.HIGH,
        fix=_FIXES.get(setting.effect, _GENERAL_FIX.replace("$name", name)),
        disprove=f"record without {name}: if the exposed time grows, it had an effect",
    )
