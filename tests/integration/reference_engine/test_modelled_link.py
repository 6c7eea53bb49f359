"""The modelled link keeps the rules of a real one, seen in the traces of three real ranks."""

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.timed]

RANKS = 3
LATENCY_S, BANDWIDTH = 2e-3, 20e6
CASE = {
    "traced": True,
    "zero": {"stage": 3},
    "gpt": {"layers": 2, "hidden": 16, "heads": 2, "vocabulary": 31, "context": 8},
    "steps": 3,
    "batch": 3,
    "link": {"bandwidth_bytes_per_s": BANDWIDTH, "latency_s": LATENCY_S},
}
GRAMMAR = re.compile(
    r"zero::(?P<what>launch|wait|comm) (?P<kind>\w+) pg=0 seq=(?P<seq>\d+) unit=(?P<unit>\S+)"
    r"( bytes=(?P<bytes>\d+) dtype=(?P<dtype>\S+))?"
)


@dataclass(frozen=True)
class Range:
    identity: tuple[str, str]
    bytes: int
    start_us: float
    end_us: float
    thread: int


Ranges = dict[str, dict[int, Range]]


@pytest.fixture(scope="module")
def traces(run_on) -> list[Ranges]:
    """For each rank, by what (launch, wait, comm) and sequence number."""
    return [parsed(rank["case"]["ranges"]) for rank in run_on(RANKS, "engine_worker", {"case": CASE})]


def parsed(ranges: list[list[Any]]) -> Ranges:
    table: Ranges = defaultdict(dict)
    for name, start, end, thread in ranges:
        match = GRAMMAR.fullmatch(name)
        assert match is not None, name
        sequence = int(match["seq"])
        assert sequence not in table[match["what"]], f"{name} twice"
        identity = (match["kind"], match["unit"])
        table[match["what"]][sequence] = Range(identity, int(match["bytes"] or 0), start, end, thread)
    return table


def test_every_collective_is_launched_carried_and_waited_for_once_on_all_ranks(
    traces: list[Ranges],
):
    launched = traces[0]["launch"]
    assert sorted(launched) == list(range(len(launched)))
    for trace in traces:
        for what in ("launch", "wait", "comm"):
            assert {seq: r.identity for seq, r in trace[what].items()} == {
                seq: r.identity for seq, r in launched.items()
            }


def test_one_thread_carries_them_one_after_the_other_and_is_not_the_caller(traces: list[Ranges]):
    for trace in traces:
        carried = [trace["comm"][sequence] for sequence in sorted(trace["comm"])]
        assert all(first.end_us <= second.start_us for first, second in pairwise(carried))
        assert len({one.thread for one in carried}) == 1
        callers = {one.thread for what in ("launch", "wait") for one in trace[what].values()}
        assert len(callers) == 1
        assert carried[0].thread not in callers


def test_a_collective_waits_for_all_ranks_and_takes_as_long_as_the_link_says(traces: list[Ranges]):
    for sequence, launched in traces[0]["launch"].items():
        factor = 1 if launched.identity[0] == "broadcast" else (RANKS - 1) / RANKS
        least_us = (LATENCY_S + launched.bytes * factor / BANDWIDTH) * 1e6
        last_us = max(trace["comm"][sequence].start_us for trace in traces)
        for trace in traces:
            assert trace["comm"][sequence].end_us - last_us >= 0.99 * least_us
