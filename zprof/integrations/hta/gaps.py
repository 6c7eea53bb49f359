"""HTA's failures as gaps: its own words, one line."""

from collections.abc import Sequence

from zprof.integrations.hta.answers import Answers
from zprof.model.gaps import Gap


def unanswered(rank: int, answers: Answers, questions: Sequence[str]) -> list[Gap]:
    """A gap for each way in which HTA failed on a rank."""
    failed: dict[str, list[str]] = {}
    for question in questions:
        if not answers.has(question):
            failed.setdefault(answers.error(question), []).append(question)
    return [
        Gap(
            what=f"HTA ({', '.join(asked)})",
            rank=rank,
            reason=f"HTA failed: {error}",
            remedy="zprof's own figures do not need it; HTA wants whole JSON files with work of a GPU",
        )
        for error, asked in failed.items()
    ]


def not_asked() -> Gap:
    """Of a run of which no trace is at hand."""
    return Gap(
        what="HTA",
        reason="it reads traces, and a run keeps none",
        remedy="zprof report TRACE --hta, with the trace or the folder of traces in place of the run",
    )
