"""ZP417 uneven_shapes: shapes do not divide evenly, so that padding travels or one rank has more to do.

Two forms, the one that costs more is reported:

* *Padding* (:mod:`...padding`).  Proven by bytes where psi is known: at least 1 % of what travels is padding
  (high; medium, and only beside kernels that fill up, where a baseline says what psi is).  Without psi, on a
  device: kernels that fill up take at least 2 % of the step (docs/thresholds.md) and 3 times as long for a
  byte as a plain copy (our choice: a plain ``chunk_cat`` that also casts writes twice the bytes of one)
  (medium).  On a CPU a plain ``chunk_cat`` took 5 to 16 times as long (measured on FSDP2: new memory is
  touched for the first time), so there it proves nothing without psi.  Saving: the filling beyond a plain
  copy, and the step replayed with the padding off the link.
* *Longer inputs* (:mod:`...longer_inputs`): a rank computes at least 10 % longer than the others because its
  inputs are longer.  It is the straggler that the others wait for, and this explains it.  Saving: with even
  shares, half of what it has above the mean to all that it is above the others, where its excess is cut.

Below 2 % of the step nothing is said.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.units import format_ns, format_percent
from zprof.rules.replay import won_ns
from zprof.rules.rows import mean_per_step, wall_ns
from zprof.rules.rule import finding, fix_for, not_tested, severity_of
from zprof.rules.volume.longer_inputs import LongerInputs, longer_inputs
from zprof.rules.volume.padding import Filling, Padding, filling, padding_of
from zprof.rules.volume.traffic import traffic_of

_WORTH_RATIO = 0.02
_PROVEN_RATIO = 0.01
_SLOWER = 3.0
#: Of the filling beyond a plain copy, and of all of it with the launches around it.
_FILLING_RATIO = (0.8, 1.15)
#: Of what the replay wins without the padding.
_TRANSFER_RATIO = (0.75, 1.15)
_EVEN_RATIO = 0.5

_PAD_FIXES = {
    "FSDP2": "make the first dimension of weights a multiple of the ranks that share them:\n"
    "vocabulary = -(-vocabulary // 64) * 64   # and hidden sizes, heads\n"
    "fully_shard(module, shard_placement_fn=...) only with a dimension that divides",
    "DeepSpeed": "vocabulary = -(-vocabulary // 64) * 64\n"
    '"zero_optimization": {"reduce_bucket_size": <a multiple of ranks x 64>}',
    "reference": "GptConfig(vocabulary=<a multiple of 64>, hidden=<a multiple of 64>)",
}
_EVEN_FIX = (
    "give ranks equal tokens, not equal numbers of samples: bucket samples by length, or pack sequences\n"
    "sampler: sort each batch by length and deal it out in turn (longest, shortest, ...)"
)


def uneven_shapes(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where padding, or longer inputs of one rank, cost time."""
    if analysis.run.world_size == 1 or analysis.steps.empty:
        return None
    padded = _padded(analysis, baseline)
    longer = _longer(analysis)
    if isinstance(padded, Finding) and isinstance(longer, Finding):
        return max(padded, longer, key=lambda answer: answer.saving_ns[1])
    return longer or padded


