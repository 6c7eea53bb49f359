"""Infer from kernel names if a model computes in half precision; measure and play half of the bytes.

The names of matrix products contain their types: ``..._bf16...``, ``h16816gemm``, Tensile's ``BBS``/``HHS``,
cuBLAS's ``nvjet_tst`` (t: bfloat16, h: float16, s: float32, q: float8; input, sum, output). A device's flash
attention exists in half precision only, the memory-efficient one in float32 too (``fmha_cutlassF_f32``).
Operators of the CPU have no type.

The other half is lost: half of these collectives' transfer, and no more than all exposed transfer. With the
fix they take half of their transfer beyond the latency, and their copies half of their time.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.per_step import mean_per_step
from zprof.model.formatting import format_bytes, printable
from zprof.step import edits
from zprof.step.fixes import scale_copies
from zprof.step.tasks import Graph
from zprof.step.traffic import are_mostly_bounds, surely_moving_ns

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
_MAX_NAME_LENGTH, _MAX_SHOWN = 400, 60
#: Minimum share of the time in products of known type.
_MOSTLY_RATIO = 0.5
_FULL_BYTES = 4


class ComputeType(Struct, frozen=True, kw_only=True):
    """Time in matrix products of all ranks, by type; ``example``: the largest one in half precision."""

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
    """Read the types in which the matrix products of the run are computed."""
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

    ``lost_ns``: what half of their bytes cost at most. ``bound``: most of them were not recorded on all
    ranks, so ``exposed_ns`` may be waiting.
    """

    bytes: float
    transfer_ns: float
    exposed_ns: float
    lost_ns: float
    bound: bool

    def list_words(self, basis: str) -> dict[str, object]:
        """Return the words of a sentence about them; ``basis``: what the bytes are a total of."""
        return {
            "size": f" ({format_bytes(int(self.bytes))} {basis})" if self.bytes else "",
            "exposed": self.exposed_ns,
            "transfer": self.transfer_ns,
            "bound": "; ranks are missing, so part of this may be waiting" if self.bound else "",
        }


def measure_half_bytes(analysis: RunAnalysis, rows: Columns) -> HalvedBytes:
    """Measure ``rows``, which are rows of ``analysis.collectives``, and what half of their bytes take."""
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
    """Halve the bytes of these rows and their copies, with the latency of the fitted link and with none.

    If ranks are missing, a part of what looks like transfer may be waiting: it does not get shorter.
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
