"""Flight-recorder dumps as tables: the same from pickle and JSON, groups paired with their numbers."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flight_dumps import make_dump, make_entry, to_json
from zprof.collectors.read.flight_recorder.convert import FlightTables, convert_dump, load_json
from zprof.run.schema import TABLES

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNTS = st.integers(0, (1 << 63) - 1)
TIMES = st.none() | st.integers(1, (1 << 63) - 1)
SIZES = st.lists(st.lists(COUNTS, max_size=3), max_size=3)
DTYPES = st.lists(st.sampled_from(["Float", "BFloat16", "Long"]), max_size=3)
GROUPS = st.tuples(st.integers(0, 4), NAMES, NAMES)


@st.composite
def dumps(draw: st.DrawFn) -> dict[str, Any]:
    entries = [
        make_entry(
            number,
            draw(GROUPS),
            frames=[],
            profiling_name=draw(st.sampled_from(["nccl:all_reduce", "gloo:send 0->3", "barrier"]) | NAMES),
            collective_seq_id=draw(COUNTS),
            p2p_seq_id=draw(COUNTS),
            input_sizes=draw(SIZES),
            output_sizes=draw(SIZES),
            input_dtypes=draw(DTYPES),
            output_dtypes=draw(DTYPES),
            state=draw(st.sampled_from(["scheduled", "started", "completed"])),
            time_created_ns=draw(TIMES),
            time_discovered_started_ns=draw(TIMES),
            time_discovered_completed_ns=draw(TIMES),
            timeout_ms=draw(st.integers(1, 1 << 40)),
            retired=draw(st.booleans()),
            is_p2p=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 6)))
    ]
    names = draw(st.lists(st.integers(0, 99).map(str) | NAMES, unique=True, max_size=4))
    config = {
        name: {
            "name": name,
            "desc": draw(NAMES),
            "ranks": str(draw(st.lists(st.integers(0, 99), max_size=4))),
        }
        for name in names
    }
    status = {
        str(number): {f"last_{word}_collective": draw(st.integers(-1, 1 << 40)) for word in STATUS_WORDS}
        for number in draw(st.lists(st.integers(0, 9), unique=True, max_size=4))
    }
    return make_dump(entries=entries, pg_config=config, pg_status=status)


STATUS_WORDS = ("enqueued", "started", "completed")


def to_rows(tables: FlightTables) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table; fails if a column does not have the type of the schema."""
    return {
        name: pa.table(dict(columns), schema=TABLES[name]).to_pylist()
        for name, columns in tables.tables.items()
    }


@settings(max_examples=150, deadline=None)
@given(dumps())
def test_pickle_and_json_of_a_dump_are_the_same_tables(dump: dict[str, Any]) -> None:
    from_pickle = to_rows(convert_dump(pickle.loads(pickle.dumps(dump, protocol=2))))
    from_json = to_rows(convert_dump(load_json(to_json(dump))))
    # JSON sorts the groups by name.
    for rows in (from_pickle, from_json):
        rows["flight_group"].sort(key=lambda row: row["group"])
    assert from_pickle == from_json
    assert [row["sequence"] for row in from_pickle["flight"]] == [
        entry["collective_seq_id"] for entry in dump["entries"]
    ]


def test_an_entry_has_its_operation_backend_times_and_sizes() -> None:
    entry = make_entry(
        5,
        (3, "17", "PIPELINE"),
        profiling_name="nccl:send 0->3",
        is_p2p=True,
        p2p_seq_id=9,
        state="completed",
        time_discovered_completed_ns=77,
        input_sizes=[[2, 3], []],
        input_dtypes=["Float", "Long"],
    )
    (row,) = to_rows(convert_dump(make_dump(entries=[entry])))["flight"]
    kept = "group group_id backend operation p2p_sequence state completed_ns started_ns input_sizes"
    assert [row[key] for key in kept.split()] == [
        *("17", 3, "nccl", "send 0->3", 9, "completed", 77, None, "[[2,3],[]]")
    ]
    assert (row["is_p2p"], row["input_dtypes"], row["stack"]) == (True, "Float,Long", 0)


def test_the_same_stack_is_stored_once() -> None:
    rows = to_rows(convert_dump(make_dump(count=60)))
    assert len(rows["flight"]) == 60
    assert len(rows["flight_stack"]) == 3
    assert {row["stack"] for row in rows["flight"]} == {0, 1, 2}


def test_entries_are_ordered_by_their_number() -> None:
    entries = [make_entry(number) for number in (4, 2, 3)]
    rows = to_rows(convert_dump(make_dump(entries=entries)))["flight"]
    assert [row["record_id"] for row in rows] == [2, 3, 4]


def status(enqueued: int) -> dict[str, int]:
    return {"last_enqueued_collective": enqueued, "last_started_collective": -1} | {
        "last_completed_collective": enqueued - 1
    }


def config(*names: str) -> dict[str, Any]:
    return {name: {"name": name, "desc": f"group {name}", "ranks": "[0, 1]"} for name in names}


#: Names and numbers of groups, the groups of entries, and the expected number of each name.
PAIRS = {
    "in order": (("0", "5", "33", "100"), (0, 1, 4, 11), [], {"0": 0, "5": 1, "33": 4, "100": 11}),
    "more numbers than names": (("0", "5"), (0, 1, 4), [(1, "5", "")], {"0": None, "5": 1}),
    "names without a number": (("0", "a1b2"), (0, 3), [(3, "a1b2", "")], {"0": None, "a1b2": 3}),
    "entries contradict": (("0", "5"), (0, 1), [(0, "5", "")], {"0": None, "5": 0}),
    "two names for one number": (
        ("0", "5"),
        (0, 1),
        [(0, "5", ""), (0, "0", "")],
        {"0": None, "5": None},
    ),
    "only entries": ((), (0, 1), [(1, "tp", "TENSOR")], {"tp": 1}),
}


@pytest.mark.parametrize("case", PAIRS)
def test_groups_are_paired_with_their_numbers(case: str) -> None:
    names, numbers, in_entries, expected = PAIRS[case]
    dump = make_dump(
        pg_config=config(*names),
        pg_status={str(number): status(10 * number + 10) for number in numbers},
        entries=[make_entry(index, group) for index, group in enumerate(in_entries)],
    )
    converted = convert_dump(dump)
    rows = {row["group"]: row for row in to_rows(converted)["flight_group"]}
    assert {name: row["group_id"] for name, row in rows.items()} == expected
    for name, number in expected.items():
        last = None if number is None else 10 * number + 10
        assert (rows[name]["last_enqueued"], rows[name]["last_started"]) == (last, None)
    assert bool(converted.gaps) == (None in expected.values())


def test_the_unnamed_group_of_gloo_is_no_group() -> None:
    dump = make_dump(pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})
    (row,) = to_rows(convert_dump(dump))["flight_group"]
    assert (row["group"], row["ranks"], row["last_enqueued"]) == ("0", "", 3)
