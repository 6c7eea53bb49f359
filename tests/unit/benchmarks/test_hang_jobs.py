"""Hold the simulator of hung jobs to a real hang, and its truth to what the dumps hold."""

import ast
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hang_jobs import FAULTS, Job, Truth, draw_job, write_dumps
from benchmarks.hang_jobs.engine import Speed, Stops, run_programs
from benchmarks.hang_jobs.mesh import make_megatron_mesh
from benchmarks.hang_jobs.program import Shape, write_programs
from benchmarks.hangs import compare, format_table, tabulate_verdicts
from zprof.model.findings import Confidence
from zprof.model.hang import Hang, HangClass, HangStatus, RankAtHang, StuckOperation

SEEDS = range(4)


def read_dumps(job: Job, folder: Path) -> dict[int, dict[str, Any]]:
    paths = write_dumps(job, folder)
    ranks = [rank for rank in range(job.mesh.world) if rank not in job.truth.missing]
    return {rank: read_dump(path) for rank, path in zip(ranks, paths, strict=True)}


def read_dump(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(data) if path.suffix == ".json" else pickle.loads(data)


def list_pending(dump: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records that have not finished; parts of a coalesced operation never do."""
    entries = dump.get("entries", [])
    coalesced = {
        (each["pg_id"], each["p2p_seq_id"]): each["state"]
        for each in entries
        if each["profiling_name"] == "nccl:coalesced"
    }
    return [
        each
        for each in entries
        if each["state"] != "completed" and coalesced.get((each["pg_id"], each["p2p_seq_id"])) != "completed"
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_without_fault_finishes_everything(seed: int, tmp_path: Path) -> None:
    job = draw_job(seed, "shut_down")
    assert all(job.schedule.is_ended)
    assert all(meeting.members == len(meeting.reached) for meeting in job.schedule.meetings.values())
    for dump in read_dumps(job, tmp_path).values():
        if not job.dialect.only_active:
            assert not list_pending(dump)
        for status in dump["pg_status"].values():
            assert status["last_enqueued_collective"] == status["last_completed_collective"]


def test_two_stuck_hosts_leave_the_shape_of_the_real_case() -> None:
    """lock_gil_1st: ranks 9 and 14 of 16 have nothing pending, all others wait in what piled up behind."""
    mesh = make_megatron_mesh("expert", 16, 4, 2, 8)
    shape = Shape(steps=3, layers=2, micro_batches=4, buckets=2)
    programs = write_programs(random.Random(1), mesh, shape)
    stop = next(
        index
        for index, op in enumerate(programs[9])
        if index > len(programs[9]) // 2 and op.kind == "all_to_all"
    )
    speeds = [Speed(host_ns=30_000, device_ns=400_000, max_ahead=20)] * 16
    schedule = run_programs(programs, speeds, Stops(host={9: stop, 14: stop}))
    pending = [[entry for entry in entries if entry.completed_ns is None] for entries in schedule.entries]
    assert [rank for rank in range(16) if not pending[rank]] == [9, 14]
    for rank in (8, 10, 11, 12, 13, 15):
        first = pending[rank][0]
        assert (first.op.kind, first.op.group and first.op.group.ranks) == ("all_to_all", tuple(range(8, 16)))
        assert len(pending[rank]) > 1
    # Nothing passes an operation that the compute stream waits for, of whatever group.
    for entries in schedule.entries:
        stuck = [
            place for place, entry in enumerate(entries) if entry.completed_ns is None and entry.op.waits
        ]
        assert all(entry.completed_ns is None for entry in entries[min(stuck, default=len(entries)) :])
    # The other stage waits in sends and receives, and in what it enqueued behind them.
    assert all(pending[rank][0].op.peer >= 0 for rank in range(8))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_dumps_show_what_the_truth_says(fault: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        job = draw_job(seed, fault)
        dumps = read_dumps(job, tmp_path / str(seed))
        truth = job.truth
        # Somebody waits in the operation, and who is said to be late is.
        first = truth.operations[0]
        waiting = {
            rank
            for rank, dump in dumps.items()
            for each in list_pending(dump)
            if each["process_group"][0] == first.group
        }
        assert waiting & set(first.ranks)
        culprits = truth.culprits[0]
        if truth.kinds[0] == HangClass.HOST_STUCK:
            assert not any(list_pending(dumps[rank]) for rank in culprits)
        if truth.kinds[0] == HangClass.RANK_MISSING:
            assert truth.missing
            assert not set(truth.missing) & set(dumps)
        if truth.kinds[0] in (HangClass.DIFFERENT_COLLECTIVES, HangClass.MISMATCHED):
            assert {find_signature(dumps[rank], truth.operations[0]) for rank in culprits} != {None}


def find_signature(dump: dict[str, Any], operation: Any) -> str | None:
    """Return what a rank entered in the place of an operation."""
    for each in dump["entries"]:
        sequence = each["p2p_seq_id"] if each["is_p2p"] else each["collective_seq_id"]
        if each["process_group"][0] == operation.group and sequence in operation.sequences:
            return f"{each['profiling_name']} {each['input_sizes']} {each['input_dtypes']}"
    return None


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_pairs_are_in_groups_of_two(fault: str) -> None:
    for seed in SEEDS:
        job = draw_job(seed, fault, has_pairs=True)
        assert job.mesh.world <= 16
        assert any(len(each.ranks) == 2 for each in job.truth.operations)
        assert {rank for rank, _ in job.outcome.plan.places} >= set(job.truth.planted)


def test_a_stopped_device_is_behind_its_peers(tmp_path: Path) -> None:
    drawn = (draw_job(seed, "device_stopped") for seed in range(60))
    jobs = [
        job
        for job in drawn
        if job.truth.kinds[0] == HangClass.DEVICE_STOPPED
        and job.mesh.kind in ("ddp", "fsdp")
        and job.dialect.buffer == 2000
    ]
    for job in jobs[:4]:
        dumps = read_dumps(job, tmp_path / str(job.truth.seed))
        done = {
            (each["process_group"][0], each["collective_seq_id"])
            for dump in dumps.values()
            for each in dump["entries"]
            if each["state"] == "completed"
        }
        for rank in job.truth.culprits[0]:
            first = list_pending(dumps[rank])[0]
            assert (first["process_group"][0], first["collective_seq_id"]) in done


def test_a_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for seed in range(12):
        one, other = (write_dumps(draw_job(seed), tmp_path / name / str(seed)) for name in ("a", "b"))
        assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_jobs_vary() -> None:
    jobs = [draw_job(seed, "host_stuck") for seed in range(24)]
    for name in ("version", "is_json", "has_frames", "has_timing", "only_active", "name_style"):
        assert len({getattr(job.dialect, name) for job in jobs}) > 1
    assert {job.mesh.kind for job in jobs} == {"ddp", "fsdp", "3d", "expert"}
    assert any(job.truth.missing for job in jobs)
    for job in jobs:
        for group in job.mesh.groups:
            assert ast.literal_eval(str(list(group.ranks))) == sorted(group.ranks)


def answer(truth: Truth, culprits: tuple[int, ...], confidence: Confidence = Confidence.HIGH) -> Hang:
    first = truth.operations[0]
    operation = StuckOperation(
        operation=first.kinds[0],
        group=first.group,
        description=first.description,
        role="",
        ranks=first.ranks,
        sequence=first.sequences[0] if first.sequences else -1,
        sizes="",
        dtypes="",
    )
    return Hang(
        status=HangStatus.STUCK,
        kind=truth.kinds[0],
        confidence=confidence,
        operations=(operation,),
        culprits=tuple(RankAtHang(rank=rank, operation=0) for rank in culprits),
        ranks_missing=truth.missing,
    )


def test_only_the_truth_is_right_and_only_sure_words_accuse() -> None:
    verdicts = []
    for fault in FAULTS:
        truth = draw_job(1, fault).truth
        wrong = (*truth.culprits[0], 10_000)
        verdicts.append(compare(truth, answer(truth, truth.culprits[0])))
        assert verdicts[-1].is_right
        assert verdicts[-1].is_operation_right
        assert compare(truth, answer(truth, wrong)).accused == (10_000,)
        unsure = compare(truth, answer(truth, wrong, Confidence.LOW))
        assert not unsure.accused
        assert not unsure.are_culprits_right
        assert not compare(truth, Hang(status=HangStatus.RUNNING)).is_class_right
    running = draw_job(1, "running").truth
    assert compare(running, Hang(status=HangStatus.RUNNING)).is_right
    assert not compare(running, answer(verdicts[0].truth, (3,))).is_right
    total = tabulate_verdicts(verdicts)[-1]
    assert (total["jobs"], total["right"], total["accused"]) == (len(FAULTS), len(FAULTS), 0)
    assert "host_stuck" in format_table(tabulate_verdicts(verdicts))
