"""Validate the answers of HTA's child process (lines of JSON), and report its failures as gaps."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

#: Categories of device work; HTA itself counts every row on a stream as work.
KERNELS = frozenset({"kernel", "Kernel"})
COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
WORK = KERNELS | COPIES
_MAX_TEXT_LENGTH = 400
_Value = TypeVar("_Value")


class NameRow(msgspec.Struct, frozen=True, kw_only=True):
    """HTA's classification of the device rows with one name and category."""

    name: str
    category: str
    kind: str
    count: int
    total_ns: int


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Number of device rows in the file and in HTA, the resolution of its times, and the names."""

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
    """Total time, without overlap, of rows that HTA classifies as communication and as memory."""

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


class _AnswerLine(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    value: msgspec.Raw = msgspec.Raw(b"")
    error: str = ""


class HtaAnswers:
    """Answers of one child; ``error`` returns the reason for a missing one."""

    def __init__(self, lines: Mapping[str, _AnswerLine], failure: str) -> None:
        self._lines, self._failure = lines, failure

    def get(self, what: str, kind: type[_Value]) -> _Value | None:
        """Return the answer to one question; None if it is missing or invalid."""
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
        """HTA's version; None if it could not be loaded."""
        return self.get("version", str)


def read_answers(lines: Sequence[bytes], failure: str = "") -> HtaAnswers:
    """Parse the lines of a child; ``failure`` tells how it failed, empty for a normal exit."""
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