def _padded(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    known, filled = padding_of(analysis, baseline), filling(analysis)
    ratio = _proven(known, filled)
    worth = _WORTH_RATIO * wall_ns(analysis)
    if not ratio and (filled is None or filled.total_ns < worth):
        return None
    saving = _saving(analysis, filled, ratio)
    if saving[1] < worth:
        return None
    if ratio and known:
        confidence = Confidence.HIGH if known.stated else Confidence.MEDIUM
        return _padding_found(analysis, saving, filled, f"by {known.said_by}", ratio, confidence)
    slow = filled is not None and filled.slower is not None and filled.slower >= _SLOWER
    if slow and known is None and analysis.run.device != "cpu":
        says = "its kernels that fill up are no plain copies"
        return _padding_found(analysis, saving, filled, says, None, Confidence.MEDIUM)
    if known is not None:
        return None
    return not_tested(
        Cause.UNEVEN_SHAPES,
        "kernels that can pad take time, and how many parameters the model has is not known",
        "say it (report --parameters N), or give a baseline of the same model",
    )


def _proven(known: Padding | None, filled: Filling | None) -> float:
    """The padding; 0 where it is none, or only a smaller baseline says so, and nothing fills up."""
    if known is None or known.ratio < _PROVEN_RATIO or not (known.stated or filled):
        return 0.0
    return known.ratio


def _saving(analysis: RunAnalysis, filled: Filling | None, ratio: float) -> tuple[float, float]:
    spent = filled.total_ns if filled else 0.0
    plain = 1 / filled.slower if filled and filled.slower and filled.slower > 1 else 0.5
    won = 0.0
    if ratio:
        traffic = traffic_of(analysis)
        transfer = analysis.collectives["transfer_ns"].astype(float)
        for way in (traffic.gathers, traffic.reductions):
            transfer.loc[way.rows.index] /= 1 + ratio
        won = won_ns(analysis, transfer)
    return (
        _FILLING_RATIO[0] * spent * (1 - plain) + _TRANSFER_RATIO[0] * won,
        _FILLING_RATIO[1] * spent + _TRANSFER_RATIO[1] * won,
    )


def _padding_found(
    analysis: RunAnalysis,
    saving: tuple[float, float],
    filled: Filling | None,
    proof: str,
    ratio: float | None,
    confidence: Confidence,
) -> Finding:
    spent = filled.total_ns if filled else 0.0
    padding = "padding" if ratio is None else f"{format_percent(ratio)} of padding"
    evidence = [Evidence(what="filling up, a step", value=spent, unit="ns")]
    if ratio is not None:
        evidence.append(Evidence(what="padding, of the model's elements", value=ratio, unit="ratio"))
        wasted = _padding_bytes(analysis, ratio)
        evidence.append(Evidence(what="padding that travels, a step", value=wasted, unit="bytes"))
    if filled is not None and filled.slower is not None:
        evidence.append(
            Evidence(what="time for a byte over that of a plain copy", value=filled.slower, unit="times")
        )
    return finding(
        Cause.UNEVEN_SHAPES,
        sentence=f"shapes do not divide evenly: {padding} travels ({proof}), and filling it up takes "
        f"{format_ns(spent)} a step",
        evidence=evidence,
        saving_ns=saving,
        severity=severity_of(saving[1], wall_ns(analysis)),
        confidence=confidence,
        fix=fix_for(analysis.training.engine, _PAD_FIXES),
        disprove="print parameter.shape[0] % ranks of all parameters: if all are 0, nothing is padded",
    )


def _padding_bytes(analysis: RunAnalysis, ratio: float) -> float:
    traffic = traffic_of(analysis)
    moved = traffic.gathers.rows["bytes"].sum() + traffic.reductions.rows["bytes"].sum()
    return mean_per_step(analysis, float(moved)) * ratio / (1 + ratio)


def _longer(analysis: RunAnalysis) -> Finding | None:
    seen = longer_inputs(analysis)
    wall = wall_ns(analysis)
    if seen is None or seen.mean_excess_ns < _WORTH_RATIO * wall:
        return None
    saving = (_EVEN_RATIO * seen.mean_excess_ns, seen.excess_ns)
    return finding(
        Cause.UNEVEN_SHAPES,
        sentence=f"rank {seen.rank} has {_how_much(seen)} than the others at the same number of operators, "
        f"and computes {format_ns(seen.excess_ns)} longer: its inputs are longer, its device is not slower",
        evidence=_evidence(seen),
        saving_ns=saving,
        severity=severity_of(saving[1], wall),
        confidence=seen.confidence,
        fix=_EVEN_FIX,
        disprove=f"give rank {seen.rank} the batches of another rank and record again: if it stays the late "
        "one, it is the device",
    )


def _how_much(seen: LongerInputs) -> str:
    if seen.activations is not None:
        return f"{seen.activations:.1f} times the activations"
    return f"{seen.longer:.1f} times the work on activations, and the same on parameters,"


def _evidence(seen: LongerInputs) -> list[Evidence]:
    rank = seen.rank
    rows = [
        Evidence(what="compute over the median of the others", value=seen.longer, unit="times", rank=rank),
        Evidence(what="computes longer than they, a step", value=seen.excess_ns, unit="ns", rank=rank),
        Evidence(what="longer than the mean of all", value=seen.mean_excess_ns, unit="ns", rank=rank),
    ]
    if seen.activations is not None:
        rows.append(Evidence(what="activations over theirs", value=seen.activations, unit="times", rank=rank))
    return rows
