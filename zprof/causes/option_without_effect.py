"""ZP418: an option that the program sets to hide communication changes nothing.

Signal: the engine's own configuration, read while it trained, and the exposed time of the collectives that
the option is meant to hide: at least 3 % of the step. That the option is ignored is certain; what an overlap
would save is not claimed, so the saving is 0.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import mean_per_step, mean_wall_ns
from zprof.analysis.signal import make_fact
from zprof.analysis.time.collective_rows import select_kind
from zprof.causes.cause import Cause, Signal
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Severity
from zprof.model.formatting import printable
from zprof.model.quantities import Unit
from zprof.model.training import NO_EFFECT_REASONS, SettingEffect

_MIN_STEP_RATIO = 0.03
_REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


class _Option(Struct, frozen=True, kw_only=True):
    """What an option is meant to hide, and what helps where it does not."""

    hides: Sequence[CollectiveKind]
    fix: str
    fix_without_streams: str = ""

    def choose_fix(self, effect: SettingEffect) -> str:
        """Return what helps for this reason: without streams no other option hides it either."""
        return (effect is SettingEffect.NO_STREAMS and self.fix_without_streams) or self.fix


_OPTIONS: Mapping[str, _Option] = {
    "overlap_comm": _Option(
        hides=_REDUCTIONS,
        fix='"overlap_comm": false  # it changes nothing here\n'
        "fewer and larger reductions cost less: reduce_bucket_size, more micro-batches per step",
    ),
    "forward_prefetch": _Option(
        hides=(CollectiveKind.ALL_GATHER,),
        fix="for block, following in zip(blocks, blocks[1:]):\n"
        "    block.set_modules_to_forward_prefetch([following])  # FSDP2's own way",
        fix_without_streams="forward_prefetch=False  # it changes nothing here\n"
        "fewer and larger gathers cost less: an auto_wrap_policy of larger units, sharding_strategy="
        "ShardingStrategy.SHARD_GRAD_OP",
    ),
    "set_modules_to_forward_prefetch": _Option(
        hides=(CollectiveKind.ALL_GATHER,),
        fix="remove the calls of set_modules_to_forward_prefetch: they change nothing here\n"
        "fewer and larger gathers cost less: fully_shard on larger modules, reshard_after_forward=False",
    ),
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
        if setting.is_set and setting.effect in NO_EFFECT_REASONS and setting.name in _OPTIONS
    ]
    exposed_ns = [_measure_exposed_ns(analysis, _OPTIONS[setting.name].hides) for setting in ignored]
    most_ns, wall_ns = max(exposed_ns, default=0.0), mean_wall_ns(analysis)
    if not wall_ns or not ignored or most_ns < _MIN_STEP_RATIO * wall_ns:
        return None
    setting = ignored[exposed_ns.index(most_ns)]
    name = printable(setting.name)
    return Signal(
        words={
            "name": name,
            "value": printable(setting.value),
            "reason": NO_EFFECT_REASONS[setting.effect],
            "exposed": most_ns,
        },
        facts=[make_fact("exposed_per_step", most_ns)],
        severity=Severity.LOW,
        fix=_OPTIONS[setting.name].choose_fix(setting.effect),
        disprove=f"record without {name}: if the exposed time grows, it had an effect",
    )


def _measure_exposed_ns(analysis: RunAnalysis, kinds: Sequence[CollectiveKind]) -> float:
    rows = analysis.collectives
    if not len(rows):
        return 0.0
    hidden = select_kind(rows, *kinds)
    exposed_ns = hidden.ints("exposed_wait_ns").sum() + hidden.ints("exposed_transfer_ns").sum()
    return mean_per_step(analysis, float(exposed_ns))
