"""Run HTA on traces, each in a child process with a private folder and limits by file size.

HTA relies on the file suffix, so it gets a link whose suffix matches the content. The child prints nothing
and writes one JSON line per answer to a file in its folder; answers written before a kill are used.
"""

import json
import logging
import os
import stat
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import msgspec
from msgspec import to_builtins

from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.process.sandbox import Limits, Sandbox, apply_limits, make_program, read_lines

PROGRAM = make_program(__name__)
_ANSWERS = "answers.jsonl"
_MAX_ERROR_LENGTH = 200
_MAX_ANSWER_BYTES = 8 << 20
_MAX_CHILDREN = 4
_POLL_S = 0.02
_MEBIBYTE = 1 << 20
#: HTA keeps a trace as Python objects and as a table: about 80 bytes per .json.gz byte.
_MEMORY_PER_FILE_BYTE = 250
_MIN_MEMORY_BYTES = 2 << 30
_OUTPUT_BYTES = 64 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: Categories of device work; HTA itself counts every row on a stream as work.
KERNELS = frozenset({"kernel", "Kernel"})
COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
WORK = KERNELS | COPIES
_MAX_TEXT_LENGTH = 400
_Value = TypeVar("_Value")


class NameRow(msgspec.Struct, frozen=True, kw_only=True):
    """HTA's classification of device rows with the same name and category."""

    name: str
    category: str
    kind: str
    count: int
    total_ns: int


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Number of device rows in the file and in HTA, the resolution of HTA times, and the names."""

    device: int
    kept: int
    resolution_ns: float
    names: list[NameRow]


class HtaOverlap(msgspec.Struct, frozen=True, kw_only=True):
    """HTA's overlap of communication with compute; None without communication."""

    percent: float | None


class Temporal(msgspec.Struct, frozen=True, kw_only=True):
    """HTA's temporal breakdown."""

    span_ns: int
    idle_ns: int
    compute_ns: int
    non_compute_ns: int


class Kinds(msgspec.Struct, frozen=True, kw_only=True):
    """Total time, without overlap, of rows classified by HTA as communication and as memory."""

    communication_ns: int
    memory_ns: int


class HtaWork(msgspec.Struct, frozen=True, kw_only=True):
    """HTA's figures computed from rows of device work only."""

    overlap: HtaOverlap
    temporal: Temporal
    kinds: Kinds


class IdleRow(msgspec.Struct, frozen=True, kw_only=True):
    """HTA's idle time breakdown of one stream."""

    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


class Critical(msgspec.Struct, frozen=True, kw_only=True):
    """HTA's critical path: its length, and the share of each bounding category."""

    steps: int
    steps_seen: int
    length_ns: int
    shares: dict[str, float]


