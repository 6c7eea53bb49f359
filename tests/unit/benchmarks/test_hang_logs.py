"""Hold the logs of simulated jobs to the forms of their versions, and their truth to their lines."""

import re
from functools import cache
from itertools import count, islice
from pathlib import Path

import pytest
from msgspec.json import decode

from benchmarks.hang_jobs import FAULTS, HEALTHY, Job, draw_job
from benchmarks.hang_jobs.log_cuts import CUTS
from benchmarks.hang_jobs.log_truth import LogTruth
from benchmarks.hang_jobs.logs import list_versions, write_logs

N = r"-?\d+"
WATCHDOG = (
    rf"\[Rank {N}\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum={N}, OpType=[A-Z_]+, "
    rf"NumelIn={N}, NumelOut={N}, Timeout\(ms\)=600000\) ran for {N} milliseconds before timing out\."
)
LAST = rf"ast enqueued NCCL work: {N}, last completed NCCL work: {N}\."
GROUPS = {
    "2.1": rf"\[Rank {N}\] ",
    "2.2": rf"\[Rank {N}\] ",
    "2.3": rf"\[PG {N} Rank {N}\] ",
    "2.4": rf"\[PG {N} \(\w+\) Rank {N}\] ",
}
GUID = rf"\[PG ID {N} PG GUID {N}\(\w+\) Rank {N}\] "
FAILURE = rf" failure detected by watchdog at work sequence id: {N} PG status: last enqueued work: {N}"
EXCEPTION = rf"(Exception \(either an error or timeout\) detected by watchdog at work: {N}, l{LAST})"
AT_WORK = rf"(Timeout at NCCL work: {N}, l{LAST})"
STATUS = {
    "2.3": AT_WORK,
    "2.4": f"{EXCEPTION}|{AT_WORK}",
    "2.5": f"{EXCEPTION}|{AT_WORK}",
    "2.13": rf"{FAILURE}, last started work: {N}, last completed work: {N}",
}
DUMP = rf" will start to dump the debug info\. L{LAST}"
SIGNALS = {
    "2.3": f"Received a (timeout signal from this local rank|global timeout from another rank) and{DUMP}",
    "2.4": f"Received a (dump signal from this local rank and|global dump signal from rank {N}, and){DUMP}",
}
SIGNAL = (
    rf"Received a dump signal due to a collective timeout from (this local rank| rank {N}) and we will try "
    rf"our best to dump the debug info\. L{LAST}This is most likely caused by .*"
)
OTHERS = (
    rf"(\[Rank {N}\] )?Some NCCL operations have failed or timed out\. .*",
    rf"(\[Rank {N}\] )?To avoid data inconsistency, we are taking the entire process down\.",
    r"Stack trace of the failed collective not found, .*",
)
NOTICES = r"(First (PG|watchdog) .*|Broadcasting flight-recorder .*|Observed flight recorder dump signal .*)"
LAUNCHER = re.compile(
    r".*(Sending process \d+ closing signal SIGTERM|failed \(exitcode: -?\d+\) local_rank: \d .*)|=+|-+"
    r"|train.py FAILED|torch\.distributed\.elastic\..*Error: |Failures:|  <NO_OTHER_FAILURES>"
    r"|Root Cause .*|\[0\]:|  \w+ *: .*|"
)
PROGRESS = re.compile(r"step \d+ \| loss .*|terminate called .*|  what\(\):  \[.*")


@cache
def list_jobs() -> tuple[Job, ...]:
    """Return small jobs of every fault."""
    jobs = []
    for fault in (*FAULTS, *HEALTHY):
        drawn = (draw_job(seed, fault) for seed in count())
        jobs += list(islice((job for job in drawn if job.mesh.world <= 16), 2))
    return tuple(jobs)


def make_pattern(version: str) -> re.Pattern[str]:
    """Return what a C++ line of a version looks like."""
    time = "" if version in ("2.1", "2.2", "2.3") else r"806 [\d:]{8}\.\d{9}"
    who = "" if version == "2.1" else rf"\[rank{N}\]:"
    head = rf"{who}\[E{time} ProcessGroupNCCL\.cpp:{N}\] "
    group = GROUPS.get(version, GUID)
    has_status = version not in ("2.1", "2.2")
    thread = "Process group" if has_status else "NCCL"
    texts = [WATCHDOG, *OTHERS, rf"{group}{thread} watchdog thread terminated with exception: {WATCHDOG}"]
    if has_status:
        status = STATUS.get(version, rf"{FAILURE}, last completed work: {N}")
        texts += [rf"{group}({text})" for text in (status, SIGNALS.get(version, SIGNAL), NOTICES)]
    return re.compile(f"{head}(?:{'|'.join(texts)})")


