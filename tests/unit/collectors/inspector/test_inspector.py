"""Files of NCCL's Inspector with known late ranks, slow communicators and periods; and damaged ones."""

import gzip
import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from zprof.analysis.columns import Columns
from zprof.analysis.communicators.measure import measure_communicators
from zprof.base.errors import BadInput
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.collectors.read.inspector.reader import read_inspector
from zprof.diagnosis.diagnose import diagnose
from zprof.model.communicators import Communicators
from zprof.model.report import Report, VerdictStatus
from zprof.reports.html import render_html
from zprof.reports.pages.report import build_report_page
from zprof.run.reader import Run
from zprof.simulator.inspector import write_inspector_files
from zprof.simulator.job import Pace
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job
from zprof.simulator.regular import make_job
from zprof.simulator.run import run_job

Line = dict[str, Any]
Duration = Callable[[int, int], float]
"""Microseconds of an operation (number) on a rank."""
MIB = 1 << 20


def make_line(
    rank: int,
    number: int,
    time_us: float,
    *,
    ranks: int = 4,
    name: str = "dp",
    id: str = "0xa",
    kind: str = "AllReduce",
) -> Line:
    """Return a line in the definitions of NCCL: 8 MiB per rank."""
    size = 8 * MIB
    traffic = size * (ranks if kind in ("AllGather", "ReduceScatter") else 1)
    factor = (ranks - 1) / ranks * (2 if kind == "AllReduce" else 1)
    return {
        "header": {"id": id, "comm_name": name, "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": 1_700_000_000_000_000 + 1000 * number,
            "hostname": "host",
            "pid": 100 + rank,
        },
        "coll_perf": {
            "coll": kind,
            "coll_sn": number,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": time_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": traffic / time_us / 1e3,
            "coll_busbw_gbs": traffic / time_us / 1e3 * factor,
        },
    }


def make_lines(duration_us: Duration, *, count: int = 60, ranks: int = 4, **more: Any) -> list[Line]:
    return [
        make_line(rank, number, duration_us(number, rank), ranks=ranks, **more)
        for number in range(count)
        for rank in range(ranks)
    ]


def write(folder: Path, lines: Sequence[Line], *, packed: bool = False) -> Path:
    """Write the lines, one file per process."""
    folder.mkdir()
    files: dict[int, bytes] = {}
    for line in lines:
        pid = line["metadata"]["pid"]
        files[pid] = files.get(pid, b"") + json.dumps(line).encode() + b"\n"
    for pid, content in files.items():
        path = folder / f"host-pid{pid}.log{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def read(folder: Path) -> Report:
    return diagnose(Run(import_paths([folder], folder.with_suffix(".zprof")).run))


def get_found(report: Report) -> Communicators:
    assert report.time.communicators is not UNSET
    return report.time.communicators


def find_gap(report: Report, what: str) -> bool:
    return any(gap.what == what for gap in report.gaps)


def test_late_rank_is_the_one_with_the_shortest_kernels(tmp_path: Path) -> None:
    lines = make_lines(lambda number, rank: 500 if rank == 2 else 3500 + rank + number % 3)
    report = read(write(tmp_path / "a", lines))
    (late,) = get_found(report).late
    assert [place.rank for place in late.places] == [2]
    assert (late.operations, late.waited, late.last_ratio) == (60, 60, 1.0)
    assert late.wait_ns == pytest.approx(3_000_000, rel=0.01)
    assert report.verdict.status is VerdictStatus.RISK
    (entry,) = get_found(report).classes
    assert entry.busbw_bytes_per_s == pytest.approx(8 * MIB / 500e-6 * 2 * 3 / 4)
    assert not find_gap(report, "bandwidths")