class _AnswerLine(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    value: msgspec.Raw = msgspec.Raw(b"")
    error: str = ""


class HtaAnswers:
    """Answers of one child; ``error`` returns the reason for a missing answer."""

    def __init__(self, lines: Mapping[str, _AnswerLine], failure: str) -> None:
        self._lines, self._failure = lines, failure

    def get(self, what: str, kind: type[_Value]) -> _Value | None:
        """Return the answer to one question; None if missing or invalid."""
        line = self._lines.get(what)
        if line is None or line.error:
            return None
        try:
            return msgspec.json.decode(line.value, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def has(self, what: str) -> bool:
        """Return True if a question has a valid answer."""
        return self.get(what, ANSWER_TYPES[what]) is not None

    def error(self, what: str) -> str:
        """Explain why a question has no answer."""
        for name in ("load", what):
            if (line := self._lines.get(name)) is not None and line.error:
                return line.error[:_MAX_TEXT_LENGTH]
        return self._failure or "its answer is not readable"

    @property
    def version(self) -> str | None:
        """HTA's version; None if HTA could not be loaded."""
        return self.get("version", str)


def ask_all(
    files: Mapping[int, Path], questions: Sequence[str], wall_s: float | None = None, program: str = PROGRAM
) -> dict[int, HtaAnswers]:
    """Return HTA's answers about each rank's trace; child failures are part of the answers.

    ``wall_s``: time limit per child, by default from the file's size. ``program``: the child's code.
    """
    answers: dict[int, HtaAnswers] = {}
    pending: deque[tuple[int, Path, str, int]] = deque()
    for rank, path in files.items():
        source = _find_source(path)
        if isinstance(source, str):
            answers[rank] = make_refused_answers(source)
        else:
            pending.append((rank, path, *source))
    children = max(1, min(_MAX_CHILDREN, os.cpu_count() or 1, len(pending)))
    with ExitStack() as stack:
        running: dict[int, tuple[Sandbox, Path]] = {}
        while pending or running:
            while pending and len(running) < children:
                rank, path, suffix, size_bytes = pending.popleft()
                limits = choose_limits(size_bytes, wall_s, children)
                job = {"rank": rank, "questions": [*questions], "limits": to_builtins(limits)}
                running[rank] = stack.enter_context(_start_child(path, suffix, job, limits, program))
            for rank in [rank for rank, (child, _) in running.items() if child.is_finished()]:
                child, folder = running.pop(rank)
                failure = child.end()  # its answers so far count
                lines = read_lines(folder / _ANSWERS, _MAX_ANSWER_BYTES)
                answers[rank] = read_answers(lines, failure.message if failure else "")
            time.sleep(_POLL_S)
    return answers


@contextmanager
def _start_child(
    trace: Path, suffix: str, job: dict[str, Any], limits: Limits, program: str
) -> Iterator[tuple[Sandbox, Path]]:
    """Yield a child for one job, and its folder, where the trace has this suffix."""
    with tempfile.TemporaryDirectory(prefix="zprof-hta-") as name:
        folder = Path(name)
        link = folder / f"trace{suffix}"
        link.symlink_to(trace.absolute())
        arguments = [json.dumps({**job, "path": str(link)})]
        # Disable HTA's rounding, threads and plots, and hide the user's home folder.
        home = {"HOME": str(folder), "MPLCONFIGDIR": str(folder), "MPLBACKEND": "Agg"}
        environment = {"HTA_DISABLE_NS_ROUNDING": "1", "NUMEXPR_NUM_THREADS": "1", **home}
        with Sandbox(program, arguments, limits, folder=folder, environment=environment) as child:
            yield child, folder


def choose_limits(file_bytes: int, wall_s: float | None = None, children: int = 1) -> Limits:
    """Return the limits for a file of this size; ``wall_s``: the user's limit, if any.

    The machine's memory is divided among ``children`` concurrent processes.
    """
    cpu_s = 120 + 30 * file_bytes // _MEBIBYTE if wall_s is None else round(wall_s) + 1
    memory_bytes = max(_MIN_MEMORY_BYTES, _MEMORY_PER_FILE_BYTE * file_bytes)
    return Limits(
        memory_bytes=min(memory_bytes, _max_memory_bytes() // children),
        cpu_s=cpu_s,
        wall_s=wall_s or 2.0 * cpu_s,
        output_bytes=_OUTPUT_BYTES,
    )


def _max_memory_bytes() -> int:
    """Return three quarters of the machine's memory."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        total = int(lines[0].split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 16 << 30
    return total * 3 // 4


def format_source_name(answers: Iterable[HtaAnswers]) -> str:
    """Format HTA's name with the version that answered."""
    versions = [entry.version for entry in answers if entry.version]
    return f"HTA {versions[0]}" if versions else "HTA"


def _find_source(path: Path) -> tuple[str, int] | str:
    """Return the suffix that HTA expects for a file and the size in bytes, or why HTA cannot read it."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            return "not a regular file"
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        return f"the file cannot be read ({error.strerror})"
    if magic == _ZSTD:
        return "HTA reads .json and .json.gz, but this file is compressed with zstd"
    suffix = ".json.gz" if magic.startswith(_GZIP) else ".json"
    return suffix, state.st_size


#: Answer type of each question.
ANSWER_TYPES: Mapping[str, Any] = {
    "rows": Rows,
    "overlap": HtaOverlap,
    "temporal": Temporal,
    "kinds": Kinds,
    "work": HtaWork,
    "idle": list[IdleRow],
    "critical": Critical,
}


def read_answers(lines: Sequence[bytes], failure: str = "") -> HtaAnswers:
    """Parse the lines of a child; ``failure``: how it failed, empty for a normal exit."""
    answers: dict[str, _AnswerLine] = {}
    for line in lines:
        try:
            entry = msgspec.json.decode(line, type=_AnswerLine)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        answers[entry.what] = entry
    return HtaAnswers(answers, failure)


def make_refused_answers(reason: str) -> HtaAnswers:
    """Return the answers of a child that was not started."""
    return HtaAnswers({}, reason)


def find_unanswered(rank: int, answers: HtaAnswers, questions: Sequence[str]) -> list[Gap]:
    """Return one gap per distinct failure of HTA on a rank."""
    failed: dict[str, list[str]] = {}
    for question in questions:
        if not answers.has(question):
            failed.setdefault(answers.error(question), []).append(question)
    return [
        make_gap("hta_failed", rank=rank, questions=failed_questions, error=error)
        for error, failed_questions in failed.items()
    ]


def start(arguments: list[str]) -> None:
    """Run the child and exit without tearing down its objects."""
    job = json.loads(arguments[0])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with open(_ANSWERS, "w", encoding="ascii") as out:
        _answer_all(job, out)
    os._exit(0)


def _answer_all(job: dict[str, Any], out: TextIO) -> None:
    try:
        from zprof.integrations.hta import questions

        apply_limits(Limits(**job["limits"]))
    except Exception as error:
        _write_answer(out, "load", _describe_error(error))
        return
    _write_answer(out, "version", {"value": questions.version()})
    loaded = _ask(lambda: questions.load(job["path"], job["rank"]))
    if "error" in loaded:
        _write_answer(out, "load", loaded)
        return
    trace = loaded["value"]
    for name in job["questions"]:
        question = questions.QUESTIONS[name]
        _write_answer(out, name, _ask(lambda question=question: question(trace)))  # type: ignore[misc]


def _ask(question: Callable[[], Any]) -> dict[str, Any]:
    """Return the answer or the error; HTA may fail in any way, including recursion and lack of memory."""
    try:
        return {"value": question()}
    except Exception as error:
        return _describe_error(error)


def _describe_error(error: BaseException) -> dict[str, str]:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return {"error": text[:_MAX_ERROR_LENGTH]}


def _write_answer(out: TextIO, what: str, answer: dict[str, Any]) -> None:
    out.write(json.dumps({"what": what, **answer}, allow_nan=False) + "\n")
    out.flush()
