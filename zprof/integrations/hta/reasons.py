"""Known ways in which HTA counts device rows otherwise than zprof, as seen in what it says of the names."""

from collections.abc import Iterator

from zprof.integrations.hta.answers import COPIES, WORK, NameRow, Rows
from zprof.model.kernels import is_collective_kernel
from zprof.model.units import format_ns

_MOST = 6
_LONGEST = 60


def reasons(rows: Rows, *, equal_without: bool) -> Iterator[str]:
    """Why the figures of one rank may differ; ``equal_without``: HTA agrees once rows of no work are gone."""
    if rows.kept < rows.device:
        yield (
            f"HTA leaves out {rows.device - rows.kept} of {_rows(rows.device)} of the device: their launch "
            "is not in the trace, or comes after its last step"
        )
    other = [row for row in rows.names if row.category not in WORK]
    if other:
        yield _not_work(other) + ("; without them HTA says the same" if equal_without else "")
    wrong = [row for row in rows.names if row not in other and row.kind != _kind(row)]
    for row in sorted(wrong, key=lambda row: -row.total_ns)[:_MOST]:
        yield f"HTA counts {_named(row)} as {row.kind.lower()}; it is {_kind(row).lower()}"
    if len(wrong) > _MOST:
        yield f"and {len(wrong) - _MOST} more names that HTA counts as something else"


def _kind(row: NameRow) -> str:
    """What zprof takes it for, in HTA's words."""
    if row.category in COPIES:
        return "MEMORY"
    return "COMMUNICATION" if is_collective_kernel(row.name) else "COMPUTATION"


def _not_work(rows: list[NameRow]) -> str:
    """Rows on a stream that no engine of the device ran, such as waits for an event."""
    kinds = sorted({row.kind.lower() for row in rows})
    categories = sorted({row.category for row in rows})
    count, total_ns = sum(row.count for row in rows), sum(row.total_ns for row in rows)
    return (
        f"HTA counts {_rows(count)} of {', '.join(categories)} ({format_ns(total_ns)}) as work of the device "
        f"({', '.join(kinds)}); nothing runs in them"
    )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _named(row: NameRow) -> str:
    name = row.name if len(row.name) <= _LONGEST else row.name[: _LONGEST - 1] + "…"
    return f"{name} ({row.count}, {format_ns(row.total_ns)})"
