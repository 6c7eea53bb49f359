"""The link as the run shows it: for each kind of message alpha + bytes / beta, and what a change makes of it.

Alpha and beta come from the fit over message sizes.  Where messages have one size only they cannot be told
apart: alpha then lies between nothing and all of the time, and a prediction for another bandwidth between the
two.  A kind that the run does not send goes at the bus bandwidth of one that it does:

    T(kind, S) = alpha + S * bus_factor(kind, N) / busbw
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.planning.whatif import Change, FittedLink
from zprof.planner.whatif.messages import ALL_REDUCE, GATHER, SCATTER, Messages
from zprof.planner.whatif.skeleton import Floats

#: A fit that misses the median message by more is no fit.
_RESIDUAL_RATIO = 0.25
#: A message that takes so many times the median one was held up by something else.
_FAR_OUT = 3.0
#: A message of so few bytes is all latency.
_TINY_BYTES, _LEAST_TINY = 1024, 3
_KINDS = (GATHER, SCATTER, ALL_REDUCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """T = latency + bytes * ns_per_byte.  ``known``: the two were told apart."""

    latency_ns: float
    ns_per_byte: float
    known: bool

    def at(self, size: float) -> float:
        """Time of a message."""
        return self.latency_ns + self.ns_per_byte * size


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What messages of each kind take.  ``seen``: means by kind and size, where the run sent them."""

    lines: Mapping[str, Line]
    seen: Mapping[tuple[str, float], float]
    group_size: int
    fitted: tuple[FittedLink, ...] = ()
    bandwidth_ratio: float = 1.0
    latency_ratio: float = 1.0
    ranks: int = 0

    def transfer_ns(self, kind: str, size: float) -> float:
        """Time of a message once all ranks are there."""
        line, factor = self._line(kind)
        latency = line.latency_ns
        moving = line.ns_per_byte * size * factor
        before = self.seen.get((kind, size))
        if before is not None:
            latency = min(latency, before)
            moving = before - latency
        moving *= self._share()
        return latency * self.latency_ratio * self._hops(kind) + moving / self.bandwidth_ratio

    def changed(self, change: Change) -> "Link":
        """The link after a change."""
        return replace(
            self,
            bandwidth_ratio=self.bandwidth_ratio * (change.bandwidth_ratio or 1.0),
            latency_ratio=self.latency_ratio * (change.latency_ratio or 1.0),
            ranks=change.shard_ranks or self.group_size,
        )

    def with_latency_share(self, share: float) -> "Link":
        """Where alpha and beta could not be told apart: with this share of a message as alpha."""
        lines = {
            kind: line if line.known else _split(line, share, self.seen, kind)
            for kind, line in self.lines.items()
        }
        return replace(self, lines=lines)

    def with_most_latency(self) -> "Link":
        """With all as latency that the smallest message seen of a kind took: it cannot be more."""
        least = {
            kind: min((size, ns) for (each, size), ns in self.seen.items() if each == kind)[1]
            for kind in {each for each, _ in self.seen}
        }
        lines = {
            kind: replace(line, latency_ns=max(line.latency_ns, least.get(kind, 0.0)))
            for kind, line in self.lines.items()
        }
        return replace(self, lines=lines)

    @property
    def is_known(self) -> bool:
        """Whether alpha and beta were told apart."""
        return all(line.known for line in self.lines.values())

    def _line(self, kind: str) -> tuple[Line, float]:
        """The line of the kind, or of another one and how much more a byte of this kind costs."""
        if kind in self.lines:
            return self.lines[kind], 1.0
        other = next(each for each in _KINDS if each in self.lines)
        ours, theirs = (bus_factor(CollectiveKind(each), self.group_size) for each in (kind, other))
        return self.lines[other], ours / theirs if theirs else 1.0

    def _share(self) -> float:
        """A ring of n ranks moves (n-1)/n."""
        if not self.ranks or self.ranks == self.group_size:
            return 1.0
        return (1 - 1 / self.ranks) / (1 - 1 / self.group_size)

    def _hops(self, kind: str) -> float:
        if not self.ranks or self.ranks == self.group_size:
            return 1.0
        return (self.ranks - 1) / (self.group_size - 1)


