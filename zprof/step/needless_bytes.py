"""Measure needless bytes, and edit the step to not send them.

Needless are padding, 32-bit messages of a model that computes in 16 bits, and repeated gathers.

Padding is sent with parameters and gradients, and written by kernels. All gradients are reduced once or k
times per step, so with R elements reduced per step

    padding = R / (k psi) - 1        psi: reported by the program, or R / k of a baseline with the same model

The names of matrix products contain their types: ``..._bf16...``, ``h16816gemm``, Tensile's ``BBS``/``HHS``,
cuBLAS's ``nvjet_tst`` (t: bfloat16, h: float16, s: float32, q: float8; input, sum, output). A device's flash
attention exists in half precision only, the memory-efficient one in float32 too (``fmha_cutlassF_f32``).
Operators of the CPU have no type.

32-bit messages lose half of their transfer, at most all exposed transfer. With the fix, their transfer beyond
the latency is halved, as is the time of their copies.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import Fact, RunAnalysis, list_copy_names, make_fact, mean_per_step
from zprof.analysis.columns import Columns, Mask
from zprof.analysis.time.decomposition import select_kind
from zprof.analysis.time.needless_collectives import (
    Regathers,
    RepeatedGather,
    find_regathers,
    select_gone_with,
)
from zprof.base.formatting import format_bytes, printable
from zprof.model.collectives import CollectiveKind
from zprof.step import edits
from zprof.step.tasks import Floats, Graph, RankGraph
from zprof.step.traffic import are_mostly_bounds, count_elements, read_model_traffic, surely_moving_ns

_FILLS = re.compile(r"chunk_cat|(?:^|::|_)pad(?:_|$|\b)|constant_pad", re.ASCII)
_COPIES_OUT = re.compile(r"split_with_sizes_copy", re.ASCII)
_MAX_NAME_LENGTH = 400
#: A dimension of n + 1 on n ranks pads to 2 n, so padding is never as much as the model itself.
_MAX_RATIO = 1.0
#: A difference of more than half from the baseline means another model or number of micro-batches.
_MAX_OVER_BASELINE_RATIO = 0.5
#: Saved shares of the padding kernels' time: of the time beyond a plain copy, and of all time with its
#: launches.
_FILLING_RATIO = (0.8, 1.15)
_HALF = re.compile(
    r"bf16|bfloat16|fp16|f16(?!\d)|_half|<half|__half|c10::Half|[hs]\d*(?:16816|884|1688)gemm_(?:bf16|fp16)"
    r"|(?:^|_)h\d{3,5}gemm|nvjet_(?:[htq]+s[htq]|hhh)_|_(?:BBS|HHS|BSS|HSS|B8|F8)|flash|fmha(?!\w*f32)",
    re.IGNORECASE | re.ASCII,
)
_PRODUCT = re.compile(
    r"gemm|nvjet|cijk_|cutlass|matmul|xmma|flash|fmha|attention|attn|conv", re.IGNORECASE | re.ASCII
)
_FULL = re.compile(
    r"sgemm|nvjet_s+_|f32f32|tf32|_S_B_|_SB_|s1688gemm_(?!bf16|fp16)|fp32|float", re.IGNORECASE | re.ASCII
)
#: Operators of the host, if a trace has no device kernels.
_OPERATOR = re.compile(r"(?:aten|fsdp|c10d|autograd|prims|torch)::", re.ASCII)
_MAX_SHOWN = 60
#: Minimum share of time in matrix products of known type.
_MOSTLY_RATIO = 0.5
_FULL_BYTES = 4


class Filling(Struct, frozen=True, kw_only=True):
    """Time per rank and step in kernels that pad. ``slower`` is None without a plain copy to compare."""

    total_ns: float
    slower: float | None

    @property
    def bounds_ns(self) -> tuple[float, float]:
        """Return the minimum saving (the time beyond a plain copy) and the maximum (all time with its
        launches).
        """
        plain = 1 / self.slower if self.slower and self.slower > 1 else 0.5
        return _FILLING_RATIO[0] * self.total_ns * (1 - plain), _FILLING_RATIO[1] * self.total_ns


class Padding(Struct, frozen=True, kw_only=True):
    """Padding elements relative to the model's elements, and the source of the model's number.

    ``stated``: the number comes from the program, not from a baseline assumed to have the same model.
    """

    ratio: float
    source: str
    stated: bool


def measure_padding(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Padding | None:
    """Return the padding, None if the model's number of elements is unknown or implausible."""
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
    copied = _kernel_time_per_step(
        analysis, table, table.texts("name").match(lambda name: _COPIES_OUT.search(name[:_MAX_NAME_LENGTH]))
    )
    traffic = read_model_traffic(analysis)
    gathered, reduced = (
        mean_per_step(analysis, float(way.rows.ints("bytes").sum()))
        for way in (traffic.gathers, traffic.reductions)
    )
    known = copied and gathered and reduced
    slower = (fills / reduced) / (copied / gathered) if known else None
    return Filling(total_ns=fills, slower=slower)


