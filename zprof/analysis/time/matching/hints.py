"""What pings and groups that are already matched say of clocks, for the groups that are not."""

from collections.abc import Mapping, Sequence

from zprof.analysis.time.clocks.alignment import Source, align
from zprof.analysis.time.clocks.offsets import Clocks
from zprof.analysis.time.matching.ordered import Hints
from zprof.analysis.time.matching.registration import Hint, Measured


def hints_from(hosts: Mapping[int, str], base: Mapping[int, int], sources: Sequence[Source]) -> Hints:
    """Hints on two ranks.  A host's one clock is no measurement, and stated apart."""
    clocks, _ = align(dict.fromkeys(hosts, ""), base, sources)
    origin = base[min(hosts)]

    def hint(fixed: int, moved: int) -> Hint:
        return Hint(
            measured=_measured(clocks, base, origin, fixed, moved),
            one_host=bool(hosts[fixed]) and hosts[fixed] == hosts[moved],
            one_origin=base[fixed] == base[moved],
        )

    return hint


def _measured(
    clocks: Clocks, base: Mapping[int, int], origin: int, fixed: int, moved: int
) -> Measured | None:
    if fixed not in clocks.of_rank or moved not in clocks.of_rank:
        return None
    there, here = _at_base(clocks, base, origin, moved), _at_base(clocks, base, origin, fixed)
    doubt = max(clocks.rank_uncertainty_ns[rank] for rank in (fixed, moved))
    return Measured(offset=there[0] - here[0], drift=there[1] - here[1], doubt_ns=float(doubt))


def _at_base(clocks: Clocks, base: Mapping[int, int], origin: int, rank: int) -> tuple[float, float]:
    """Offset and drift of times that count from the rank's base."""
    clock = clocks.of_rank[rank]
    drift = clock.drift_ppb * 1e-9
    whole = clock.offset_ns - (base[rank] - origin)
    return whole + drift * (base[rank] - clock.origin_ns), drift
