"""A rank that has more to compute than the others, not one that computes slower.

Both come late everywhere, with the same operators.  What tells them apart:

    activations     a rank with more tokens keeps more of them for its backward; a slow one does not
    kernels         a rank with more tokens spends the same time on what works on parameters (optimizer,
                    copies of shards), and more on what works on activations, bound by memory or not.
                    A slow device is slow at all of them, one with low clocks at products only

``longer`` is its compute over the median of the others'.  Activations must exceed theirs by at least half as
much; or, where memory was not recorded, the work on parameters by at most a quarter, that on activations
bound by memory by at least half as much, with the same number of kernels (within 1 %).
"""

import re
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant

_LONGER_RATIO = 1.10
_FOLLOWS_RATIO, _STAYS_RATIO = 0.5, 0.25
_SAME_COUNT_RATIO = 0.01
_LONGEST = 400
_ON_PARAMETERS = re.compile(
    r"multi_tensor_apply|adam|lamb|adagrad|sgd|split_with_sizes_copy|copy_in|chunk_cat", re.I | re.ASCII
)
_BOUND_BY_MEMORY = re.compile(
    r"elementwise|layer_?norm|rms_?norm|softmax|dropout|gelu|silu|aten::(?:add|mul)\b", re.I | re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongerInputs:
    """The rank, and by what ratio it exceeds the median of the others.

    ``mean_excess_ns``: its compute over the mean of all ranks, a step: what even shares would take off it.
    ``excess_ns``: over the median of the others.  ``activations`` is None where kernels told it.
    """

    rank: int
    longer: float
    activations: float | None
    excess_ns: float
    mean_excess_ns: float
    confidence: Confidence


def longer_inputs(analysis: RunAnalysis) -> LongerInputs | None:
    """None where no rank has clearly more to compute, or where nothing tells that from a slow one."""
    compute = analysis.steps.groupby("rank")["compute_ns"].mean()
    if len(compute) < 2:
        return None
    rank = int(str(compute.idxmax()))
    longer = _over_others(compute, rank)
    if longer < _LONGER_RATIO:
        return None
    kept = _activations(analysis)
    activations = _over_others(kept, rank) if len(kept) >= len(compute) else None
    if activations is not None:
        told = activations >= 1 + _FOLLOWS_RATIO * (longer - 1)
    else:
        told = _kernels_tell(analysis, rank, longer)
    if not told:
        return None
    return LongerInputs(
        rank=rank,
        longer=longer,
        activations=activations,
        excess_ns=float(compute[rank] - compute.drop(rank).median()),
        mean_excess_ns=float(compute[rank] - compute.mean()),
        confidence=Confidence.MEDIUM if activations is None else Confidence.HIGH,
    )


def _activations(analysis: RunAnalysis) -> "pd.Series[float]":
    """The most activations of each rank at the peaks of its phases and of its steps."""
    memory, name = analysis.memory, Tenant.ACTIVATIONS
    held = [(peak.rank, peak.tenants.get(name, 0)) for peak in memory.phases]
    held += [(peak.rank, peak.tenants.get(name, 0)) for peak in memory.per_rank]
    held += [(line.rank, max(line.tenants.get(name.value, ()), default=0)) for line in memory.timelines]
    frame = pd.DataFrame(held, columns=["rank", "bytes"]).astype({"bytes": "float64"})
    most = frame.groupby("rank")["bytes"].max()
    return most[most > 0]


def _kernels_tell(analysis: RunAnalysis, rank: int, longer: float) -> bool:
    table = analysis.kernels
    if table.empty:
        return False
    names = table["name"].astype(str).str.slice(0, _LONGEST)
    on_parameters = names.str.contains(_ON_PARAMETERS)
    by_memory = ~on_parameters & names.str.contains(_BOUND_BY_MEMORY)
    counts = table.groupby("rank")["count"].sum()
    parameters, activations = (
        table[chosen].groupby("rank")["total_ns"].sum() for chosen in (on_parameters, by_memory)
    )
    if any(rank not in sums.index or len(sums) < 2 for sums in (counts, parameters, activations)):
        return False
    return (
        abs(_over_others(counts, rank) - 1) <= _SAME_COUNT_RATIO
        and abs(_over_others(parameters, rank) - 1) <= _STAYS_RATIO * (longer - 1)
        and _over_others(activations, rank) >= 1 + _FOLLOWS_RATIO * (longer - 1)
    )


def _over_others(values: "pd.Series[float]", rank: int) -> float:
    others = float(values.drop(rank).median())
    return float(values[rank]) / others if others > 0 else 0.0
