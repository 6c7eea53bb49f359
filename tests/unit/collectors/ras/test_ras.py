"""Answers of NCCL's RAS: the rank that holds up the others is named, from text and JSON, and no other."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from zprof.analysis.hang.judge_logs import judge_logs
from zprof.base.errors import BadInput
from zprof.collectors.read.ras.evidence import add_reports
from zprof.collectors.read.ras.text import read_text
from zprof.model.hang import Hang, HangClass, HangStatus
from zprof.run.log_evidence import LogEvidence
from zprof.simulator.ras import HANGS, StuckJob, play_job, write_answers, write_json, write_text

FORMS = ("json", "text")
EARLIER, LATER = "2026-05-05 06:16:47", "2026-05-05 06:18:47"


def judge(folder: Path, forms: str | tuple[str, str], *jobs: StuckJob) -> Hang:
    """Return what one answer about each of the jobs, in this order, shows."""
    paths = []
    for number, job in enumerate(jobs):
        communicators = play_job(job)
        form = forms if isinstance(forms, str) else forms[number]
        paths.append(folder / f"{number}.{form}")
        time = (EARLIER, LATER)[number]
        text = write_json(job, communicators, time) if form == "json" else write_text(job, communicators)
        paths[-1].write_text(text)
    return judge_logs(add_reports(LogEvidence(files=0), paths))


def draw_job(seed: int, *, is_gone: bool = False) -> tuple[StuckJob, int]:
    rng = random.Random(seed)
    tensor, ranks = rng.choice([(1, 8), (1, 24), (2, 16), (4, 32), (8, 64)])
    rank = rng.randrange(ranks)
    stops = {rank: rng.randint(3, 50)}
    return StuckJob(ranks, tensor, stops=stops, gone=frozenset({rank} if is_gone else ())), rank


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(12))
def test_the_rank_that_stands_is_named(seed: int, form: str, tmp_path: Path) -> None:
    job, rank = draw_job(seed)
    hang = judge(tmp_path, form, job, job)
    assert (hang.status, hang.kind) == (HangStatus.STUCK, HangClass.HOST_STUCK)
    (culprit,) = hang.culprits
    assert culprit.rank == rank
    assert culprit.process is not None
    assert (culprit.process.number, culprit.process.host) == (4000 + rank, f"10.0.0.{1 + rank // 8}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(20, 26))
def test_a_process_that_does_not_answer_is_the_cause(seed: int, form: str, tmp_path: Path) -> None:
    job, rank = draw_job(seed, is_gone=True)
    hang = judge(tmp_path, form, job)
    assert (hang.status, hang.kind) == (HangStatus.STUCK, HangClass.RANK_MISSING)
    assert [(each.rank, each.is_unreachable) for each in hang.culprits] == [(rank, True)]


@pytest.mark.parametrize("form", FORMS)
def test_one_answer_accuses_nobody(form: str, tmp_path: Path) -> None:
    job, _ = draw_job(3)
    assert judge(tmp_path, form, job).status is HangStatus.UNKNOWN
    assert judge(tmp_path, form, StuckJob(8)).status is HangStatus.UNKNOWN


@pytest.mark.parametrize("form", FORMS)
def test_a_job_that_goes_on_is_not_stuck(form: str, tmp_path: Path) -> None:
    first, then = (StuckJob(16, 2, stops={5: place}) for place in (20, 33))
    assert judge(tmp_path, form, first, then).status is HangStatus.RUNNING


@pytest.mark.parametrize("forms", [("json", "text"), ("text", "json")])
@pytest.mark.parametrize("seed", range(40, 44))
def test_text_and_json_of_one_job_are_compared(seed: int, forms: tuple[str, str], tmp_path: Path) -> None:
    job, rank = draw_job(seed)
    hang = judge(tmp_path, forms, job, job)
    assert (hang.status, [each.rank for each in hang.culprits]) == (HangStatus.STUCK, [rank])
    moved = replace(job, stops={rank: job.stops[rank] + 7})
    assert judge(tmp_path, forms, job, moved).status is HangStatus.RUNNING


@pytest.mark.parametrize("form", FORMS)
def test_a_job_that_differs_in_one_answer_only_goes_on(form: str, tmp_path: Path) -> None:
    """The text has no counts of a job whose ranks are level."""
    level, uneven = StuckJob(16, 2), StuckJob(16, 2, stops={5: 20})
    assert judge(tmp_path, form, level, uneven).status is HangStatus.RUNNING
    assert judge(tmp_path, form, uneven, level).status is HangStatus.RUNNING


@pytest.mark.parametrize("seed", range(8))
def test_a_cut_text_does_not_show_a_running_job(seed: int, tmp_path: Path) -> None:
    """The last communicators are missing: they may be behind."""
    job, _ = draw_job(seed)
    text = write_text(job, play_job(job))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.write_text(text)
    cut.write_text(text[: random.Random(seed).randint(0, text.rindex("\n#"))])
    for paths in ([whole, cut], [cut, whole]):
        hang = judge_logs(add_reports(LogEvidence(files=0), paths))
        assert hang.status is not HangStatus.RUNNING


@pytest.mark.parametrize("cause", ["none", *HANGS])
def test_the_planted_cause_is_in_the_truth(cause: str, tmp_path: Path) -> None:
    paths = write_answers(tmp_path, 16, 4, cause, seed=11)
    truth = json.loads((tmp_path / "truth.json").read_text())
    hang = judge_logs(add_reports(LogEvidence(files=0), paths))
    assert [culprit.rank for culprit in hang.culprits] == ([] if cause == "none" else [truth["rank"]])
    assert truth["cause"] == cause


def test_the_text_of_older_versions() -> None:
    """NCCL 2.24 counts all kinds together, and lists missing ranks on one line."""
    (report,) = read_text(
        """
        Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
            #  in group  per comm  per node  per comm  in group
            0         1         1         4         4         4   RUNNING  INCOMPLETE,MISMATCH
        rank0: #0-0 (27a079b828ff1a75) INCOMPLETE
          Missing communicator data from 1 rank
          The missing rank: 3
        #0-0 (27a079b828ff1a75) MISMATCH
          Communicator ranks have different collective operation counts
          2 ranks have launched up to operation 6650
          Rank 1 has launched up to operation 6649 -- GPU 1 managed by process 12 on node 172.16.64.210
        """.splitlines()
    )
    (communicator,) = report.communicators
    assert [(each.rank, each.is_missing, dict(each.counts)) for each in communicator.ranks] == [
        (0, False, {"": 6650}), (1, False, {"": 6649}), (2, False, {"": 6650}), (3, True, {}),
    ]  # fmt: skip


def test_a_rank_of_unknown_count_is_neither_behind_nor_ahead(tmp_path: Path) -> None:
    """Of 30 ranks on two levels the text does not tell which is on which; of one kind it tells all."""
    path = tmp_path / "answer.txt"
    path.write_text(
        """