def link_of(analysis: RunAnalysis, messages: Messages) -> Link | None:
    """The link of the sharding's messages; None where no time of one is known."""
    rows = messages.every
    rows = rows[rows["matched"].astype(bool) & ~rows["first_of_window"].astype(bool)]
    each = rows.drop_duplicates("instance")
    each = each[each["intrinsic_ns"].notna()]
    each = each[each["intrinsic_ns"] > 0]
    if each.empty:
        each = rows.assign(intrinsic_ns=rows["transfer_ns"])
        each = each[each["intrinsic_ns"] > 0]
    if each.empty:
        return None
    lines, fitted = {}, []
    least = _latency_of_tiny(messages)
    for kind, mine in each.groupby("kind", observed=True):
        line, said = _fit(analysis, str(kind), mine, least)
        lines[str(kind)] = line
        fitted.append(replace(said, busbw_bytes_per_s=_busbw(line, str(kind), messages.group_size)))
    seen = {
        (str(kind), float(str(size))): _usual_ns(mine["intrinsic_ns"].to_numpy(np.float64))
        for (kind, size), mine in each.groupby(["kind", "bytes"], observed=True)
    }
    return Link(lines=lines, seen=seen, group_size=messages.group_size, fitted=tuple(fitted))


def _usual_ns(times: Floats) -> float:
    """The mean, for delays add up; what is far out counts as some medians."""
    return float(np.minimum(times, _FAR_OUT * np.median(times)).mean())


def _latency_of_tiny(messages: Messages) -> float | None:
    """What messages of next to no bytes take (a norm, the loss) among as many ranks; None without any."""
    tiny = messages.others
    tiny = tiny[(tiny["group_size"] == messages.group_size) & tiny["matched"].astype(bool)]
    tiny = tiny[(tiny["bytes"] > 0) & (tiny["bytes"] <= _TINY_BYTES) & (tiny["intrinsic_ns"] > 0)]
    return float(tiny["intrinsic_ns"].median()) if len(tiny) >= _LEAST_TINY else None


def _fit(
    analysis: RunAnalysis, kind: str, rows: pd.DataFrame, least: float | None
) -> tuple[Line, FittedLink]:
    group = str(rows["group"].iloc[0])
    good = [
        fit
        for fit in analysis.time.fits
        if fit.kind == kind and fit.group in set(rows["group"]) and fit.residual_ratio <= _RESIDUAL_RATIO
    ]
    good = [fit for fit in good if fit.algbw_bytes_per_s]
    if good:
        fit = good[0]
        line = Line(
            latency_ns=float(fit.latency_ns), ns_per_byte=1e9 / (fit.algbw_bytes_per_s or 1.0), known=True
        )
        residual, how = fit.residual_ratio, f"fit over {fit.sizes} sizes"
    else:
        times, sizes = rows["intrinsic_ns"].astype(float), rows["bytes"].astype(float)
        latency = min(least or 0.0, float(times.median()))
        line = Line(
            latency_ns=latency,
            ns_per_byte=float(np.median((times - latency).clip(lower=0.0) / sizes)),
            known=least is not None,
        )
        residual = float(np.median(np.abs(times - line.latency_ns - line.ns_per_byte * sizes) / times))
        how = "one size: latency and bandwidth cannot be told apart"
        if least is not None:
            how = "one size, and the latency of messages of some bytes"
    return line, FittedLink(
        kind=kind,
        group=group,
        latency_ns=round(line.latency_ns),
        busbw_bytes_per_s=None,
        messages=len(rows),
        residual_ratio=residual,
        how=how,
    )


def _busbw(line: Line, kind: str, ranks: int) -> float | None:
    factor = bus_factor(CollectiveKind(kind), ranks)
    return 1e9 / line.ns_per_byte * factor if line.ns_per_byte > 0 and factor else None


def _split(line: Line, share: float, seen: Mapping[tuple[str, float], float], kind: str) -> Line:
    times = [ns for (each, _), ns in seen.items() if each == kind]
    typical = float(np.median(times)) if times else 0.0
    return Line(latency_ns=share * typical, ns_per_byte=(1 - share) * line.ns_per_byte, known=False)