@pytest.mark.parametrize(
    ("kind", "size", "time_us", "algbw_gbs", "busbw_gbs"),
    [
        ("AllReduce", 17_179_869_184, 61_974, 277.210914, 485.119099),
        ("ReduceScatter", 2_147_483_648, 41_057, 418.439467, 366.134533),
    ],
)
def test_bandwidths_are_those_of_the_examples_of_nccl(
    kind: str, size: int, time_us: float, algbw_gbs: float, busbw_gbs: float, tmp_path: Path
) -> None:
    """The figures stand in the README of NCCL's plugin (2.30.7): 8 ranks, one node."""
    stated = {"coll_msg_size_bytes": size, "coll_algobw_gbs": algbw_gbs, "coll_busbw_gbs": busbw_gbs}
    lines = make_lines(lambda number, rank: time_us, ranks=8, kind=kind)
    report = read(write(tmp_path / "job", [change(line, "coll_perf", **stated) for line in lines]))
    (found,) = get_found(report).classes
    assert found.algbw_bytes_per_s == pytest.approx(algbw_gbs * 1e9, rel=1e-4)
    assert found.busbw_bytes_per_s == pytest.approx(busbw_gbs * 1e9, rel=1e-4)
    assert not any("bandwidth" in gap.what for gap in report.gaps)


def test_slow_communicator_is_compared_with_its_peers(tmp_path: Path) -> None:
    lines = [
        make_line(rank, number, (900 if at == 1 else 600) + number % 9, id=f"0x{at}")
        for at in range(4)
        for number in range(60)
        for rank in range(4)
    ]
    report = read(write(tmp_path / "a", lines, packed=True))
    (slow,) = get_found(report).slow
    assert (slow.communicator, slow.peers, slow.operations, slow.peer_operations) == ("0x1", 3, 60, 180)
    assert slow.ratio == pytest.approx(2 / 3, rel=0.01)
    assert not get_found(report).late


def test_slow_period_has_its_bounds_and_levels(tmp_path: Path) -> None:
    lines = make_lines(lambda number, _: (800 if number >= 120 else 400) + number % 7, count=200)
    (period,) = get_found(read(write(tmp_path / "a", lines))).periods
    assert (period.first, period.last) == (120, None)
    assert period.transfer_ns == pytest.approx(800_000, rel=0.03)
    assert period.usual_transfer_ns == pytest.approx(400_000, rel=0.03)
    assert period.from_ns == 1_700_000_000_120_000_000


def test_without_all_ranks_nobody_is_late(tmp_path: Path) -> None:
    lines = make_lines(lambda _, rank: 500 if rank == 2 else 3500)
    report = read(write(tmp_path / "a", [line for line in lines if line["header"]["rank"] != 1]))
    (missing,) = get_found(report).missing
    assert missing.members == (1,)
    assert not get_found(report).late
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE


@settings(max_examples=12)
@given(st.randoms(use_true_random=False))
def test_few_or_equal_operations_accuse_nobody(chance: random.Random) -> None:
    ranks = chance.choice([2, 3, 4, 8])
    few = chance.random() < 0.3
    lines = make_lines(
        lambda _, rank: (100 if few and rank == 0 else 1000) + chance.randint(0, 500),
        count=9 if few else 50,
        ranks=ranks,
    )
    chance.shuffle(lines)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "a", lines)
        table, _ = read_inspector(sorted((Path(folder) / "a").iterdir()), lambda _: None, lambda: None)
    found, _ = measure_communicators(Columns.from_arrow(table))
    assert not found.late
    assert not found.periods


def test_markers_of_newer_versions_give_the_same_rows(tmp_path: Path) -> None:
    lines = make_lines(lambda _, rank: 500 if rank == 2 else 3500)
    plain = get_found(read(write(tmp_path / "a", lines)))
    folder = tmp_path / "b"
    folder.mkdir()
    for rank in range(4):
        own = [line for line in lines if line["header"]["rank"] == rank]
        marker = {**own[0], "dump_stats": {"coll_records": len(own), "coll_dropped_total": 7}}
        del marker["coll_perf"]
        records = ({"coll_perf": line["coll_perf"]} for line in own)
        entries = [marker, *records, {"proxy_trace": {"rank": rank}}]
        (folder / f"host-pid{rank}.log").write_text("\n".join(map(json.dumps, entries)))
    report = read(folder)
    found = get_found(report)
    assert (found.records, found.late) == (plain.records, plain.late)
    assert find_gap(report, "operations that were overwritten")


def change(line: Line, part: str, **values: object) -> Line:
    return {**line, part: {**line[part], **values}}


