"""How much more travels than the model has, and what filling it up takes.

Padding, from one rank: gradients are reduced once or k times a step, whole, so with R elements reduced a step

    padding = R / (k psi) - 1        psi: said by the program, or R / k of the baseline, that of one model

Filling up: the kernels (on a CPU the operators) that pad, of which FSDP2's ``chunk_cat`` also runs where
nothing is padded, as a plain copy.  ``slower`` is its time for each byte reduced over the time for each byte
gathered of ``split_with_sizes_copy``, which is a plain copy of the same tensors on the same device.
"""

import re
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.rules.rows import mean_per_step
from zprof.rules.volume.element_bytes import elements
from zprof.rules.volume.traffic import Direction, traffic_of

_FILLS = re.compile(r"chunk_cat|(?:^|::|_)pad(?:_|$|\b)|constant_pad", re.ASCII)
_COPIES_OUT = re.compile(r"split_with_sizes_copy", re.ASCII)
_LONGEST = 400
#: A dimension of n + 1 on n ranks pads to 2 n, so that padding is never as much as the model itself.
_MOST_RATIO = 1.0
#: Of a baseline: more than half as much again is another model, or another number of micro-batches.
_MOST_OF_BASELINE_RATIO = 0.5
_SCATTERS = CollectiveKind.REDUCE_SCATTER.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What a rank spends on filling up, a step.  ``slower`` is None where no plain copy is beside it."""

    total_ns: float
    slower: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Elements that travel for nothing over those of the model, and who says how many that has.

    ``stated``: the program, not a baseline that is taken to be of the same model.
    """

    ratio: float
    said_by: str
    stated: bool


def padding_of(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Padding | None:
    """None where nothing says how many elements the model has."""
    reduced = _reduced(analysis)
    psi, micro_batches = analysis.training.parameters, max(1, analysis.training.micro_batches)
    if not reduced:
        return None
    if psi:
        times = micro_batches if reduced >= 0.99 * psi * micro_batches else max(1, int(reduced / psi + 0.01))
        return _plausible(reduced / (times * psi) - 1, "the program's number of parameters", stated=True)
    theirs = _reduced(baseline) if baseline is not None else 0.0
    if not theirs:
        return None
    times = max(1, int(reduced / theirs + 0.01))
    return _plausible(reduced / (times * theirs) - 1, "the baseline's gradients", stated=False)


def filling(analysis: RunAnalysis) -> Filling | None:
    """None where no kernel fills up, or none was recorded."""
    table = analysis.kernels
    if table.empty:
        return None
    names = table["name"].astype(str).str.slice(0, _LONGEST)
    fills = _spent(analysis, table, names.str.contains(_FILLS))
    if not fills:
        return None
    copied = _spent(analysis, table, names.str.contains(_COPIES_OUT))
    traffic = traffic_of(analysis)
    gathered, reduced = (_bytes(analysis, way) for way in (traffic.gathers, traffic.reductions))
    known = copied and gathered and reduced
    slower = (fills / reduced) / (copied / gathered) if known else None
    return Filling(total_ns=fills, slower=slower)


def _spent(analysis: RunAnalysis, table: pd.DataFrame, chosen: "pd.Series[bool]") -> float:
    """A step of a rank; what ran beside other kernels cost nothing."""
    rows = table[chosen]
    alone = rows["uncovered_ns"].where(rows["role"] != "compute", rows["total_ns"])
    return mean_per_step(analysis, float(alone.sum()))


def _bytes(analysis: RunAnalysis, way: Direction) -> float:
    return mean_per_step(analysis, float(way.rows["bytes"].sum()))


def _reduced(analysis: RunAnalysis) -> float:
    """Elements of gradients that a rank reduces in a step: scattered, or where none are, all-reduced."""
    rows = traffic_of(analysis).reductions.rows
    scattered = rows[rows["kind"].astype(str) == _SCATTERS]
    return mean_per_step(analysis, elements(scattered if len(scattered) else rows))


def _plausible(ratio: float, said_by: str, *, stated: bool) -> Padding | None:
    most = _MOST_RATIO if stated else _MOST_OF_BASELINE_RATIO
    return Padding(ratio=ratio, said_by=said_by, stated=stated) if -0.01 < ratio < most else None
