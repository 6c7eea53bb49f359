"""Reads a Chrome JSON trace as a viewer must, and refuses what viewers get wrong.

Times are read as decimals, so that a nanosecond that is lost on the way is seen.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path


@dataclass
class Slice:
    name: str
    start_ns: int
    end_ns: int
    args: dict

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass
class ChromeTrace:
    """Slices by (process, title of the row with its lanes), arrows as (begin, end) with their places."""

    base_ns: int
    processes: dict[int, str] = field(default_factory=dict)
    titles: dict[tuple[int, int], str] = field(default_factory=dict)
    slices: dict[tuple[int, int], list[Slice]] = field(default_factory=lambda: defaultdict(list))
    flows: dict[int, list[tuple[str, int, int, int]]] = field(default_factory=lambda: defaultdict(list))

    def row(self, pid: int, title: str) -> list[Slice]:
        """Return all slices of a row, over its lanes."""
        lanes = [
            place
            for place, name in self.titles.items()
            if place[0] == pid and (name == title or name.startswith(f"{title} ("))
        ]
        return sorted((s for lane in lanes for s in self.slices[lane]), key=lambda s: s.start_ns)


def read_chrome_trace(path: Path) -> ChromeTrace:
    document = json.loads(path.read_bytes().decode("ascii"), parse_float=Decimal)
    trace = ChromeTrace(base_ns=document["baseTimeNanoseconds"])
    for event in document["traceEvents"]:
        READERS[event["ph"]](trace, event)
    return trace


def check_chrome_trace(trace: ChromeTrace) -> None:
    """Rows are named once, slices of a row come by time and nest, arrows are whole and begin at slices."""
    assert set(trace.slices) <= set(trace.titles)
    assert all(trace.titles.values())
    per_process = [(pid, title) for (pid, _), title in trace.titles.items()]
    assert len(per_process) == len(set(per_process))
    for slices in trace.slices.values():
        _check_nesting(slices)
    for ends in trace.flows.values():
        assert [end[0] for end in ends] == ["s", "f"]
        for _, pid, tid, time_ns in ends:
            assert any(s.start_ns <= time_ns <= s.end_ns for s in trace.slices[pid, tid])


def _check_nesting(slices: list[Slice]) -> None:
    open_ends: list[int] = []
    assert [one.start_ns for one in slices] == sorted(one.start_ns for one in slices)
    for one in slices:
        assert one.length_ns >= 0
        while open_ends and open_ends[-1] <= one.start_ns:
            open_ends.pop()
        assert not open_ends or one.end_ns <= open_ends[-1], "slices overlap without nesting"
        open_ends.append(one.end_ns)


def _metadata(trace: ChromeTrace, event: dict) -> None:
    if event["name"] == "process_name":
        assert event["pid"] not in trace.processes
        trace.processes[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
        place = event["pid"], event["tid"]
        assert place not in trace.titles
        trace.titles[place] = event["args"]["name"]


def _slice(trace: ChromeTrace, event: dict) -> None:
    start, length = _ns(event["ts"]), _ns(event["dur"])
    one = Slice(event["name"], start, start + length, event["args"])
    trace.slices[event["pid"], event["tid"]].append(one)


def _flow(trace: ChromeTrace, event: dict) -> None:
    assert event["ph"] == "s" or event["bp"] == "e"
    trace.flows[event["id"]].append((event["ph"], event["pid"], event["tid"], _ns(event["ts"])))


def _ns(microseconds: Decimal) -> int:
    value = microseconds * 1000
    assert value == int(value), "finer than a nanosecond"
    return int(value)


READERS = {"M": _metadata, "X": _slice, "s": _flow, "f": _flow}
