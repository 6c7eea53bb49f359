"""Words for a collective: what it moved, who came last, what of it was exposed.

Times here are of single events, not leaves of the report.  All names are made printable.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from zprof.model.printable import printable, shorten
from zprof.model.time import LateReason
from zprof.model.units import format_bytes, format_ns

Row = Mapping[Hashable, Any]
LONGEST = 400
_LONGEST_GROUP = 40


def at_ms(time_ns: float) -> str:
    """A time since the begin of the step."""
    return f"{time_ns / 1e6:+.3f} ms"


def collective_lines(row: Row) -> list[str]:
    """What is known of a collective, from the analysis of all ranks."""
    least, most = ("at least ", "at most ") if row["bound"] else ("", "")
    wait = f"{least}{_ns(row, 'wait_ns')}, of it exposed {_ns(row, 'exposed_wait_ns')}"
    transfer = f"{most}{_ns(row, 'transfer_ns')}, of it exposed {_ns(row, 'exposed_transfer_ns')}"
    lines = [
        fact("collective", f"{collective_name(row)}, sequence {int(row['sequence'])}"),
        fact("group", _group(row)),
        fact("bytes", f"{format_bytes(int(row['bytes']))} {row['dtype']}" if row["bytes"] else "unknown"),
        fact("start", f"{at_ms(int(row['start_ns']))} since the begin of the step"),
        fact("duration", format_ns(int(row["end_ns"]) - int(row["start_ns"]))),
        fact("wait", wait),
        fact("transfer", transfer),
        fact("hidden", f"{_ns(row, 'hidden_ns')} under compute"),
        fact("last rank", _last(row)),
    ]
    if not pd.isna(row["launch_start_ns"]):
        delay = format_ns(int(row["start_ns"]) - int(row["launch_start_ns"]))
        lines.append(fact("launch", f"at {at_ms(int(row['launch_start_ns']))}, {delay} before its start"))
    if not pd.isna(row["dependency_ns"]) and row["dependency_ns"]:
        lines.append(fact("", f"{_ns(row, 'dependency_ns')} of that behind compute, or another collective"))
    return lines


def _last(row: Row) -> str:
    if row["last_rank"] < 0:
        return "unknown: not all ranks could be matched"
    blamed = int(row["blamed_rank"])
    if blamed < 0:
        return f"rank {int(row['last_rank'])}, within the doubt of the clocks"
    reason = str(row["late_reason"] or LateReason.UNKNOWN).replace("_", " ")
    why = "why is unknown" if reason == LateReason.UNKNOWN else f"for {reason}"
    return f"rank {int(row['last_rank'])}, {format_ns(int(row['last_lateness_ns']))} after the first; {why}"


def _group(row: Row) -> str:
    """Its name, which of many ranks is the list of them all, and its size where that was recorded."""
    size = int(row["group_size"])
    return f"{shorten(str(row['group']), _LONGEST_GROUP)} ({f'{size} ranks' if size > 0 else 'size unknown'})"


def collective_name(row: Row) -> str:
    """Its kind, and of which unit."""
    unit: str = "" if pd.isna(row["unit"]) else f" of {row['unit']}"
    return printable(f"{row['kind']}{unit}"[:LONGEST])


def waited_and_moved(row: Row) -> str:
    """What of it held the rank up; of what could not be matched the transfer is the most that it can be."""
    waited, moved = int(row["exposed_wait_ns"]), int(row["exposed_transfer_ns"])
    late = f" for rank {int(row['last_rank'])}" if waited and row["last_rank"] >= 0 else ""
    parts = [f"waits {format_ns(waited)}{late}"] if waited else []
    most = "at most " if row["bound"] else ""
    return ", ".join([*parts, f"moves {most}{format_ns(moved)}"])


def _ns(row: Row, name: str) -> str:
    return "unknown" if pd.isna(row[name]) else format_ns(int(row[name]))


def fact(name: str, text: str) -> str:
    """A line of a window: what it is, and what is known of it."""
    return f"{name:<11} {printable(text)}"
