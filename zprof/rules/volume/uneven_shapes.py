"""ZP417 uneven_shapes: shapes do not divide evenly, so padding is sent or one rank has more to compute.

Two cases. The more expensive one is reported, if it costs at least 2 % of the step.

*Padding*, from one rank: all gradients are reduced once or k times per step, so with R elements reduced
per step

    padding = R / (k psi) - 1        psi: reported by the program, or R / k of a baseline with the same model

At least 1 % of the sent elements must be padding (high; medium, and only with kernels that pad, if a baseline
gives psi). Without psi, on a device: kernels that pad take at least 2 % of the step (docs/thresholds.md) and,
per byte, 3 times as long as ``split_with_sizes_copy``, a plain copy of the same tensors (medium; our choice,
because a ``chunk_cat`` that also casts writes twice the bytes). On a CPU a plain ``chunk_cat`` took 5 to 16
times as long (measured on FSDP2: new memory is touched for the first time), so there it proves nothing
without psi. With the fix no padding is sent, and the kernels that pad are plain copies.

*Longer inputs*: a rank computes at least 10 % longer than the others because its inputs are longer. A rank
with more tokens keeps more activations for its backward, a slow one does not. It also spends the same time in
kernels that work on parameters (optimizer, copies of shards), but more in those that work on activations,
bound by memory or not. A slow device is slow at all of them, one with low clocks at matrix products only. Its
activations must exceed the others' by at least half as much as its compute. If memory was not recorded, its
work on parameters must exceed the others' by at most a quarter of that, its memory-bound work on activations
by at least half, with the same number of kernels (within 1 %). With the fix each rank computes for the mean.
"""

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.per_step import mean_per_step, mean_wall_ns
from zprof.analysis.time.collective_rows import select_kind
from zprof.causes.fix import ANY, Fix, choose_fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import PADDING_RATIO, TIME_PER_BYTE_RATIO, Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.step.traffic import count_elements, read_model_traffic

_FILLS = re.compile(r"chunk_cat|(?:^|::|_)pad(?:_|$|\b)|constant_pad", re.ASCII)
_COPIES_OUT = re.compile(r"split_with_sizes_copy", re.ASCII)
_MAX_NAME_LENGTH = 400
#: A dimension of n + 1 on n ranks pads to 2 n, so padding is never as much as the model itself.
_MAX_RATIO = 1.0
#: Beyond half of a baseline, it is another model or another number of micro-batches.
_MAX_OVER_BASELINE_RATIO = 0.5
_MESSAGES = (CollectiveKind.SEND.value, CollectiveKind.RECV.value)


class Filling(Struct, frozen=True, kw_only=True):
    """Time per rank and step in kernels that pad. ``slower`` is None without a plain copy to compare."""

    total_ns: float
    slower: float | None

    @property
    def bounds_ns(self) -> tuple[float, float]:
        """Return what is saved at least, the time beyond a plain copy, and at most, all with its launches."""
        plain = 1 / self.slower if self.slower and self.slower > 1 else 0.5
        return _FILLING_RATIO[0] * self.total_ns * (1 - plain), _FILLING_RATIO[1] * self.total_ns


class Padding(Struct, frozen=True, kw_only=True):
    """Padding elements relative to those of the model, and the source of that number.

    ``stated``: the source is the program, not a baseline that is assumed to have the same model.
    """

    ratio: float
    source: str
    stated: bool


