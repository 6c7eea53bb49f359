"""The exported trace against the report of the same run, to the nanosecond."""

import io
from pathlib import Path

import pytest

from tests.support.chrome_trace import ChromeTrace, check_chrome_trace, read_chrome_trace
from tests.support.device_ranks import Rows, write_run
from tests.support.schedules import MS, Spec, play, write
from zprof.analysis.time.analyse import analyse_time
from zprof.base.errors import MissingData
from zprof.integrations.perfetto import export as flows
from zprof.integrations.perfetto.export import export_trace
from zprof.integrations.perfetto.rank_rows import ExportChoice
from zprof.run.reader import Run, load

SPEC = Spec(
    ranks=3, steps=4, prefetch=1, slow_rank=1, slow_ns=20 * MS, offsets_ns=(0, 5 * MS, -2 * MS),
    hosts=("alpha", "beta", "gamma"),
)  # fmt: skip
LEAVES = {"exposed wait": "exposed_wait_ns", "exposed transfer": "exposed_transfer_ns"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(write(tmp_path_factory.mktemp("exported") / "three.zprof", SPEC, play(SPEC)))


def exported(run: Run, folder: Path, **choice: object) -> ChromeTrace:
    target = folder / "trace.json"
    with target.open("wb") as file:
        export_trace(run, ExportChoice(**choice), file)
    trace = read_chrome_trace(target)
    check_chrome_trace(trace)
    return trace


def test_every_rank_is_a_process_with_its_rows(run, tmp_path):
    trace = exported(run, tmp_path)
    assert trace.processes == {0: "rank 0 (alpha)", 1: "rank 1 (beta)", 2: "rank 2 (gamma)"}
    for rank in range(3):
        titles = [title for (pid, _), title in sorted(trace.titles.items()) if pid == rank]
        assert titles[0] == "steps"
        assert {"exposed transfer", "collectives", "thread 100", "thread 200"} <= set(titles)
    assert min(one.start_ns for slices in trace.slices.values() for one in slices) == 0


def test_exposed_rows_sum_to_the_report_of_each_step(run, tmp_path):
    trace = exported(run, tmp_path)
    steps = analyse_time(run).time.steps
    assert sum(step.exposed_wait_ns for step in steps) > 10 * MS
    for step in steps:
        for title, leaf in LEAVES.items():
            mine = [one for one in trace.row(step.rank, title) if one.args["step"] == step.step]
            assert sum(one.length_ns for one in mine) == getattr(step, leaf), (step.rank, step.step, title)


def test_one_collective_ends_on_all_ranks_at_once(run, tmp_path):
    trace = exported(run, tmp_path)
    alignment = analyse_time(run).time.alignment
    ends: dict[int, list[int]] = {}
    for rank in range(3):
        collectives = trace.row(rank, "collectives")
        for one in collectives:
            ends.setdefault(one.args["sequence"], []).append(one.end_ns)
        recorded = {(one.start_ns, one.end_ns) for one in trace.row(rank, "thread 200")}
        assert {(one.start_ns, one.end_ns) for one in collectives} <= recorded, "events have the same clock"
    assert {len(times) for times in ends.values()} == {3}
    assert max(max(times) - min(times) for times in ends.values()) <= 2 * alignment.uncertainty_ns


def test_collectives_have_their_wait_and_the_last_rank(run, tmp_path):
    seen = exported(run, tmp_path).row(0, "collectives")
    rows = {row["sequence"]: row for row in analyse_time(run).collectives.list_rows() if row["rank"] == 0}
    assert len(seen) == len(rows)
    for one in seen:
        row = rows[one.args["sequence"]]
        assert (one.name, one.args["group"], one.args["bytes"]) == (row["kind"], row["group"], row["bytes"])
        assert round(one.args["wait_us"] * 1000) == row["wait_ns"]
        assert round(one.args["transfer_us"] * 1000) == row["transfer_ns"]
        assert one.args.get("last_rank", -1) == row["last_rank"]
    assert any(one.args.get("last_rank") == 1 for one in seen)


def test_arrows_lead_from_the_last_rank_to_each_other_rank(run, tmp_path):
    trace = exported(run, tmp_path)
    assert len(trace.flows) == 2 * len(trace.row(0, "collectives"))
    for (_, *begin), (_, *end) in trace.flows.values():
        assert begin[0] != end[0]
        assert begin[2] >= end[2]


def test_arrows_are_bounded_and_the_rest_is_counted(run, tmp_path, monkeypatch):
    monkeypatch.setattr(flows, "MAX_ARROWS", 7)
    out = io.BytesIO()
    found = export_trace(run, ExportChoice(), out)
    assert out.getvalue().count(b'"ph":"s"') == 7
    assert len(found.notes) == 1


def test_chosen_steps_and_ranks_alone_are_written(run, tmp_path):
    trace = exported(run, tmp_path, ranks=frozenset({0, 2}), steps=frozenset({2}))
    assert set(trace.processes) == {0, 2}
    whole = {step.rank: step for step in analyse_time(run).time.steps if step.step == 2}
    for rank in (0, 2):
        (step,) = trace.row(rank, "steps")
        assert (step.name, step.length_ns) == ("step 2", whole[rank].wall_ns)
        for title in ("thread 100", "exposed wait", "exposed transfer"):
            for one in trace.row(rank, title):
                assert step.start_ns <= one.start_ns <= one.end_ns <= step.end_ns


def test_recorded_events_of_the_chosen_steps_are_written(run, tmp_path):
    whole, chosen = exported(run, tmp_path), exported(run, tmp_path, steps=frozenset({1, 2}))
    later_ns = chosen.base_ns - whole.base_ns
    for rank in range(3):
        steps = chosen.row(rank, "steps")
        begin, end = steps[0].start_ns + later_ns, steps[-1].end_ns + later_ns
        inside = [e.name for e in whole.row(rank, "thread 100") if e.start_ns < end and e.end_ns > begin]
        assert [one.name for one in chosen.row(rank, "thread 100")] == inside


def test_crossing_kernels_get_a_second_lane_and_python_is_optional(tmp_path):
    rows = Rows()
    rows.kernel(1_000, 5_000).kernel(3_000, 9_000).kernel(10_000, 11_000)
    rows.event(500, 12_000, "cpu_op", 'aten::"mm"\x1b[31m').event(600, 700, "python_function", "train.py: f")
    rows.collective(2_000, 8_000).step(0, 400, 20_000)
    run = load(write_run(tmp_path / "device.zprof", {0: rows}))
    for python in (False, True):
        trace = exported(run, tmp_path, python=python)
        assert {"stream 7", "stream 7 (2)", "stream 20"} <= set(trace.titles.values())
        names = [one.name for slices in trace.slices.values() for one in slices]
        assert 'aten::"mm"\\x1b[31m' in names
        assert ("train.py: f" in names) == python


def test_a_run_without_times_is_missing_data(tmp_path):
    with pytest.raises(MissingData):
        export_trace(load(write_run(tmp_path, {0: Rows().kernel(1, 2)})), ExportChoice(), io.BytesIO())
