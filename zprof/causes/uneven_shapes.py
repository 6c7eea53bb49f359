"""ZP417: shapes do not divide evenly, so padding is sent or one rank has more to compute.

Two cases. The more expensive case is reported if it costs at least 2 % of the step.

*Padding* (:mod:`zprof.step.needless_bytes`), from the elements that one rank reduces and the elements of the
model. At least 1 % of the sent elements must be padding (high; medium, and only with kernels that pad, if a
baseline gives psi). Without psi, on a device: kernels that pad take at least 2 % of the step
(docs/thresholds.md) and, per byte, 3 times as long as ``split_with_sizes_copy``, a plain copy of the same
tensors (medium; our choice, because a ``chunk_cat`` that also casts writes twice the bytes). On a CPU a plain
``chunk_cat`` took 5 to 16 times as long (measured on FSDP2: new memory is touched for the first time), so
there it proves nothing without psi. With the fix no padding is sent, and the kernels that pad are plain
copies.

*Longer inputs*: a rank computes at least 10 % longer than the others because its inputs are longer, not its
device slower (:mod:`zprof.analysis.time.kernel_comparison`). With the fix each rank computes for the mean.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis, Untested, make_untested, mean_wall_ns
from zprof.analysis.time.kernel_comparison import find_longer_inputs
from zprof.base.formatting import format_percent
from zprof.causes.cause import Cause, Proof, Sign, Signal
from zprof.causes.fix import ANY, Fix
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step import edits
from zprof.step.needless_bytes import (
    is_padding_kernel,
    list_padding_facts,
    measure_filling,
    measure_padded_transfer_ns,
    measure_padding,
    remove_padding,
)
from zprof.step.tasks import Graph

_MIN_STEP_RATIO = 0.02
_MIN_PADDING_RATIO = 0.01
#: Minimum time per byte of padding kernels, relative to a plain copy, that proves padding by itself.
_SLOWER = 3.0

_FIX = Fix(
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
_EVEN_INPUTS = (
    "give ranks equal tokens, not equal numbers of samples: bucket samples by length, or pack sequences\n"
    "sampler: sort each batch by length and distribute it alternately (longest, shortest, ...)"
)
_LONGER_INPUTS = (
    "rank {rank} has {excess} than the others with the same number of operators, and computes {lost:ns} "
    "longer: its inputs are longer, its device is not slower"
)

CAUSE = Cause(
    id="ZP417",
    name="uneven_shapes",
    meaning="Shapes do not divide evenly: padding travels with every gather and reduction, "
    "or one rank has more to do.",
    # waits for a rank with longer inputs, transfer of padding, kernels that write the padding
    terms=("exposed_wait_ns", "exposed_transfer_ns", "compute_ns"),
    sign=Sign.UNEQUAL_WORK,
    produces=(Sign.LATE_RANK, Sign.COPIES),
    proof=Proof.COUNTS,
    sentence="shapes do not divide evenly: {padding} is sent ({proof}), and writing it takes "
    "{writing:ns} {per_step}",
    evidence={
        "padding_time_per_step": ("time of padding kernels {per_step}", Unit.NS),
        "padding_ratio": ("padding relative to the model's elements", Unit.RATIO),
        "padding_bytes_per_step": ("padding sent {per_step}", Unit.BYTES),
        "time_per_byte_ratio": ("time per byte relative to a plain copy", Unit.FACTOR),
        "compute_over_median": ("compute relative to the median of the others", Unit.FACTOR),
        "compute_excess_per_step": ("compute in excess of the others, {per_step}", Unit.NS),
        "compute_excess_over_mean": ("compute in excess of the mean of all ranks", Unit.NS),
        "activations_ratio": ("activations relative to the others", Unit.FACTOR),
    },
    fix=_FIX,
    disprove="print parameter.shape[0] % ranks of all parameters: if all are 0, nothing is padded",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if padding or longer inputs of one rank cost time."""
    if analysis.run.world_size == 1 or not len(analysis.steps):
        return None
    padded, longer = _find_padding(analysis, baseline), _find_longer_inputs(analysis)
    if isinstance(padded, Signal) and longer is not None:
        return max(padded, longer, key=lambda signal: int(signal.lost_ns))
    return longer or padded


def _find_padding(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    known, filled = measure_padding(analysis, baseline), measure_filling(analysis)
    # a smaller baseline proves nothing if no kernel pads
    is_proven = known is not None and known.ratio >= _MIN_PADDING_RATIO and (known.stated or filled)
    ratio = known.ratio if known is not None and is_proven else 0.0
    min_ns = _MIN_STEP_RATIO * mean_wall_ns(analysis)
    if not ratio and (filled is None or filled.total_ns < min_ns):
        return None
    lost_ns = filled.bounds_ns[1] if filled else 0.0
    if ratio:
        lost_ns += measure_padded_transfer_ns(analysis, ratio)
    if lost_ns < min_ns:
        return None
    is_slow = filled is not None and filled.slower is not None and filled.slower >= _SLOWER
    if ratio and known:
        proof, confidence = f"by {known.source}", Confidence.HIGH if known.stated else Confidence.MEDIUM
    elif known is not None:
        return None
    elif is_slow and analysis.run.device != "cpu":
        proof, confidence = "its padding kernels are not plain copies", Confidence.MEDIUM
    else:
        return make_untested("padding_unknown")
    padding = f"{format_percent(ratio)} of padding" if ratio else "padding"
    return Signal(
        confidence=confidence,
        words={"padding": padding, "proof": proof, "writing": filled.total_ns if filled else 0.0},
        facts=list_padding_facts(analysis, ratio, filled),
        lost_ns=lost_ns,
    )


def _find_longer_inputs(analysis: RunAnalysis) -> Signal | None:
    seen = find_longer_inputs(analysis)
    if seen is None or seen.mean_excess_ns < _MIN_STEP_RATIO * mean_wall_ns(analysis):
        return None
    rank, held = seen.rank, seen.activations
    excess = f"{seen.longer:.1f} times the work on activations, and the same on parameters,"
    if held is not None:
        excess = f"{held:.1f} times the activations"
    return Signal(
        confidence=seen.confidence,
        sentence=_LONGER_INPUTS,
        words={"rank": rank, "excess": excess, "lost": seen.excess_ns},
        facts=seen.facts,
        lost_ns=seen.excess_ns,
        fix=_EVEN_INPUTS,
        disprove=f"give rank {rank} the batches of another rank and record again: if it is still the "
        "late one, its device is slow",
    )


@CAUSE.edit
def even_out_shapes(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Remove the padding, make kernels that pad plain copies, or give each rank the mean compute."""
    known = {fact.key: fact.value for fact in finding.evidence}
    if "padding_ratio" in known:
        return remove_padding(analysis, graph, known["padding_ratio"])
    if "time_per_byte_ratio" in known:
        plain = 1 / known["time_per_byte_ratio"]
        return [
            edits.scale_work(
                graph, lambda rank: np.where(rank.tasks.kernel.match(is_padding_kernel), plain, 1.0)
            )
        ]
    ranks, compute_ns = analysis.steps.group_by("rank"), analysis.steps.ints("compute_ns")
    own_ns = dict(zip(analysis.steps.ints("rank")[ranks.first].tolist(), ranks.mean(compute_ns), strict=True))
    mean_ns = float(np.mean(list(own_ns.values())))
    return [edits.scale_work(graph, lambda rank: mean_ns / max(1.0, own_ns[rank.tasks.rank]))]