def _kernel_time_per_step(analysis: RunAnalysis, table: Columns, chosen: Mask) -> float:
    """Return the time per step and rank; copies that overlap other kernels cost nothing."""
    rows = table.at(chosen)
    computes = rows.texts("role").equals("compute")
    alone = np.where(computes, rows.ints("total_ns"), rows.ints("uncovered_ns"))
    return mean_per_step(analysis, float(alone.sum()))


def _reduced_elements(analysis: RunAnalysis) -> float:
    """Return the gradient elements that a rank reduce-scatters per step, or all-reduces if there are none."""
    rows = read_model_traffic(analysis).reductions.rows
    scattered = select_kind(rows, CollectiveKind.REDUCE_SCATTER)
    return mean_per_step(analysis, count_elements(scattered if len(scattered) else rows))


def _plausible_padding(ratio: float, source: str, *, stated: bool) -> Padding | None:
    most = _MAX_RATIO if stated else _MAX_OVER_BASELINE_RATIO
    return Padding(ratio=ratio, source=source, stated=stated) if -0.01 < ratio < most else None


def list_padding_facts(analysis: RunAnalysis, ratio: float, filled: Filling | None) -> list[Fact]:
    """List the kernels that write padding, and the padding that a rank sends if the ratio is known (not
    0).
    """
    facts = [make_fact("padding_time_per_step", filled.total_ns if filled else 0.0)]
    if ratio:
        traffic = read_model_traffic(analysis)
        moved = sum(way.rows.ints("bytes").sum() for way in (traffic.gathers, traffic.reductions))
        padded = mean_per_step(analysis, float(moved)) * ratio / (1 + ratio)
        facts += [make_fact("padding_ratio", ratio), make_fact("padding_bytes_per_step", padded)]
    if filled is not None and filled.slower is not None:
        facts.append(make_fact("time_per_byte_ratio", filled.slower))
    return facts


def measure_padded_transfer_ns(analysis: RunAnalysis, ratio: float) -> float:
    """Return the maximum exposed time per step of the padding of parameters and gradients."""
    traffic = read_model_traffic(analysis)
    parts = [way.rows for way in (traffic.gathers, traffic.reductions)]
    moved, exposed = (
        sum(float(rows.ints(name).sum()) for rows in parts) for name in ("transfer_ns", "exposed_transfer_ns")
    )
    return mean_per_step(analysis, min(exposed, moved * ratio / (1 + ratio)))


def remove_padding(analysis: RunAnalysis, graph: Graph, ratio: float) -> Sequence[Graph]:
    """Remove the padding from the messages, and in a second variant also from the kernels that write it."""
    traffic = read_model_traffic(analysis)
    rows = [*traffic.gathers.rows.row.tolist(), *traffic.reductions.rows.row.tolist()]
    smaller = edits.scale_transfers(graph, dict.fromkeys(rows, 1 / (1 + ratio)))
    if graph.has_kernels:
        return [smaller, edits.scale_work(smaller, scale_copies(analysis, 1 / (1 + ratio)))]
    filled = measure_filling(analysis)
    own_ns = mean_per_step(analysis, analysis.steps.ints("compute_ns").sum())
    shares = sorted(spent_ns / max(1.0, own_ns) for spent_ns in filled.bounds_ns) if filled else [0.0]
    return [edits.scale_work(smaller, max(0.0, 1 - share)) for share in shares]


class ComputeType(Struct, frozen=True, kw_only=True):
    """All ranks' time in matrix products, by type; ``example``: the largest product in half precision."""

    half_ns: int
    full_ns: int
    example: str = ""

    @property
    def is_half(self) -> bool:
        """True if the model computes in half precision."""
        known = self.half_ns + self.full_ns
        return known > 0 and self.half_ns >= _MOSTLY_RATIO * known

    @property
    def is_known(self) -> bool:
        """True if any kernel name contains the type."""
        return self.half_ns + self.full_ns > 0


def read_compute_type(analysis: RunAnalysis) -> ComputeType:
    """Read the types of the run's matrix products."""
    table = analysis.kernels
    if not len(table) or analysis.run.device == "cpu":
        return ComputeType(half_ns=0, full_ns=0)
    names = table.group_by("name")
    sums = names.sum(table.ints("total_ns"))
    order = np.argsort(-sums, kind="stable")
    half, full, example = 0, 0, ""
    for name, total in zip(table.texts("name").at(names.first[order]), sums[order].tolist(), strict=True):
        text = name[:_MAX_NAME_LENGTH]
        if _OPERATOR.match(text) or not _PRODUCT.search(text):
            continue
        if _HALF.search(text):
            half, example = half + total, example or printable(text[:_MAX_SHOWN])
        elif _FULL.search(text):
            full += total
    return ComputeType(half_ns=half, full_ns=full, example=example)


