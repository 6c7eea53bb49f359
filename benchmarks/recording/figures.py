"""From the times of all visits to what an operator and a step cost, and the table of them.

The cost is the difference to a step that nobody watches, once of the medians (paired within each round) and
once of the minima: what other programs on the machine add is in the first and hardly in the second.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.recording.contenders import BASE
from benchmarks.recording.timed import CLOCKS, Visits

_HEAD = ("", "us an operator", "(of minima)", "later steps", "(of minima)", "first step", "(of minima)",
         "wall, later", "open+close")  # fmt: skip


def figures(visits: Mapping[str, Visits], operators: int) -> dict[str, dict[str, Any]]:
    """By contender: times of a step, and where it is not the base its cost."""
    return {name: _of_one(visits[name], visits[BASE], operators) for name in visits}


def _of_one(visits: Visits, base: Visits, operators: int) -> dict[str, Any]:
    result: dict[str, Any] = {"open_close_ms": median(visits.around_ns) / 1e6}
    for clock in CLOCKS:
        later = _cost(_medians(visits.later[clock]), _medians(base.later[clock]))
        lowest, base_lowest = (min(map(min, one.later[clock])) for one in (visits, base))
        first = _cost(visits.first[clock], base.first[clock])  # a visit begins with cold caches
        result[clock] = {
            "step_ms": median(_medians(visits.later[clock])) / 1e6,
            "step_min_ms": lowest / 1e6,
            "operator_us": later["cost_ns"] / operators / 1e3,
            "operator_min_us": (lowest - base_lowest) / operators / 1e3,
            "later_share": later["share"],
            "later_min_share": lowest / base_lowest - 1,
            "first_share": first["share"],
            "first_min_share": min(visits.first[clock]) / min(base.first[clock]) - 1,
        }
    return result


def _cost(watched: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Paired: each round's visit against the base's visit of the same round."""
    pairs = list(zip(watched, base, strict=True))
    return {"cost_ns": median(a - b for a, b in pairs), "share": median(a / b for a, b in pairs) - 1}


def _medians(visits: Sequence[Sequence[int]]) -> list[float]:
    return [median(steps) for steps in visits]


def table(batch: str, operators: int, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One batch's contenders, thread CPU time unless a column says wall."""
    base = rows[BASE]["cpu"]
    lines = [
        f"{batch} batch: {operators} operators, base {base['step_ms']:.2f} ms (min {base['step_min_ms']:.2f})"
    ]
    cells = [list(_HEAD)] + [_cells(name, row) for name, row in rows.items() if name != BASE]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    for line in cells:
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines.append("  ".join([line[0].ljust(widths[0]), *rest]))
    return "\n".join(lines)


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    cpu = row["cpu"]
    shares = (cpu["later_share"], cpu["later_min_share"], cpu["first_share"], cpu["first_min_share"])
    return [
        name,
        f"{cpu['operator_us']:.2f}",
        f"{cpu['operator_min_us']:.2f}",
        *(f"{share:+.2%}" for share in (*shares, row["wall"]["later_share"])),
        f"{row['open_close_ms']:.0f} ms",
    ]
