"""Nsight exports: the same answers as from Kineto, an SQL sweep of a real file, and files of strangers."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import zprof
from zprof.analysis.analysis import analyse
from zprof.base.errors import ZprofError
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.collectors.read.nsight.nccl import Range, find_calls
from zprof.model.report import Report
from zprof.notebook.run import AnalysedRun
from zprof.run.reader import load
from zprof.simulator.kineto import write_traces
from zprof.simulator.mesh.faults import plant_mesh_cause
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job
from zprof.simulator.nsight import write_nsight_files
from zprof.simulator.run import run_job

REAL = Path("/work/shared/data/nsight/mfu_2gpu_before.sqlite")
TERMS = ("wall_ns", "compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "idle_ns")
JOBS = {
    "data": (Degrees(data=8), "straggler_rank"),
    "pipeline": (Degrees(pipeline=4, data=2), "slow_stage"),
    "experts": (Degrees(data=8, expert=4), "expert_imbalance"),
    "ring": (Degrees(data=2, context=4), None),
}


def write_job(name: str, folder: Path, *, with_kineto: bool = True) -> None:
    degrees, cause = JOBS[name]
    job = make_mesh_job(degrees=degrees, steps=2)
    if cause is not None:
        job = plant_mesh_cause(job, cause, np.random.default_rng(2), 1.0)
    schedule = run_job(job)
    write_nsight_files(schedule, folder / "sqlite", range(job.world))
    if with_kineto:
        write_traces(schedule, folder / "json", range(job.world))


def open_run(path: Path, folder: Path) -> AnalysedRun:
    import_paths([path], folder)
    return AnalysedRun(folder)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_the_same_answer_from_both_formats(name: str, tmp_path: Path) -> None:
    write_job(name, tmp_path)
    kineto, nsight = (open_run(tmp_path / kind, tmp_path / f"{kind}.zprof") for kind in ("json", "sqlite"))
    assert nsight.manifest.world_size == kineto.manifest.world_size == 8
    before, after = zprof.diagnose(kineto), zprof.diagnose(nsight)
    assert after.verdict == before.verdict
    assert list_terms(after) == list_terms(before)
    assert [(each.cause, each.saving_ns) for each in after.findings] == [
        (each.cause, each.saving_ns) for each in before.findings
    ]
    columns = ["rank", "step", "kind", "group_size", "start_ns", "exposed_ns", "wait_ns", "transfer_ns"]
    rows = [run.collectives()[columns].sort_values(columns, ignore_index=True) for run in (kineto, nsight)]
    assert rows[0].equals(rows[1])


def list_terms(report: Report) -> list[tuple[int, ...]]:
    return [tuple(getattr(rank, term) for term in TERMS) for rank in report.time.per_rank]


def sweep(path: Path, device: int) -> tuple[int, int]:
    """Exposed and hidden time of NCCL's kernels on a device, by one pass over sorted times."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    query = (
        "SELECT k.start, k.end, s.value LIKE 'nccl%' FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.shortName WHERE k.deviceId = ?"
    )
    changes = []
    for start, end, is_nccl in connection.execute(query, (device,)):
        changes += [(start, 1, is_nccl), (end, -1, is_nccl)]
    running, exposed, hidden, last = [0, 0], 0, 0, 0
    for time, change, is_nccl in sorted(changes):
        if running[1]:
            exposed += time - last if not running[0] else 0
            hidden += time - last if running[0] else 0
        running[is_nccl] += change
        last = time
    return exposed, hidden


