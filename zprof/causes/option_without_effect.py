"""ZP418: an option that the program sets to hide communication changes nothing.

Signal: the engine's own configuration, read while it trained, and the exposed time of the collectives that
the option is meant to hide: at least 3 % of the step. It is certain that the option is ignored. Nothing is
claimed about the saving of an overlap, so it is 0.
"""

from collections.abc import Mapping, Sequence

from zprof.analysis.analysis import RunAnalysis, make_fact, mean_per_step, mean_wall_ns
from zprof.analysis.time.decomposition import select_kind
from zprof.base.formatting import printable
from zprof.causes.cause import Cause, Signal
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Severity
from zprof.model.quantities import Unit
from zprof.model.training import NO_EFFECT_REASONS, SettingEffect

_MIN_STEP_RATIO = 0.03
_REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


#: What each option is meant to hide.
_HIDDEN_KINDS: Mapping[str, Sequence[CollectiveKind]] = {
    "overlap_comm": _REDUCTIONS,
    "forward_prefetch": (CollectiveKind.ALL_GATHER,),
    "set_modules_to_forward_prefetch": (CollectiveKind.ALL_GATHER,),
}
_FIXES: Mapping[str, str] = {
    "overlap_comm": '"overlap_comm": false  # it changes nothing here\n'
    "fewer and larger reductions cost less: reduce_bucket_size, more micro-batches per step",
    "forward_prefetch": "for block, following in zip(blocks, blocks[1:]):\n"
    "    block.set_modules_to_forward_prefetch([following])  # FSDP2's own way",
    "set_modules_to_forward_prefetch": "remove the calls of set_modules_to_forward_prefetch: they change "
    "nothing here\n"
    "fewer and larger gathers cost less: fully_shard on larger modules, reshard_after_forward=False",
}
#: Without streams no other option hides it either.
_FIXES_WITHOUT_STREAMS: Mapping[str, str] = {
    "forward_prefetch": "forward_prefetch=False  # it changes nothing here\n"
    "fewer and larger gathers cost less: an auto_wrap_policy of larger units, sharding_strategy="
    "ShardingStrategy.SHARD_GRAD_OP",
}

CAUSE = Cause(
    id="ZP418",
    name="option_without_effect",
    meaning="An option that is set to hide communication changes nothing here.",
    sentence="{name} is set to {value} and changes nothing: {reason}; {exposed:ns} of the collectives that "
    "it is meant to hide are exposed {per_step}",
    evidence={"exposed_per_step": ("exposed {per_step}, mean of the ranks", Unit.NS)},
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if collectives are exposed that an option without effect is meant to hide."""
    ignored = [
        setting
        for setting in analysis.run.settings
        if setting.is_set and setting.effect in NO_EFFECT_REASONS and setting.name in _HIDDEN_KINDS
    ]
    exposed_ns = [_measure_exposed_ns(analysis, _HIDDEN_KINDS[setting.name]) for setting in ignored]
    most_ns, wall_ns = max(exposed_ns, default=0.0), mean_wall_ns(analysis)
    if not wall_ns or not ignored or most_ns < _MIN_STEP_RATIO * wall_ns:
        return None
    setting = ignored[exposed_ns.index(most_ns)]
    name, has_streams = printable(setting.name), setting.effect is not SettingEffect.NO_STREAMS
    fixes = _FIXES if has_streams else {**_FIXES, **_FIXES_WITHOUT_STREAMS}
    return Signal(
        words={
            "name": name,
            "value": printable(setting.value),
            "reason": NO_EFFECT_REASONS[setting.effect],
            "exposed": most_ns,
        },
        facts=[make_fact("exposed_per_step", most_ns)],
        severity=Severity.LOW,
        fix=fixes[setting.name],
        disprove=f"record without {name}: if the exposed time grows, it had an effect",
    )


def _measure_exposed_ns(analysis: RunAnalysis, kinds: Sequence[CollectiveKind]) -> float:
    rows = analysis.collectives
    if not len(rows):
        return 0.0
    hidden = select_kind(rows, *kinds)
    exposed_ns = hidden.ints("exposed_wait_ns").sum() + hidden.ints("exposed_transfer_ns").sum()
    return mean_per_step(analysis, float(exposed_ns))
