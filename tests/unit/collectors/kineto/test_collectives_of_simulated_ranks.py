"""Collectives of traces whose truth is known: what was run is what is found, on each vendor's traces."""

from collections import Counter

import pytest

from zprof.collectors.kineto.convert import convert_trace
from zprof.collectors.kineto.reading.reader import read_trace
from zprof.simulator.plan import Plan, Vendor
from zprof.simulator.simulate import simulate


@pytest.fixture(params=list(Vendor))
def simulated(request, tmp_path):
    truth = simulate(Plan(vendor=request.param, stage=3, ranks=2, steps=1, units=3), tmp_path)
    tables, gaps = convert_trace(read_trace(sorted(tmp_path.glob("rank*"))[0]))
    columns = tables["collectives"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [entry for entry in truth.collectives if entry.rank == 0], rows, gaps


def test_each_collective_is_found_once_and_as_it_was(simulated):
    truth, rows, gaps = simulated
    assert not gaps
    found = Counter((r["kind"], r["group"], r["sequence"], r["bytes"], r["dtype"]) for r in rows)
    ran = Counter((t.kind, ",".join(map(str, t.ranks)), t.sequence, t.bytes, t.dtype) for t in truth)
    assert found == ran


def test_the_wrapped_module_is_the_unit(simulated):
    truth, rows, _ = simulated
    kinds = ("all_gather", "reduce_scatter")
    found = Counter(row["unit"] for row in rows if row["kind"] in kinds)
    ran = Counter(entry.unit for entry in truth if entry.kind in kinds)
    assert sorted(found.values()) == sorted(ran.values())
    assert None not in found