@pytest.mark.skipif(not REAL.exists(), reason="the shared data are not here")
def test_a_real_export_equals_an_sql_sweep_to_the_nanosecond(tmp_path: Path) -> None:
    run = open_run(REAL, tmp_path / "run.zprof")
    rows = run.collectives()
    # the first kernel of each rank was launched before the profile began
    assert list(rows["kind"].value_counts().items()) == [("all_to_all", 64), ("other", 2)]
    assert rows["matched"].all()
    for rank in run.report.time.per_rank:
        exposed, hidden = sweep(REAL, rank.rank)
        own = rows[rows["rank"] == rank.rank]
        assert rank.exposed_wait_ns + rank.exposed_transfer_ns == exposed
        assert rank.overlapped_ns == hidden == own["hidden_ns"].sum()
    late = run.report.time.blame
    assert late is not None
    assert max(late.per_rank, key=lambda each: each.exposed_wait_ns).rank == 1


@pytest.mark.skipif(not REAL.exists(), reason="the shared data are not here")
def test_waits_and_transfers_of_a_real_export_are_those_of_pairs(tmp_path: Path) -> None:
    """The n-th kernels of both ranks are one exchange: none moves data before both have started.

    The first ones were launched before the profile began, so what they are is unknown.
    """
    connection = sqlite3.connect(f"file:{REAL}?mode=ro&immutable=1", uri=True)
    query = (
        "SELECT k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName "
        "WHERE s.value LIKE 'nccl%' AND k.deviceId = ? ORDER BY k.start"
    )
    pairs = [connection.execute(query, (device,)).fetchall() for device in (0, 1)]
    assert len(pairs[0]) == len(pairs[1]) == 33
    waits = [0, 0]
    for first, second in zip(pairs[0][1:], pairs[1][1:], strict=True):
        arrival = max(first[0], second[0])
        waits[0] += min(first[1], arrival) - first[0]
        waits[1] += min(second[1], arrival) - second[0]
    found = analyse(open_run(REAL, tmp_path / "run.zprof")).collectives
    for rank in (0, 1):
        own = found.at((found.ints("rank") == rank) & found.texts("kind").equals("all_to_all"))
        assert own.ints("wait_ns").sum() == waits[rank]