def states_full_precision(analysis: RunAnalysis) -> bool:
    """Return True if the run reports fp32: the reference engine computes in the type of its parameters."""
    facts = analysis.training
    return facts.engine == "reference" and facts.parameter_bytes == _FULL_BYTES


_HALF_RATIO = 0.5


class HalvedBytes(Struct, frozen=True, kw_only=True):
    """Collectives whose bytes can be halved; times and bytes are per step and rank.

    ``lost_ns``: maximum cost of half of their bytes. ``bound``: most of them were not recorded on all ranks,
    so ``exposed_ns`` may be waiting.
    """

    bytes: float
    transfer_ns: float
    exposed_ns: float
    lost_ns: float
    bound: bool

    def list_words(self, basis: str) -> dict[str, object]:
        """Return the words for a sentence about them; ``basis``: what the bytes are a total of."""
        return {
            "size": f" ({format_bytes(int(self.bytes))} {basis})" if self.bytes else "",
            "exposed": self.exposed_ns,
            "transfer": self.transfer_ns,
            "bound": "; ranks are missing, so part of this may be waiting" if self.bound else "",
        }


def measure_half_bytes(analysis: RunAnalysis, rows: Columns) -> HalvedBytes:
    """Measure ``rows`` of ``analysis.collectives``, and the cost of half of their bytes."""
    whole = mean_per_step(analysis, rows.ints("transfer_ns").sum())
    exposed = mean_per_step(analysis, analysis.collectives.ints("exposed_transfer_ns").sum())
    return HalvedBytes(
        bytes=mean_per_step(analysis, rows.ints("bytes").sum()),
        transfer_ns=whole,
        exposed_ns=mean_per_step(analysis, rows.ints("exposed_transfer_ns").sum()),
        lost_ns=min(_HALF_RATIO * whole, exposed),
        bound=are_mostly_bounds(rows),
    )


def halve_bytes(
    analysis: RunAnalysis, graph: Graph, rows: Sequence[int], are_copied_by: Callable[[str], bool]
) -> Sequence[Graph]:
    """Halve the bytes of these rows and their copies, with the fitted link's latency and with none.

    If ranks are missing, a part of the apparent transfer may be waiting, which does not get shorter.
    """
    chosen = np.array(rows, dtype=np.int64)
    collectives = analysis.collectives.at(chosen)
    transfer = np.maximum(1, collectives.ints("transfer_ns"))
    latency = {(fit.kind, fit.group): fit.latency_ns for fit in analysis.time.fits}
    pairs = zip(collectives.texts("kind"), collectives.texts("group"), strict=True)
    fixed = np.array([latency.get(pair, 0.0) for pair in pairs]).clip(0.0, transfer) / transfer
    moving = surely_moving_ns(analysis)[chosen] / transfer
    graphs = []
    for share in (1 - fixed, np.ones(len(chosen))):
        ratios = dict(zip(rows, (1 - _HALF_RATIO * share * moving).tolist(), strict=True))
        graphs.append(edits.scale_transfers(graph, ratios))
    return [edits.scale_work(each, scale_copies(analysis, _HALF_RATIO, are_copied_by)) for each in graphs]


def drop_repeated_gathers(analysis: RunAnalysis, graph: Graph, repeat: RepeatedGather) -> Sequence[Graph]:
    """Return the step without gathers repeated for this reason; empty if there are none."""
    again = find_regathers(analysis, repeat)
    if not isinstance(again, Regathers):
        return []
    return drop_collectives(graph, select_gone_with(again.gathers, repeat).ints("row").tolist())


def drop_collectives(graph: Graph, rows: Sequence[int]) -> Sequence[Graph]:
    """Drop collectives with their copies; the host time before each one's first call remains or shrinks."""
    return [
        edits.drop_collectives(graph, frozenset(rows), keeps_hooks=True),
        edits.drop_collectives(graph, frozenset(rows)),
    ]


def scale_copies(
    analysis: RunAnalysis, ratio: float, are_chosen: Callable[[str], bool] = lambda name: True
) -> Callable[[RankGraph], Floats]:
    """Return a rank's work ratios if the chosen copies take this share of their time."""
    names = frozenset(filter(are_chosen, list_copy_names(analysis)))
    return lambda rank: np.where(rank.tasks.kernel.match(names.__contains__), ratio, 1.0)
