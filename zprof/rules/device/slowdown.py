"""How much slower kernels run beside collectives, from the table of kernels by name.

For kernels whose time alone is known, with o the time that they ran beside a collective and e what they
took longer than alone, the slowdown is s = sum(o) / (sum(o) - sum(e)).  Of those that never ran alone the
same is assumed: all kernels lose (1 - 1/s) of what they run beside a collective.

``typical_factor`` is the ratio of medians, beside a collective over alone, of the name in the middle of the
judged time: what most kernels feel, however long a few of them take.
"""

from dataclasses import dataclass

import pandas as pd

#: A slowdown is measured where at least so many kernels, and this share of the time, tell of it.
LEAST_KERNELS = 8
LEAST_JUDGED_RATIO = 0.02
#: From here on a name counts as slowed down.
SLOWDOWN_RATIO = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Sums over all ranks and steps.  ``factor`` is 1 where too few kernels tell of it (not ``known``).

    ``agreeing_ratio``: the share of the judged time that lies in names which are slowed down themselves.
    """

    factor: float
    known: bool
    kernels: int
    judged_ratio: float
    agreeing_ratio: float
    typical_factor: float
    beside_ns: float
    excess_ns: float


def slowdown_of(kernels: pd.DataFrame) -> Slowdown:
    """Measure it on compute and copies."""
    rows = kernels[kernels["role"] != "memcpy"]
    names = rows.groupby("name")[["judged_count", "judged_beside_ns", "excess_ns", "beside_ns"]].sum()
    judged, excess, beside = (
        float(names[column].sum()) for column in ("judged_beside_ns", "excess_ns", "beside_ns")
    )
    count = int(names["judged_count"].sum())
    known = count >= LEAST_KERNELS and judged >= LEAST_JUDGED_RATIO * beside
    factor = _factor(judged, excess) if known else 1.0
    clear = names["judged_beside_ns"] >= SLOWDOWN_RATIO * (names["judged_beside_ns"] - names["excess_ns"])
    return Slowdown(
        factor=factor,
        known=known,
        kernels=count,
        judged_ratio=judged / beside if beside else 0.0,
        agreeing_ratio=float(names.loc[clear, "judged_beside_ns"].sum()) / judged if judged else 0.0,
        typical_factor=_typical(rows),
        beside_ns=beside,
        excess_ns=max(0.0, excess + (beside - judged) * (1 - 1 / factor)),
    )


def _factor(judged_ns: float, excess_ns: float) -> float:
    alone = judged_ns - max(0.0, excess_ns)
    return judged_ns / alone if alone > 0 else 1.0


def _typical(rows: pd.DataFrame) -> float:
    """1 where no name has both medians."""
    ratio = rows["overlapped_median_ns"] / rows["alone_median_ns"]
    known = rows.assign(ratio=ratio)[ratio > 0].sort_values("ratio")
    if known.empty:
        return 1.0
    until = known["judged_beside_ns"].cumsum()
    return float(known["ratio"].to_numpy()[int((until < until.iloc[-1] / 2).sum())])


def alone_ns(kernels: pd.DataFrame, factor: float) -> "pd.Series[float]":
    """What each row's kernels would take with no collective beside them."""
    assumed = (kernels["beside_ns"] - kernels["judged_beside_ns"]) * (1 - 1 / factor)
    return kernels["total_ns"] - kernels["excess_ns"] - assumed
