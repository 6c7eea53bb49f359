"""Find what a link should give from the other links of the same job.

A group is compared with the job's other groups of its size, kind and span (within a host, or between hosts).
Groups that are equally slow do not vouch for one another, so a group that is no slower than these is also
compared with the fastest link of the job, whatever its kind, after allowing for a normal latency.

How much such a comparison proves depends on the links. Within a host, one group is as close as another, but
transfers that share a link slow each other down. A network is slower than NVLink, and the groups of a host
may share it, so between hosts the comparison proves nothing by itself.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from zprof.analysis.columns import Mask, Texts
from zprof.model.findings import Confidence
from zprof.rules.transfer.bandwidth import (
    KINDS,
    ExpectedBandwidth,
    GroupRate,
    ReachedBandwidth,
    comparable_kinds,
    is_similar,
)
from zprof.rules.transfer.latency import max_normal_latency_ns

_UNKNOWN_SPAN = -1
_WITHIN_HOST = 0
_SPAN_CODES = {None: _UNKNOWN_SPAN, False: _WITHIN_HOST, True: 1}


class LinkReferences:
    """The groups of a run as columns, to compare each group with all others."""

    def __init__(self, rates: Sequence[GroupRate], run: ReachedBandwidth) -> None:
        self._run = run
        self._kind = np.array([KINDS.index(rate.kind) for rate in rates])
        self._group = Texts.of(rate.group for rate in rates).codes
        self._span = np.array([_SPAN_CODES[run.spans(rate.group)] for rate in rates])
        self._ranks = np.array([rate.ranks for rate in rates])
        self._bytes = np.array([rate.bytes for rate in rates])
        self._rate = np.array([rate.bytes_per_s for rate in rates])

    def list_expected(self, index: int, own_rate: GroupRate) -> Iterator[ExpectedBandwidth]:
        """List what the group at ``index`` may be expected to reach, the most conclusive reference first."""
        kinds = [KINDS.index(kind) for kind in comparable_kinds(self._run.analysis, own_rate.kind)]
        others = (self._group != self._group[index]) & np.isin(self._kind, kinds)
        same_span = others & (self._span == self._span[index])
        alike = self._select_alike(index, same_span)
        if alike.any():
            yield ExpectedBandwidth(bytes_per_s=float(np.median(self._rate[alike])), of="other groups")
        span = int(self._span[index])
        latency_ns = max_normal_latency_ns(own_rate.ranks)
        if span != _UNKNOWN_SPAN and same_span.any():
            where = "within a host" if span == _WITHIN_HOST else "between hosts"
            yield ExpectedBandwidth(
                bytes_per_s=float(self._rate[same_span].max()),
                of=f"the fastest link of this job {where}",
                proof=Confidence.MEDIUM if self._is_conclusive(span) else Confidence.LOW,
                latency_ns=latency_ns,
                is_fastest_link=True,
            )
        if others.any():
            yield ExpectedBandwidth(
                bytes_per_s=float(self._rate[others].max()),
                of="the fastest link of this job",
                proof=None if span not in (_UNKNOWN_SPAN, _WITHIN_HOST) else Confidence.LOW,
                latency_ns=latency_ns,
                is_fastest_link=True,
            )

    def _select_alike(self, index: int, same_span: Mask) -> Mask:
        """Return a mask of groups of the same size and kind, else of a comparable kind if spans are known."""
        alike = same_span & (self._ranks == self._ranks[index])
        alike &= is_similar(self._bytes, float(self._bytes[index]))
        same_kind: Mask = alike & (self._kind == self._kind[index])
        return same_kind if same_kind.any() or self._span[index] == _UNKNOWN_SPAN else alike

    def _is_conclusive(self, span: int) -> bool:
        """Return True within a host, except on CPU ranks, where compute slows gloo down."""
        return span == _WITHIN_HOST and self._run.analysis.run.device != "cpu"