@pytest.mark.parametrize("version", ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.10", "2.13"])
def test_every_line_of_a_whole_log_has_the_form_of_its_version(version: str, tmp_path: Path) -> None:
    pattern = make_pattern(version)
    matched = 0
    for job in list_jobs():
        truth = write_logs(job, tmp_path, version, "complete", 1)
        for line in (tmp_path / truth.path).read_text().splitlines():
            if pattern.fullmatch(line):
                matched += 1
            else:
                assert PROGRESS.fullmatch(line) or LAUNCHER.fullmatch(line), line
    assert matched > 100


def test_a_seed_gives_the_same_log(tmp_path: Path) -> None:
    job = list_jobs()[0]
    for cut in CUTS:
        for name in ("a", "b"):
            write_logs(job, tmp_path / name / cut, "2.7", cut, 3)
        one, other = (
            {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
            for name in ("a", "b")
        )
        assert one == other


@pytest.mark.parametrize("cut", ["complete", "one_rank", "two_lines", "first_lines"])
def test_the_truth_follows_from_the_lines(cut: str, tmp_path: Path) -> None:
    """Each rank that is said to wait has a line of its own with the number, and so has one that is late."""
    states = set()
    for job in list_jobs():
        truth = write_logs(job, tmp_path, "2.7", cut, 2)
        lines = (tmp_path / truth.path).read_text().splitlines()
        firsts = {known.name: known.sequence for known in truth.groups}
        for state in truth.states:
            states.add(state.state)
            first = firsts.get(state.group, -1)
            if first >= 0 and state.state != "silent":
                order = (state.sequence > first) - (state.sequence < first)
                assert ("not_entered", "entered", "past")[order + 1] == state.state
            mine = [line for line in lines if line.startswith(f"[rank{state.rank}]:")]
            group = f"PG GUID {state.group}(" if state.group else ""
            if state.state == "silent":
                assert not any(group in line and "work" in line for line in mine)
                continue
            numbers = "|".join((rf"SeqNum={state.sequence},", rf"id: {state.sequence} ", r"Last enqueued"))
            assert any(re.search(numbers, line) for line in mine)
            assert any(group in line for line in mine)
            if state.state == "not_entered":
                assert any(f"Last enqueued NCCL work: {state.sequence}," in line for line in mine)
        for known in truth.groups:
            assert known.size is None or any(known.name == each.name for each in job.mesh.groups)
    assert states == {"entered", "not_entered", "past", "silent"} if cut == "complete" else states


def test_a_disfigured_log_says_what_the_whole_one_says(tmp_path: Path) -> None:
    for job in list_jobs()[::3]:
        for cut in ("wrapped", "interleaved", "prefixed", "glued"):
            truth = write_logs(job, tmp_path, "2.10", cut, 4)
            written = (tmp_path / truth.path).read_text()
            whole = re.sub(r"\s+", "", written)
            for state in truth.states:
                assert state.state == "silent" or f"[rank{state.rank}]:" in whole
            assert decode((tmp_path / "truth.json").read_bytes(), type=LogTruth) == truth


def test_what_a_log_decides_is_what_was_planted(tmp_path: Path) -> None:
    """Nobody is a culprit and innocent; a log without a hang decides nothing."""
    decided = set()
    for job in list_jobs():
        for version in list_versions(job)[-3:]:
            truth = write_logs(job, tmp_path, version, "complete", 1)
            assert not {rank for ranks in truth.culprits for rank in ranks} & set(truth.innocent)
            if truth.decides:
                decided.add(truth.fault)
    assert len(decided) >= 3
    assert not decided & set(HEALTHY)


def test_nccl_lines_show_a_rank_that_calls_something_else(tmp_path: Path) -> None:
    jobs = (draw_job(seed, "different_collectives") for seed in range(60))
    job = next(job for job in jobs if job.mesh.kind == "ddp" and 3 <= job.mesh.world <= 8)
    truth = write_logs(job, tmp_path, "nccl-2.18", "complete", 1)
    lines = (tmp_path / truth.path).read_text().splitlines()
    calls = [line for line in lines if "opCount" in line]
    shape = r"node000:\d+:\d+ \[\d\] NCCL INFO \w+: opCount [0-9a-f]+ sendbuff \w+ recvbuff \w+ count \d+ "
    assert calls
    assert all(re.match(shape, line) for line in calls)
    assert truth.decides
    assert truth.culprits == (job.outcome.plan.culprits,)
