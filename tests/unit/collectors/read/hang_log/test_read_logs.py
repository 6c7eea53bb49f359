"""Each line of a log is evidence about one rank, in any form and however it was carried."""

import io
import textwrap
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flight_dumps import EVIL
from tests.support.hang_lines import (
    COUNTERS,
    ENDING,
    HEADS,
    SIGNALS,
    STACK,
    write_counters,
    write_default,
    write_signal,
    write_timeout,
)
from zprof.base.errors import BadInput
from zprof.collectors.read.hang_log.reader import LogReader
from zprof.run.log_evidence import Basis, LogEvidence, Standing


def read(*texts: str | bytes, local_ranks: tuple[int | None, ...] = ()) -> LogEvidence:
    reader = LogReader()
    for number, text in enumerate(texts):
        content = text.encode() if isinstance(text, str) else text
        reader.read(io.BytesIO(content), (*local_ranks, *[None] * len(texts))[number])
    return reader.finish()


@pytest.mark.parametrize("form", COUNTERS)
def test_a_timeout_and_its_counters_are_of_one_rank_and_group(form: str) -> None:
    gather = {"kind": "_ALLGATHER_BASE", "inputs": 8, "outputs": 32}
    text = write_timeout(9, 88, inner=1, **gather) + write_counters(9, 88, 90, 87, inner=1, form=form)  # type: ignore[arg-type]
    evidence = read(text)
    (lines,) = evidence.lines
    group = "" if form == "2.3" else "37"  # its number is counted by each process
    assert (lines.rank, lines.group, lines.basis) == (9, group, Basis.TIMEOUT)
    assert lines.group_rank == (None if form == "2.3" else 1)
    assert (lines.enqueued, lines.completed) == (90, 87)
    assert lines.standing == Standing(
        sequence=88, kind="_all_gather_base", inputs=8, outputs=32, timeout_ms=600_000
    )
    assert lines.description == ("tp" if "tp" in COUNTERS[form] else "")
    assert evidence.sizes == ({group: 4} if group else {})
    assert evidence.unread == 0


@pytest.mark.parametrize("form", SIGNALS)
def test_an_answer_to_a_signal_counts_the_default_group(form: str) -> None:
    (lines,) = read(write_signal(5, 3, 211, 211, form=form)).lines
    assert (lines.rank, lines.group, lines.description) == (5, "0", "default_pg")
    assert (lines.enqueued, lines.completed, lines.signalled_by) == (211, 211, 3)
    assert (lines.basis, lines.standing) == (Basis.SIGNAL, None)


@pytest.mark.parametrize("head", HEADS)
def test_the_speaker_is_the_global_rank_if_the_line_has_it(head: str) -> None:
    (lines,) = read(write_timeout(9, 5, inner=1, head=head)).lines
    assert lines.rank == (1 if head == "2.1" else 9)
    assert lines.group == ""


def test_a_rank_of_an_unknown_group_is_no_rank_of_the_job() -> None:
    """Before a prefix was cut off, the line was of rank 9, the second one of its group."""
    whole, cut = write_timeout(9, 5, inner=1), write_timeout(8, 5, inner=0).partition("]:[")[2]
    evidence = read(whole + cut)
    assert [lines.rank for lines in evidence.lines] == [9]
    assert evidence.unread == 1
    assert [lines.rank for lines in read(write_timeout(1, 5) + cut).lines] == [0, 1]


def test_without_a_prefix_the_folder_of_the_launcher_names_the_rank() -> None:
    evidence = read(*[write_timeout(0, 5, head="2.1")] * 2, local_ranks=(3, 4))
    assert [lines.rank for lines in evidence.lines] == [3, 4]


def test_a_line_without_a_rank_is_of_the_only_rank_of_its_log() -> None:
    """A copy of its last words that C++ prints: without its rank, and the folder is the rank on its node."""
    words = (
        "  what():  [PG ID 2 PG GUID 37(tp) Rank 1] Process group watchdog thread terminated with exception: "
    )
    text = write_timeout(13, 5, inner=1) + words + write_timeout(13, 5, inner=1).partition("632] ")[2]
    assert {lines.rank for lines in read(text, local_ranks=(5,)).lines} == {13}


def test_the_watchdogs_last_words_name_group_and_operation_in_one_line() -> None:
    text = write_timeout(3, 9001, kind="_ALLGATHER_BASE", inputs=64, outputs=512)
    prefix = (
        "[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: "
    )
    evidence = read(text.replace("[Rank 3]", prefix + "[Rank 3]"))
    assert [(lines.rank, lines.group) for lines in evidence.lines] == [(3, "0")]
    assert evidence.sizes == {"0": 8}


JOB = "".join(write_default(rank, 640) for rank in range(4)) + write_signal(4, 0, 639, 639)


