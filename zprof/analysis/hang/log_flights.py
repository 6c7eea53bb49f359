"""Give ranks without a dump what their log lines say, in the form of a flight recorder."""

from collections.abc import Mapping

import numpy as np

from zprof.analysis.hang.flight import Entry, Group, History, OwnOrder, Progress, RankFlight
from zprof.analysis.hang.signatures import Signatures
from zprof.model.findings import SourceLocation
from zprof.run.log_evidence import Basis, LogEvidence, RankLines

_NONE = np.zeros(0, dtype=np.int64)


def make_flights(
    evidence: LogEvidence, dumps: Mapping[int, RankFlight], signatures: Signatures
) -> dict[int, RankFlight]:
    """Return a flight recorder for each rank that has lines and no dump; dumps name the groups' members."""
    groups = {name: group for flight in dumps.values() for name, group in flight.groups.items()}
    by_rank: dict[int, list[RankLines]] = {}
    for lines in evidence.lines:
        is_usable = lines.basis not in (Basis.CALL, Basis.CONNECTION) and lines.group in groups
        if lines.rank is not None and lines.rank not in dumps and is_usable:
            by_rank.setdefault(lines.rank, []).append(lines)
    return {
        rank: _make_flight(rank, lines, groups, signatures, evidence.stacks.get(rank, ()))
        for rank, lines in by_rank.items()
    }


def _make_flight(
    rank: int,
    all_lines: list[RankLines],
    groups: Mapping[str, Group],
    signatures: Signatures,
    stack: tuple[SourceLocation, ...],
) -> RankFlight:
    progress: dict[str, Progress] = {}
    fronts = []
    for order, lines in enumerate(all_lines):
        standing = lines.standing
        if standing is None or not standing.is_p2p:
            entered = lines.enqueued or (standing.sequence if standing is not None else 0)
            finished = standing.sequence - 1 if standing is not None else lines.completed or 0
            is_exact = lines.enqueued is not None
            progress[lines.group] = Progress(entered=entered, finished=finished, is_exact=is_exact)
        if standing is not None and not standing.is_p2p:
            sizes = "" if standing.inputs is None else f"[[{standing.inputs}]]"
            fronts.append(
                Entry(
                    rank=rank,
                    group=groups[lines.group],
                    operation=standing.kind or "collective",
                    is_p2p=False,
                    sequence=standing.sequence,
                    order=order,
                    sizes=sizes,
                    dtypes="",
                    signature=signatures.number_operation(standing.kind, sizes, "", ""),
                    created_ns=None,
                    stack=0 if stack else None,
                )
            )
    own_groups = {lines.group: groups[lines.group] for lines in all_lines}
    return RankFlight(
        rank=rank,
        groups=own_groups,
        progress=progress,
        status={lines.group: (lines.enqueued, lines.completed) for lines in all_lines},
        p2p_groups=frozenset(),
        fronts=tuple(fronts),
        history=History(
            groups=tuple(own_groups.values()),
            group=_NONE,
            sequence=_NONE,
            signature=_NONE,
            location=_NONE,
            place=_NONE,
            own=OwnOrder(token=_NONE, group=_NONE, order=_NONE),
        ),
        last=fronts[-1] if fronts else None,
        stacks={0: stack} if stack else {},
    )
