"""The confusion matrix as rows: a planted cause each, and what it was taken for."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.matrix.cases import Outcome


def rows(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """One a cause and vendor, in the order in which they come."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for each in outcomes:
        groups.setdefault((each.cause, each.vendor), []).append(each)
    return [_row(cause, vendor, group) for (cause, vendor), group in groups.items()]


def _row(cause: str, vendor: str, group: Sequence[Outcome]) -> dict[str, Any]:
    there = [each for each in group if each.is_there]
    found = [each for each in there if each.is_found]
    return {
        "cause": cause,
        "vendor": vendor,
        "jobs": len(group),
        "there": len(there),
        "first": len(found),
        "priced": sum(each.is_priced for each in found),
        "taken_for": dict(Counter(each.first or "nothing" for each in there if not each.is_found)),
        "accused_without_cost": dict(
            Counter(each.first for each in group if not each.is_there and each.first not in (None, cause))
        ),
    }


def markdown(table: Sequence[dict[str, Any]]) -> str:
    """A line a cause: of the jobs in which it costs something, in how many it came first, and was priced."""
    vendors = list(dict.fromkeys(row["vendor"] for row in table))
    lines = [
        "| planted | " + " | ".join(f"{vendor}: first, priced" for vendor in vendors) + " | taken for |",
        "|---" * (len(vendors) + 2) + "|",
    ]
    by_cause: dict[str, dict[str, dict[str, Any]]] = {}
    for row in table:
        by_cause.setdefault(row["cause"], {})[row["vendor"]] = row
    for cause, cells in by_cause.items():
        shown = [_cell(cells[vendor]) if vendor in cells else "" for vendor in vendors]
        lines.append(f"| {cause} | {' | '.join(shown)} | {_taken(cells.values())} |")
    return "\n".join(lines) + "\n"


def healthy_markdown(table: Sequence[dict[str, Any]]) -> str:
    """Healthy jobs: in how many of them somebody was accused."""
    lines = ["| healthy | jobs | accused |", "|---|---|---|"]
    for row in table:
        accused = {name: count for name, count in row["taken_for"].items() if name != "nothing"}
        said = ", ".join(f"{name} {count}" for name, count in accused.items()) or "0"
        lines.append(f"| {row['cause']}, {row['vendor']} | {row['jobs']} | {said} |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any]) -> str:
    if not row["there"]:
        return "costs nothing there"
    return f"{row['first']} of {row['there']}, {row['priced']}"


def _taken(cells: Iterable[dict[str, Any]]) -> str:
    total: Counter[str] = Counter()
    for row in cells:
        total.update(row["taken_for"])
    return ", ".join(f"{name} {count}" for name, count in total.most_common())