def measure_padding(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Padding | None:
    """Return the padding, None if the number of the model's elements is unknown or implausible."""
    reduced = _reduced_elements(analysis)
    psi, micro_batches = analysis.training.parameters, max(1, analysis.training.micro_batches)
    if not reduced:
        return None
    if psi:
        times = micro_batches if reduced >= 0.99 * psi * micro_batches else max(1, int(reduced / psi + 0.01))
        return _plausible_padding(
            reduced / (times * psi) - 1, "the program's number of parameters", stated=True
        )
    theirs = _reduced_elements(baseline) if baseline is not None else 0.0
    if not theirs:
        return None
    times = max(1, int(reduced / theirs + 0.01))
    return _plausible_padding(reduced / (times * theirs) - 1, "the baseline's gradients", stated=False)


def is_padding_kernel(name: str) -> bool:
    """Return True if kernels of this name can pad."""
    return _FILLS.search(name[:_MAX_NAME_LENGTH]) is not None


def measure_filling(analysis: RunAnalysis) -> Filling | None:
    """Return the time of kernels that pad, None if there are none or none was recorded."""
    table = analysis.kernels
    if not len(table):
        return None
    fills = _kernel_time_per_step(analysis, table, table.texts("name").match(is_padding_kernel))
    if not fills:
        return None
    copied = _kernel_time_per_step(analysis, table, _match_names(table, _COPIES_OUT))
    traffic = read_model_traffic(analysis)
    gathered, reduced = (
        mean_per_step(analysis, float(way.rows.ints("bytes").sum()))
        for way in (traffic.gathers, traffic.reductions)
    )
    known = copied and gathered and reduced
    slower = (fills / reduced) / (copied / gathered) if known else None
    return Filling(total_ns=fills, slower=slower)


def _match_names(table: Columns, pattern: re.Pattern[str]) -> Mask:
    return table.texts("name").match(lambda name: pattern.search(name[:_MAX_NAME_LENGTH]))


def _kernel_time_per_step(analysis: RunAnalysis, table: Columns, chosen: Mask) -> float:
    """Return the time per step and rank; copies that overlap other kernels cost nothing."""
    rows = table.at(chosen)
    computes = rows.texts("role").equals("compute")
    alone = np.where(computes, rows.ints("total_ns"), rows.ints("uncovered_ns"))
    return mean_per_step(analysis, float(alone.sum()))


def _reduced_elements(analysis: RunAnalysis) -> float:
    """Return the gradient elements that a rank scatters per step, or all-reduces if it scatters none."""
    rows = read_model_traffic(analysis).reductions.rows
    scattered = select_kind(rows, CollectiveKind.REDUCE_SCATTER)
    return mean_per_step(analysis, count_elements(scattered if len(scattered) else rows))


def _plausible_padding(ratio: float, source: str, *, stated: bool) -> Padding | None:
    most = _MAX_RATIO if stated else _MAX_OVER_BASELINE_RATIO
    return Padding(ratio=ratio, source=source, stated=stated) if -0.01 < ratio < most else None


_LONGER_RATIO = 1.10
_FOLLOWS_RATIO, _STAYS_RATIO = 0.5, 0.25
_SAME_COUNT_RATIO = 0.01
_ON_PARAMETERS = re.compile(
    r"multi_tensor_apply|adam|lamb|adagrad|sgd|split_with_sizes_copy|copy_in|chunk_cat", re.I | re.ASCII
)
_BOUND_BY_MEMORY = re.compile(
    r"elementwise|layer_?norm|rms_?norm|softmax|dropout|gelu|silu|aten::(?:add|mul)\b", re.I | re.ASCII
)


class LongerInputs(Struct, frozen=True, kw_only=True):
    """The rank with longer inputs, and the ratio by which it exceeds the median of the others.

    ``mean_excess_ns``: its compute above the mean of all ranks, per step: the part that even shares would
    remove. ``excess_ns``: above the median of the others. ``activations`` is None if kernels were the
    evidence.
    """

    rank: int
    longer: float
    activations: float | None
    excess_ns: float
    mean_excess_ns: float
    confidence: Confidence


def find_longer_inputs(analysis: RunAnalysis) -> LongerInputs | None:
    """Return the rank with longer inputs, None if no rank clearly computes more or it may just be slow.

    Ranks that send each other messages are stages of a pipeline: they compute different layers, and the first
    keeps the activations of more micro-batches.
    """
    steps = analysis.steps
    ranks, compute = _reduce_by_rank(steps.ints("rank"), steps.ints("compute_ns"), Groups.mean)
    if len(compute) < 2 or analysis.collectives.texts("kind").equals(*_MESSAGES).any():
        return None
    place = int(compute.argmax())
    rank, others = int(ranks[place]), np.delete(compute, place)
    longer = _ratio_to_others(ranks, compute, rank)
    if longer < _LONGER_RATIO:
        return None
    # The maximum activations of each rank at the peaks of its phases and of its steps.
    memory, name = analysis.memory, Tenant.ACTIVATIONS
    held = [(peak.rank, peak.tenants.get(name, 0)) for peak in memory.phases]
    held += [(peak.rank, peak.tenants.get(name, 0)) for peak in memory.per_rank]
    held += [(line.rank, max(line.tenants.get(name.value, ()), default=0)) for line in memory.timelines]
    owner, held_bytes = np.array([each for each in held if each[1] > 0], dtype=np.int64).reshape(-1, 2).T
    holders, most = _reduce_by_rank(owner, held_bytes, Groups.max)
    activations = _ratio_to_others(holders, most, rank) if len(most) >= len(compute) else None
    if activations is not None:
        is_confirmed = activations >= 1 + _FOLLOWS_RATIO * (longer - 1)
    else:
        is_confirmed = _do_kernels_agree(analysis, rank, longer)
    if not is_confirmed:
        return None
    return LongerInputs(
        rank=rank,
        longer=longer,
        activations=activations,
        excess_ns=float(compute[place] - np.median(others)),
        mean_excess_ns=float(compute[place] - compute.mean()),
        confidence=Confidence.MEDIUM if activations is None else Confidence.HIGH,
    )


def _do_kernels_agree(analysis: RunAnalysis, rank: int, longer: float) -> bool:
    table = analysis.kernels
    if not len(table):
        return False
    on_parameters = _match_names(table, _ON_PARAMETERS)
    by_memory = ~on_parameters & _match_names(table, _BOUND_BY_MEMORY)
    counts = _reduce_by_rank(table.ints("rank"), table.ints("count"), Groups.sum)
    parameters, activations = (
        _reduce_by_rank(table.ints("rank")[chosen], table.ints("total_ns")[chosen], Groups.sum)
        for chosen in (on_parameters, by_memory)
    )
    if any(rank not in ranks or len(ranks) < 2 for ranks, _ in (counts, parameters, activations)):
        return False
    return (
        abs(_ratio_to_others(*counts, rank) - 1) <= _SAME_COUNT_RATIO
        and abs(_ratio_to_others(*parameters, rank) - 1) <= _STAYS_RATIO * (longer - 1)
        and _ratio_to_others(*activations, rank) >= 1 + _FOLLOWS_RATIO * (longer - 1)
    )


def _reduce_by_rank(
    rank: Int64s, values: Int64s, reduce: Callable[[Groups, Int64s], Int64s | Floats]
) -> tuple[Int64s, Int64s | Floats]:
    """Return the ranks in order, and one value of each."""
    by_rank = Groups(rank)
    return rank[by_rank.first], reduce(by_rank, values)


def _ratio_to_others(ranks: Int64s, values: Int64s | Floats, rank: int) -> float:
    others = float(np.median(values[ranks != rank]))
    return float(values[ranks == rank][0]) / others if others > 0 else 0.0


_MIN_STEP_RATIO = 0.02
_PROVEN_RATIO = 0.01
_SLOWER = 3.0
#: Shares saved of the padding kernels' time beyond a plain copy, and of all of it with its launches.
_FILLING_RATIO = (0.8, 1.15)

_PAD_FIXES = Fix(
    forms={
        Engine.FSDP2: "make the first dimension of weights a multiple of the number of ranks that "
        "shard them:\n"
        "vocabulary = -(-vocabulary // 64) * 64   # and hidden sizes, heads\n"
        "fully_shard(module, shard_placement_fn=...) only with a dimension that divides evenly",
        Engine.DEEPSPEED: "vocabulary = -(-vocabulary // 64) * 64\n"
        '"zero_optimization": {"reduce_bucket_size": <a multiple of ranks x 64>}',
        Engine.REFERENCE: "GptConfig(vocabulary=<a multiple of 64>, hidden=<a multiple of 64>)",
    },
    settings={
        (
            Framework.TRANSFORMERS,
            ANY,
        ): "model.resize_token_embeddings(pad_to_multiple_of=64)  # before the Trainer",
    },
    general="vocabulary = -(-vocabulary // 64) * 64   # and hidden sizes, heads",
)
_EVEN_FIX = (
    "give ranks equal tokens, not equal numbers of samples: bucket samples by length, or pack sequences\n"
    "sampler: sort each batch by length and distribute it alternately (longest, shortest, ...)"
)


def uneven_shapes(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if padding, or longer inputs of one rank, cost time."""
    if analysis.run.world_size == 1 or not len(analysis.steps):
        return None
    padded = _find_padding(analysis, baseline)
    longer = _find_longer_inputs(analysis)
    if isinstance(padded, Finding) and isinstance(longer, Finding):
        return max(padded, longer, key=lambda answer: answer.saving_ns[1])
    return longer or padded


def _find_padding(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    known, filled = measure_padding(analysis, baseline), measure_filling(analysis)
    ratio = _proven_padding(known, filled)
    worth = _MIN_STEP_RATIO * mean_wall_ns(analysis)
    if not ratio and (filled is None or filled.total_ns < worth):
        return None
    lost_ns = filled.bounds_ns[1] if filled else 0.0
    if ratio:
        lost_ns += _padded_transfer_ns(analysis, ratio)
    if lost_ns < worth:
        return None
    if ratio and known:
        confidence = Confidence.HIGH if known.stated else Confidence.MEDIUM
        return _make_padding_finding(analysis, lost_ns, filled, f"by {known.source}", ratio, confidence)
    slow = filled is not None and filled.slower is not None and filled.slower >= _SLOWER
    if slow and known is None and analysis.run.device != "cpu":
        proof = "its padding kernels are not plain copies"
        return _make_padding_finding(analysis, lost_ns, filled, proof, None, Confidence.MEDIUM)
    if known is not None:
        return None
    return untested_gap(
        Cause.UNEVEN_SHAPES,
        "kernels that can pad take time, and the number of parameters is unknown",
        "pass it (report --parameters N), or pass a baseline of the same model",
    )


def _padded_transfer_ns(analysis: RunAnalysis, ratio: float) -> float:
    """Return the time per step that the padding of parameters and gradients is exposed at most."""
    traffic = read_model_traffic(analysis)
    parts = [way.rows for way in (traffic.gathers, traffic.reductions)]
    moved, exposed = (
        sum(float(rows.ints(name).sum()) for rows in parts) for name in ("transfer_ns", "exposed_transfer_ns")
    )
    return mean_per_step(analysis, min(exposed, moved * ratio / (1 + ratio)))


def _proven_padding(known: Padding | None, filled: Filling | None) -> float:
    """Return the padding; 0 if there is none, or if only a smaller baseline shows it and no kernel pads."""
    if known is None or known.ratio < _PROVEN_RATIO or not (known.stated or filled):
        return 0.0
    return known.ratio


def _make_padding_finding(
    analysis: RunAnalysis,
    lost_ns: float,
    filled: Filling | None,
    proof: str,
    ratio: float | None,
    confidence: Confidence,
) -> Finding:
    basis = analysis.time.basis
    spent = filled.total_ns if filled else 0.0
    padding = "padding" if ratio is None else f"{format_percent(ratio)} of padding"
    evidence = [make_fact("padding_time_per_step", spent)]
    if ratio is not None:
        evidence.append(make_fact(PADDING_RATIO, ratio))
        traffic = read_model_traffic(analysis)
        moved = sum(way.rows.ints("bytes").sum() for way in (traffic.gathers, traffic.reductions))
        wasted = mean_per_step(analysis, float(moved)) * ratio / (1 + ratio)
        evidence.append(make_fact("padding_bytes_per_step", wasted))
    if filled is not None and filled.slower is not None:
        evidence.append(make_fact(TIME_PER_BYTE_RATIO, filled.slower))
    return make_finding(
        analysis,
        Cause.UNEVEN_SHAPES,
        sentence=f"shapes do not divide evenly: {padding} is sent ({proof}), and writing it takes "
        f"{format_ns(spent)} {basis}",
        evidence=evidence,
        saving_ns=(0.0, lost_ns),
        severity=rate_severity(lost_ns, mean_wall_ns(analysis)),
        confidence=confidence,
        fix=choose_fix(analysis, _PAD_FIXES),
        disprove="print parameter.shape[0] % ranks of all parameters: if all are 0, nothing is padded",
    )


def _find_longer_inputs(analysis: RunAnalysis) -> Finding | None:
    seen = find_longer_inputs(analysis)
    wall = mean_wall_ns(analysis)
    if seen is None or seen.mean_excess_ns < _MIN_STEP_RATIO * wall:
        return None
    return make_finding(
        analysis,
        Cause.UNEVEN_SHAPES,
        sentence=f"rank {seen.rank} has {_describe_excess(seen)} than the others with the same number of "
        "operators, "
        f"and computes {format_ns(seen.excess_ns)} longer: its inputs are longer, its device is not slower",
        evidence=_evidence(seen),
        saving_ns=(0.0, seen.excess_ns),
        severity=rate_severity(seen.excess_ns, wall),
        confidence=seen.confidence,
        fix=_EVEN_FIX,
        disprove=f"give rank {seen.rank} the batches of another rank and record again: if it is still the "
        "late one, its device is slow",
    )


def _describe_excess(seen: LongerInputs) -> str:
    if seen.activations is not None:
        return f"{seen.activations:.1f} times the activations"
    return f"{seen.longer:.1f} times the work on activations, and the same on parameters,"


def _evidence(seen: LongerInputs) -> list[Fact]:
    rank = seen.rank
    rows = [
        make_fact("compute_over_median", seen.longer, rank=rank),
        make_fact("compute_excess_per_step", seen.excess_ns, rank=rank),
        make_fact("compute_excess_over_mean", seen.mean_excess_ns, rank=rank),
    ]
    if seen.activations is not None:
        rows.append(make_fact("activations_ratio", seen.activations, rank=rank))
    return rows