Job summary
  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32
Communicators... (0.00s)
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH
#0-0 (a100000000000000) MISMATCH
  Communicator ranks have different AllGather operation counts
  20 ranks have launched up to operation 44
  10 ranks have launched up to operation 43
  2 ranks have launched up to operation 41
  Rank 3 -- GPU 3 managed by process 4003 on node 10.0.0.1
  Rank 7 -- GPU 7 managed by process 4007 on node 10.0.0.1

  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 5
  Rank 7 has launched up to operation 4 -- GPU 7 managed by process 4007 on node 10.0.0.1
"""
    )
    hang = judge_logs(add_reports(LogEvidence(files=0), [path, path]))
    assert hang.kind is HangClass.HOST_STUCK
    assert [culprit.rank for culprit in hang.culprits] == [7]


def test_huge_communicators_are_refused(tmp_path: Path) -> None:
    """A few megabytes of text would else name 65,000 communicators of a million ranks."""
    head = "    0       999         4         8   1000000        32   RUNNING  MISMATCH\n"
    section = "#0-{0} ({0:016x}) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    blocks = "  999999 ranks have launched up to operation 5\n"
    (tmp_path / "answer.txt").write_text(head + "".join(section.format(at) + blocks for at in range(9)))
    with pytest.raises(BadInput, match="more communicators"):
        add_reports(LogEvidence(files=0), [tmp_path / "answer.txt"])


def test_answers_about_different_jobs_are_refused(tmp_path: Path) -> None:
    job = StuckJob(4)
    for name, text in (("a", write_json(job, play_job(job))), ("b", write_json(job, play_job(job)))):
        (tmp_path / name).write_text(text.replace("a1", "a2") if name == "b" else text)
    with pytest.raises(BadInput, match="in common"):
        add_reports(LogEvidence(files=0), [tmp_path / "a", tmp_path / "b"])


def corrupt(number: int) -> bytes:
    """Return a damaged or hostile answer."""
    job = StuckJob(8, 2, stops={3: 9})
    communicators = play_job(job)
    text, tree = write_text(job, communicators), json.loads(write_json(job, communicators))
    rank = tree["communicators"][0]["ranks"][0]
    match number:
        case 0:
            return json.dumps(tree).encode()[:-90]
        case 1:
            rank["rank"] = -5
        case 2:
            rank["collective_counts"]["AllReduce"] = 1 << 70
        case 3:
            rank["rank"] = 1 << 40
        case 4:
            tree["communicators"] = {"0": tree["communicators"]}
        case 5:
            tree["communicators"][0]["size"] = "many"
        case 6:
            rank["host"] = "h" * 100_000
        case 7:
            return (
                b'{"nccl_version": "2.30.7",\n"cuda_runtime_version": 1, "communicators": ' + b"[" * 100_000
            )
        case 8:
            rank["pid"] = float("nan")
        case _:
            return text.encode().replace(b"8", b"99999999999999999999")
    return json.dumps(tree, indent=2).encode()


@pytest.mark.parametrize("number", range(9))
def test_damaged_json_ends_in_one_line(number: int, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_bytes(corrupt(number))
    with pytest.raises(BadInput) as caught:
        add_reports(LogEvidence(files=0), [path])
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("seed", range(8))
def test_damaged_text_accuses_no_other_rank(seed: int, tmp_path: Path) -> None:
    """Lines are missing, cut or doubled: what is left may say less, not something else."""
    job, rank = draw_job(4)
    rng, path = random.Random(seed), tmp_path / "answer.txt"
    lines = []
    for line in write_text(job, play_job(job)).splitlines():
        damage = rng.random()
        if damage < 0.1:
            continue
        lines.append(line[: rng.randint(0, len(line))] if damage < 0.2 else line)
        if damage > 0.9:
            lines.append(line)
    path.write_text("\n".join([*lines, "\x1b]0;title\x07 [link=file:///etc]Rank 9 has"]))
    hang = judge_logs(add_reports(LogEvidence(files=0), [path, path]))
    assert {each.rank for each in hang.culprits} <= {rank}
