"""ZP414 last_unit_regathered: the last unit is dropped after its forward and gathered again at once.

The backward starts with the unit with which the forward ended. If it is dropped in between, it is gathered
again with nothing to hide that gather under: its memory was free only while the loss was computed. Signal,
from one rank: the last unit of the forward is gathered a second time, with less than one unit's compute since
its forward (counted from the end of its first gather: less than three units' forward compute, because its own
forward and what the gather ran ahead of lie in between).

Threshold: exposed for more than 2 % of the step (our choice). On a device whose host runs far ahead, that
gather is launched under the unit's own forward and costs nothing: no finding.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Evidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.whatif import Change
from zprof.rules.rule import choose_fix, make_finding, mean_wall_ns, rate_severity
from zprof.rules.saving_range import bound_by_prediction
from zprof.rules.volume.needless_collectives import CollectiveCost, rate_confidence
from zprof.rules.volume.regathers import Regathers, find_regathers

_FIXES = {
    "FSDP2": "fully_shard(blocks[-1], reshard_after_forward=False)   # and so the head, if it is a unit",
    "DeepSpeed": '"stage3_param_persistence_threshold" above the size of the last layers\' parameters',
    "reference": "ZeroConfig(stage=3, keep_after_forward=Keep.LAST)",
}


def last_unit_regathered(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the backward first gathers what the forward has just dropped."""
    again = find_regathers(analysis, Cause.LAST_UNIT_REGATHERED)
    if not isinstance(again, Regathers):
        return again
    between = float(again.rows["compute_between_ns"].astype("float64").mean())
    return _finding(analysis, again.price, str(again.rows["unit"].iloc[0]), between)


def _finding(analysis: RunAnalysis, price: CollectiveCost, unit: str, between_ns: float) -> Finding:
    expected = bound_by_prediction(
        analysis, Change(keep_after_forward="last"), price.saving_ns, rate_confidence(analysis, price)
    )
    return make_finding(
        Cause.LAST_UNIT_REGATHERED,
        sentence=f"{unit}, the last unit of the forward, is dropped and gathered again at once: "
        f"{price.size} with nothing to hide them under "
        f"(exposed {format_ns(price.exposed_ns)} of {format_ns(price.transfer_ns)} per step)",
        evidence=[
            Evidence(
                key="needless_gathers_per_step",
                what="gathers of it too many per step",
                value=price.count,
                unit="count",
            ),
            *price.size_evidence,
            Evidence(
                key="exposed_time_per_step",
                what="their exposed time per step",
                value=price.exposed_ns,
                unit="ns",
            ),
            Evidence(
                key="compute_between_gathers",
                what="compute between its two gathers",
                value=between_ns,
                unit="ns",
            ),
        ],
        saving_ns=expected.saving_ns,
        severity=rate_severity(price.high_ns, mean_wall_ns(analysis)),
        confidence=expected.confidence,
        fix=choose_fix(analysis.training.engine, _FIXES),
        disprove="keep that one unit and record again: its second gather goes, and the step is shorter by "
        "what was exposed of it",
    )