GOOD = make_lines(lambda _, rank: 500 if rank == 2 else 3500, count=30)
HOSTILE: Mapping[str, bytes] = {
    "cut": json.dumps(GOOD[0]).encode()[:150],
    "types": json.dumps(change(GOOD[0], "coll_perf", coll_sn="x", coll="AllReduce")).encode(),
    "negative": json.dumps(change(GOOD[0], "coll_perf", coll_exec_time_us=-5)).encode(),
    "huge": json.dumps(change(GOOD[0], "coll_perf", coll_msg_size_bytes=10**400)).encode(),
    "nan": json.dumps(change(GOOD[0], "coll_perf", coll_exec_time_us=float("nan"))).encode(),
    "duplicated keys": json.dumps(GOOD[0]).encode()[:-1] + b', "coll_perf": 1, "coll_perf": {}}',
    "deep": b'{"header": ' * 100_000,
    "long": b'{"header": {"id": "' + b"x" * (100 << 20) + b'"}}',
    "rank out of range": json.dumps(change(GOOD[0], "header", rank=9)).encode(),
    "not text": b"\xff\xfe\x00{" * 50,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_lines_are_counted_and_left_out(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", GOOD)
    path = folder / "host-pid100.log"
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(b"\n".join((first, HOSTILE[name], rest)))
    report = read(folder)
    assert find_gap(report, "lines of NCCL's Inspector")
    assert [place.rank for place in get_found(report).late[0].places] == [2]


def test_file_of_damaged_lines_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    bad = [change(line, "coll_perf", coll_exec_time_us="x") for line in GOOD]
    (tmp_path / "a" / "host-pid1.log").write_text("\n".join(map(json.dumps, bad)))
    with pytest.raises(BadInput) as error:
        read(tmp_path / "a")
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (GOOD, "repeated records"),
        ([change(line, "coll_perf", coll_exec_time_us=9) for line in GOOD], "contradicting records"),
        ([change(line, "header", n_ranks=9) for line in GOOD[:3]], "sizes of communicators"),
        ([change(line, "coll_perf", coll_busbw_gbs=1.0, coll_sn=99) for line in GOOD[:1]], "bandwidths"),
        (
            [change(change(line, "header", id="0xb"), "metadata", hostname="b") for line in GOOD],
            "several jobs",
        ),
        ([change(GOOD[0], "coll_perf", coll_exec_time_us=0, coll_sn=77)], "operations without a time"),
        ([change(GOOD[0], "coll_perf", coll_timing_source="collective_cpu", coll_sn=77)], "durations"),
    ],
)
def test_contradictions_are_gaps(more: Sequence[Line], what: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", GOOD)
    (folder / "copy.log").write_text("\n".join(map(json.dumps, more)))
    assert find_gap(read(folder), what)


def test_names_with_markup_stay_names(tmp_path: Path) -> None:
    name = '<script>alert(1)</script>\x1b[31m"coll_perf": [link=x]'
    report = read(write(tmp_path / "a", make_lines(lambda _, rank: 500 if rank == 2 else 3500, name=name)))
    assert get_found(report).late[0].name == name
    assert "\x1b" not in report.verdict.sentence
    assert "<script>alert" not in render_html(build_report_page(report))


#: Seeds on which the analysis was not developed.
@pytest.mark.parametrize("seed", [501, 502])
def test_simulated_slow_rank_and_slow_link_come_first(seed: int, tmp_path: Path) -> None:
    job = make_job(seed=seed, ranks=4, steps=10, stage=2)
    slow = seed % 4
    paces = tuple(Pace(gpu=1.3) if rank == slow else pace for rank, pace in enumerate(job.ranks))
    write_inspector_files(run_job(replace(job, ranks=paces)), tmp_path / "late", range(4))
    report = read(tmp_path / "late")
    assert [place.rank for place in get_found(report).late[0].places] == [slow]
    mesh = make_mesh_job(degrees=Degrees(data=2, tensor=2), seed=seed, steps=8)
    paces = tuple(Pace(link=0.3) if rank == slow else pace for rank, pace in enumerate(mesh.ranks))
    write_inspector_files(run_job(replace(mesh, ranks=paces)), tmp_path / "link", range(4))
    found = get_found(read(tmp_path / "link"))
    assert found.slow
    write_inspector_files(run_job(job), tmp_path / "even", range(4), verbose=True)
    assert read(tmp_path / "even").verdict.status is VerdictStatus.OK