def change(sql: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.executescript(sql)

    return damage


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
DAMAGES: dict[str, Callable[[Path], None]] = {
    "no kernels": change(f"DELETE FROM {KERNELS}"),
    "no kernel table": change(f"DROP TABLE {KERNELS}"),
    "a view of kernels": change(
        f"ALTER TABLE {KERNELS} RENAME TO k; CREATE VIEW {KERNELS} AS SELECT * FROM k, k AS b, k AS c"
    ),
    "texts for numbers": change(f"UPDATE {KERNELS} SET start = 'x', streamId = 'y'"),
    "blobs for numbers": change(f"UPDATE {KERNELS} SET deviceId = x'00', correlationId = x'ff'"),
    "fractions": change(f"UPDATE {KERNELS} SET start = start + 0.5"),
    "huge numbers": change(
        f"UPDATE {KERNELS} SET end = 9223372036854775807, deviceId = -9223372036854775807"
    ),
    "ends before starts": change(f"UPDATE {KERNELS} SET end = start - 1000000"),
    "all at once": change(f"UPDATE {KERNELS} SET start = 5, end = 5"),
    "no names": change("DELETE FROM StringIds"),
    "long names": change("UPDATE StringIds SET value = printf('%.*c', 1000000, 'x')"),
    "names of strangers": change("UPDATE StringIds SET value = '</script>' || char(27) || '[2J' || id"),
    "invalid text": change("UPDATE StringIds SET value = CAST(x'fffefd' AS TEXT)"),
    "no launches": change("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"),
    "no ranges": change("DROP TABLE NVTX_EVENTS"),
    "no ends of ranges": change("UPDATE NVTX_EVENTS SET end = NULL"),
    "deep payload": change("UPDATE NVTX_EVENTS SET jsonText = replace(hex(zeroblob(3000)), '00', '[')"),
    "payload of nonsense": change(
        'UPDATE NVTX_EVENTS SET jsonText = \'{"No. of ranks": 1e400, "Rank": -1}\''
    ),
    "huge communicators": change(
        "UPDATE NVTX_EVENTS SET jsonText = replace(jsonText, '\"No. of ranks\": 8', "
        "'\"No. of ranks\": 99999999999')"
    ),
    "equal ranks": change("UPDATE NVTX_EVENTS SET jsonText = replace(jsonText, '\"Rank\"', '\"Rink\"')"),
    "many devices": change(f"UPDATE {KERNELS} SET deviceId = rowid"),
    "no process": change(f"UPDATE {KERNELS} SET globalPid = NULL"),
    "future": change("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 9223372036854775807"),
    "no session": change("DROP TABLE TARGET_INFO_SESSION_START_TIME"),
    "a trigger": change(f"CREATE TRIGGER t AFTER DELETE ON {KERNELS} BEGIN SELECT load_extension('x'); END"),
    "a generated column": change(
        f"ALTER TABLE {KERNELS} DROP COLUMN globalPid; "
        f"ALTER TABLE {KERNELS} ADD COLUMN globalPid AS (length(printf('%.*c', 100000000, 'x')))"
    ),
    "an odd table": change('CREATE TABLE "a""b; DROP" (x)'),
    "empty": lambda path: path.write_bytes(b""),
    "only a header": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    **{f"noise {seed}": lambda path, seed=seed: add_noise(path, seed) for seed in range(8)},  # type: ignore[misc]
}


def add_noise(path: Path, seed: int) -> None:
    content, drawn = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(200):
        content[drawn.randrange(100, len(content))] = drawn.randrange(256)
    path.write_bytes(content)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write_job("ring", folder, with_kineto=False)
    (path,) = (folder / "sqlite").iterdir()
    return path


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_export_is_read_in_part_or_refused_in_one_line(
    name: str, export: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.sqlite"
    shutil.copy(export, path)
    DAMAGES[name](path)
    error = ""
    try:
        import_paths([path], tmp_path / "run.zprof")
        shown = zprof.diagnose(load(tmp_path / "run.zprof")).verdict.sentence
    except ZprofError as refusal:
        shown = error = str(refusal)
    assert len(shown.splitlines()) == 1
    assert "\x1b" not in shown
    assert not error or "failed" not in error


def test_a_report_of_nsys_is_answered_with_the_command_that_exports_it(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"\x7fNSYS" + bytes(2000))
    with pytest.raises(ZprofError) as error:
        import_paths([path], tmp_path / "run.zprof")
    assert "nsys export --type sqlite" in error.value.hint


def test_groups_of_calls() -> None:
    names = ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclSend", "ncclRecv", "ncclGroupEnd"]
    ranges = [Range(name=name, start_ns=10 * at, end_ns=10 * at + 5) for at, name in enumerate(names)]
    (call,), batches = find_calls(ranges, lambda _: 2)
    assert (call.collective, call.start_ns, call.end_ns, batches) == ("alltoall", 10, 55, [])
    calls, batches = find_calls(ranges, lambda _: 4)
    assert [each.collective for each in calls] == ["send", "recv"] * 2
    assert len(batches) == 1
    sizes = {"1": 2, "2": 8}
    for communicator, expected in (
        ("1", ["alltoall"]),
        ("2", ["send", "recv"] * 2),
        ("3", ["send", "recv"] * 2),
    ):
        text = f'{{"NCCL communicator ID": {communicator}}}'
        described = [replace(each, payload=text) for each in ranges]
        calls, _ = find_calls(described, lambda name: sizes.get(name or ""))
        assert [each.collective for each in calls] == expected
    nested = [
        Range(name=name, start_ns=at, end_ns=at)
        for at, name in enumerate(["ncclGroupStart"] * 2 + ["ncclAllReduce"] + ["ncclGroupEnd"] * 2)
    ]
    (call,), batches = find_calls(nested, lambda _: None)
    assert (call.collective, call.end_ns, batches) == ("allreduce", 4, [])
