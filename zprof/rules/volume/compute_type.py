"""In what type a model computes, as the names of its kernels say it.

Matrix products name their types: ``..._bf16...``, ``h16816gemm``, Tensile's ``BBS``/``HHS``, cuBLAS's
``nvjet_tst`` (t: bfloat16, h: float16, s: float32, q: float8; input, sum, output).  A device's flash
attention exists in half precision alone, the memory-efficient one in float32 too (``fmha_cutlassF_f32``).
Operators of the CPU say nothing: theirs is in float32 too.
"""

import re
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.printable import printable

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
#: Of the host, where a trace has no device; before such words a kernel has its type of return.
_OPERATOR = re.compile(r"(?:aten|fsdp|c10d|autograd|prims|torch)::", re.ASCII)
_LONGEST, _SHOWN = 400, 60
#: Of the time in products whose type is known.
_MOSTLY_RATIO = 0.5
_FULL_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeType:
    """Time in matrix products, of all ranks, by what their names say.  ``example``: the largest of half."""

    half_ns: int
    full_ns: int
    example: str = ""

    @property
    def is_half(self) -> bool:
        """Whether the model computes in half precision."""
        known = self.half_ns + self.full_ns
        return known > 0 and self.half_ns >= _MOSTLY_RATIO * known

    @property
    def is_known(self) -> bool:
        """Whether any name says it."""
        return self.half_ns + self.full_ns > 0


def compute_type(analysis: RunAnalysis) -> ComputeType:
    """What the products of the run are computed in."""
    table = analysis.kernels
    if table.empty or analysis.run.device == "cpu":
        return ComputeType(half_ns=0, full_ns=0)
    sums = table.groupby(table["name"].astype(str))["total_ns"].sum().sort_values(ascending=False)
    half, full, example = 0, 0, ""
    for name, total in sums.items():
        text = str(name)[:_LONGEST]
        if _OPERATOR.match(text) or not _PRODUCT.search(text):
            continue
        if _HALF.search(text):
            half, example = half + int(total), example or printable(text[:_SHOWN])
        elif _FULL.search(text):
            full += int(total)
    return ComputeType(half_ns=half, full_ns=full, example=example)


def says_full(analysis: RunAnalysis) -> bool:
    """The reference engine computes in the type of its parameters; others may compute in less."""
    facts = analysis.training
    return facts.engine == "reference" and facts.parameter_bytes == _FULL_BYTES