def begin_lines(start: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{start}{line}\n" for line in text.splitlines())


def wrap_within_words(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(line[at : at + 80].ljust(90) for line in lines for at in range(0, len(line), 80))


def wrap_at_blanks(text: str) -> str:
    return "\n".join(part.ljust(140) for line in text.splitlines() for part in textwrap.wrap(line, 131))


CARRIERS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "wrapped within words": wrap_within_words,
    "wrapped at blanks": wrap_at_blanks,
    "on one line": lambda text: text.replace("\n", " "),
    "glued": lambda text: text.replace("\n", ""),
    "Slurm": begin_lines("12: "),
    "Kubernetes": begin_lines("2026-03-02T10:11:12Z stderr F "),
    "Ray": begin_lines("\x1b[36m(Worker pid=12, ip=10.0.0.1)\x1b[0m "),
    "progress bar": begin_lines(" 40%|####      | 4/10\r"),
    "among other lines": lambda text: begin_lines("step 7 | loss 2.3\n")(text).replace("\n", "\nnan?\n"),
    "with NULs": lambda text: text.replace("Watchdog", "Watch\0dog"),
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_carried_the_text_changes_nothing(carrier: str) -> None:
    carried, plain = read(CARRIERS[carrier](JOB)), read(JOB)
    assert carried.lines == plain.lines
    assert carried.unread == 0
    assert [lines.rank for lines in plain.lines] == [0, 1, 2, 3, 4]


@given(st.integers(0, len(JOB)))
def test_a_cut_log_proves_nothing_else(end: int) -> None:
    """Each number that a cut log has is a number of the whole one."""
    whole = {(lines.rank, lines.group): lines for lines in read(JOB).lines}
    for lines in read(JOB[:end]).lines:
        full = whole[lines.rank, lines.group or "0"]
        assert lines.standing is None or lines.standing.sequence == 640
        assert lines.enqueued in (None, full.enqueued)
        assert lines.completed in (None, full.completed)


def test_frames_of_the_failed_operation_are_of_their_rank() -> None:
    evidence = read(write_timeout(4, 7) + HEADS["2.4"].format(rank=4) + STACK + write_timeout(5, 7))
    assert [(frame.file, frame.line) for frame in evidence.stacks[4]][-1] == ("/home/user/train.py", 77)
    assert 5 not in evidence.stacks


@pytest.mark.parametrize("prefix", ["", "trainer-0 | ", "2026-03-02T10:11:12Z "])
def test_the_end_of_a_rank_is_read_from_the_launchers_table(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in ENDING.format(rank=11, local=3, code=-9).splitlines())
    (ending,) = read(text).endings
    assert (ending.rank, ending.local_rank, ending.exit_code) == (11, 3, -9)


def test_calls_that_nccl_logs_are_numbered_in_base_16() -> None:
    line = (
        "h2:{pid}:{pid} [{dev}] NCCL INFO AllReduce: opCount 1a{last} sendbuff 0x7f0a recvbuff 0x7f0b "
        "count 4096 datatype 7 op 0 root 0 comm 0x55b{dev} [nranks=2] stream 0x55c0\n"
    )
    calls = [(9, 0, 3), (9, 0, 4), (8, 1, 3)]
    evidence = read("".join(line.format(pid=pid, dev=dev, last=last) for pid, dev, last in calls))
    assert [(each.rank, each.standing and each.standing.sequence) for each in evidence.lines] == [
        (0, 0x1A4),
        (1, 0x1A3),
    ]
    assert evidence.world_size == 2


def test_lines_in_no_known_form_are_counted() -> None:
    text = write_timeout(0, 5).replace("SeqNum=", "Seq=") + "[rank1]: Watchdog caught collective oper"
    evidence = read(text)
    assert (evidence.lines, evidence.unread) == ((), 2)


def test_names_in_a_log_are_data() -> None:
    evil = EVIL.encode("utf-8", "replace").translate(None, b"()[]\n").decode("utf-8", "replace")
    (lines,) = read((write_timeout(0, 5) + write_counters(0, 5, 5, 4)).replace("(tp)", f"({evil})")).lines
    assert lines.description == "".join(each for each in evil if ord(each) > 32 and ord(each) != 127)


TIMEOUT_LINE = write_timeout(0, 1).encode()
HOSTILE = {
    "one long line": b"[rank0]: [Rank 0] Watchdog caught " + b"x" * 5_000_000,
    "blanks": b"[PG ID 0 PG GUID 0(" + b" " * 2_000_000 + b"\n",
    "newlines": b"\n" * (64 << 20),
    "short lines": b"NCCL\n" * 1_000_000,
    "no line ends": b"[rank0]:" * 500_000,
    "brackets": b"[PG " * 1_000_000,
    "endless numbers": TIMEOUT_LINE.replace(b"SeqNum=1", b"SeqNum=" + b"9" * 300),
    "frames without end": f"{HEADS['2.4'].format(rank=0)}{STACK}".encode() + b"#1 f from a.py:1\n" * 200_000,
    "frames of no form": b"[rank0]: NCCL Stack trace of the failed collective:\n#0 " + b" from" * 200_000,
    "heads": b"a:1:1 [0] " * 400_000 + b"NCCL",
    "names": b"NCCL " + b"a.-" * 1_000_000,
    "binary": bytes(range(256)) * 20_000,
    "endings": b"rank:1(local_rank:1)" * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_in_bounded_memory(name: str) -> None:
    evidence = read(HOSTILE[name])
    assert not evidence.lines
    assert len(evidence.stacks.get(0, ())) <= 200


@pytest.mark.slow
def test_more_ranks_than_any_job_has_are_refused() -> None:
    line = (
        b"[rank%d]:[E709 17:05:38.1 ProcessGroupNCCL.cpp:1] " + TIMEOUT_LINE[TIMEOUT_LINE.index(b"[Rank") :]
    )
    with pytest.raises(BadInput, match="one job"):
        read(b"".join(line % rank for rank in range(100_002)))
