"""Operation timelines: the two published jobs as their authors measured them, and files that are refused."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pipelines import make_file_table, order_1f1b, play, write_timeline
from tests.support.real_traces import PIPELINES
from zprof.base.errors import BadInput
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.report import Report, VerdictStatus
from zprof.model.slowdown import SlowdownCause
from zprof.run.reader import Run

ROWS = play([order_1f1b(2, 4, stage) for stage in range(2)], lambda *_: 2.0, replicas=2, steps=2)


def read(path: Path, run: Path) -> Report:
    return diagnose(Run(import_paths([path], run).run))


@pytest.mark.skipif(not PIPELINES.is_dir(), reason="the public timelines are not here")
@pytest.mark.parametrize(
    ("job", "cause", "slowest"),
    [("ST", SlowdownCause.LAST_STAGE, (7,)), ("AR", SlowdownCause.SLOW_WORKERS, (0,))],
)
def test_published_jobs_have_their_published_slowdowns(
    job: str, cause: SlowdownCause, slowest: tuple[int, ...], tmp_path: Path
) -> None:
    report = read(PIPELINES / f"trace-{job}.parquet", tmp_path / "run.zprof")
    slowdown = report.time.slowdown
    assert slowdown is not None
    published = json.loads((PIPELINES / f"result-{job}.json").read_text())

    def hold(values: Mapping[object, float], name: str) -> None:
        expected = published[f"blocking_decompose_by_{name}"]
        assert {str(key): value for key, value in values.items()} == pytest.approx(expected, abs=5e-5)

    assert slowdown.s == pytest.approx(published["blocking_slowdown"], abs=5e-5)
    hold(slowdown.by_operation, "optype")
    hold(slowdown.by_dp_rank, "dp_rank")
    hold(slowdown.by_stage, "stage")
    for worker in slowdown.workers:
        of_replica = published["blocking_decompose_by_dp_rank"][str(worker.dp_rank)]
        of_stage = published["blocking_decompose_by_stage"][str(worker.stage)]
        assert slowdown.by_worker[worker.rank] == pytest.approx(min(of_replica, of_stage), abs=5e-5)
    for name, share in (("ms", slowdown.m_s), ("mw", slowdown.m_w)):
        expected = json.loads((PIPELINES / f"{name}-{job}.json").read_text())
        assert share == pytest.approx(expected["rem"], abs=5e-5)
    recorded = slowdown.recorded_step_ns / slowdown.replayed_step_ns
    assert recorded == pytest.approx(published["launch_slowdown"], abs=5e-5)
    assert (slowdown.cause, slowdown.slowest_ranks) == (cause, slowest)
    assert report.verdict.status is VerdictStatus.RISK


def test_a_run_has_the_rows_of_its_file(tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "job.parquet", ROWS)
    run = Run(import_paths([path], tmp_path / "run.zprof").run)
    table = run.job_table("operations")
    assert table is not None
    assert [row | {"operation": row["operation"]} for row in table.to_pylist()] == [
        {name: row[name] for name in table.column_names} for row in ROWS
    ]
    report = diagnose(run)
    assert report.verdict.status is VerdictStatus.OK
    assert (report.run.ranks_loaded, report.run.steps) == ((0, 1, 2, 3), (0, 1))


def test_optional_columns_may_be_absent(tmp_path: Path) -> None:
    path = tmp_path / "job.parquet"
    pq.write_table(make_file_table(ROWS).drop_columns(["mc", "gmc", "mb_id"]), path)
    slowdown = read(path, tmp_path / "run.zprof").time.slowdown
    assert slowdown is not None
    assert slowdown.s == pytest.approx(1)


def replace_column(name: str, values: object) -> pa.Table:
    table = make_file_table(ROWS)
    return table.set_column(table.column_names.index(name), name, pa.array(values))


@pytest.mark.parametrize(
    "table",
    [
        make_file_table(ROWS).slice(0, 0),
        replace_column("duration", [float("nan")] * len(ROWS)),
        replace_column("duration", [-1.0] * len(ROWS)),
        replace_column("start_ts", [1e300] * len(ROWS)),
        replace_column("start_ts", ["soon"] * len(ROWS)),
        replace_column("stage", [1.5] * len(ROWS)),
        replace_column("stage", [[1]] * len(ROWS)),
        replace_column("stage", [None] * len(ROWS)),
        replace_column("rank", [2**62] * len(ROWS)),
        replace_column("seq_id", [-5] * len(ROWS)),
        replace_column("optype", list(range(len(ROWS)))),
        replace_column("optype", [None] * len(ROWS)),
        replace_column("optype", ["x" * 10_000] * len(ROWS)),
    ],
)
def test_impossible_columns_are_refused(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "job.parquet"
    pq.write_table(table, path)
    with pytest.raises(BadInput) as caught:
        read(path, tmp_path / "run.zprof")
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "table",
    [
        replace_column("optype", [f"type {number}" for number in range(len(ROWS))]),
        replace_column("rank", [3] * len(ROWS)),
        replace_column("duration", [0.0] * len(ROWS)),
        replace_column("step", list(range(len(ROWS)))),
        replace_column("seq_id", [2**31 - 1 - 10**6 * number for number in range(len(ROWS))]),
    ],
)
def test_timelines_that_cannot_be_replayed_have_a_gap(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "job.parquet"
    pq.write_table(table, path)
    report = read(path, tmp_path / "run.zprof")
    assert report.time.slowdown is None
    assert len(report.gaps) >= 2
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_damaged_files_are_refused(kept: float, tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "job.parquet", ROWS)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(BadInput):
        read(path, tmp_path / "cut.zprof")
    body = slice(4, int(kept * len(content)) - 200)
    content[body] = np.random.default_rng(1).bytes(len(content[body]))
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read(path, tmp_path / "changed.zprof")
    assert "\n" not in caught.value.message


def test_many_repeated_rows_in_a_small_file_are_refused(tmp_path: Path) -> None:
    path, schema = tmp_path / "job.parquet", make_file_table(ROWS[:1]).schema
    part = pa.Table.from_batches([make_file_table(ROWS[:1] * 1_000_000).to_batches()[0]], schema)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(21):
            writer.write_table(part)
    with pytest.raises(BadInput, match="21,000,000 operations"):
        read(path, tmp_path / "run.zprof")


def test_several_jobs_are_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name in ("a", "b"):
        write_timeline(folder / f"{name}.parquet", ROWS)
    with pytest.raises(BadInput, match="2 operation timelines"):
        import_paths([folder], tmp_path / "run.zprof")


def test_other_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(make_file_table(ROWS).drop_columns(["optype"]), path)
    with pytest.raises(BadInput, match="neither a run nor an operation timeline"):
        import_paths([path], tmp_path / "run.zprof")


def write_stages(folder: Path, stages: int, passes: object = None) -> Path:
    """The times of a pipeline whose stages take 10 ms forward and 20 ms backward, without a bubble."""
    folder.mkdir()
    usual = {
        "total": 90.0,
        "fwd_start": [0.0, 10.0],
        "fwd_end": [10.0, 20.0],
        "bwd_start": [20.0, 40.0],
        "bwd_end": [40.0, 60.0],
    }
    for stage in range(stages):
        content = {"7": usual if passes is None else passes}
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps(content))
    return folder


def test_times_of_stages_are_a_timeline(tmp_path: Path) -> None:
    slowdown = read(write_stages(tmp_path / "pp", 2), tmp_path / "run.zprof").time.slowdown
    assert slowdown is not None
    # two stages that both do two forwards first: f + 2f + 2b + b
    assert (slowdown.ideal_step_ns, slowdown.s) == (90_000_000, pytest.approx(1))
    assert [each.stage for each in slowdown.workers] == [0, 1]


@pytest.mark.skipif(not PIPELINES.is_dir(), reason="the public timelines are not here")
def test_public_times_of_stages(tmp_path: Path) -> None:
    slowdown = read(PIPELINES / "pp8", tmp_path / "run.zprof").time.slowdown
    assert slowdown is not None
    assert (slowdown.steps, slowdown.micro_batches, len(slowdown.workers)) == (20, 16, 8)
    # the recording has the delays of transfers that are not in it
    assert 1 < slowdown.recorded_step_ns / slowdown.replayed_step_ns < 1.05
    assert slowdown.slowest_ranks == (7,)


@pytest.mark.parametrize(
    "passes",
    [
        [],
        {},
        {"fwd_start": "0", "fwd_end": [], "bwd_start": [], "bwd_end": []},
        {"fwd_start": [0.0], "fwd_end": [], "bwd_start": [], "bwd_end": []},
        {"fwd_start": [2.0], "fwd_end": [1.0], "bwd_start": [], "bwd_end": []},
        {"fwd_start": [0.0], "fwd_end": [1e300], "bwd_start": [], "bwd_end": []},
        {"fwd_start": [], "fwd_end": [], "bwd_start": [], "bwd_end": []},
    ],
)
def test_impossible_times_of_stages_are_refused(passes: object, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        import_paths([write_stages(tmp_path / "pp", 2, passes)], tmp_path / "run.zprof")
    assert "\n" not in caught.value.message


def test_stages_need_names_of_their_own(tmp_path: Path) -> None:
    folder = write_stages(tmp_path / "pp", 1)
    (folder / "pp_rank_00.json").write_bytes((folder / "pp_rank_0.json").read_bytes())
    with pytest.raises(BadInput, match="is of stage 0"):
        import_paths([folder], tmp_path / "run.zprof")
