"""Reports for the tests of the diagnosis: findings and gaps by hand, the verdict by the product."""

from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.reports import memory_only, slower, straggler
from zprof.causes import load_causes
from zprof.diagnosis.claims import Unexplained
from zprof.diagnosis.verdict import Case, judge
from zprof.model.findings import Confidence, Evidence, Finding, Severity
from zprof.model.gaps import Gap, GapKind
from zprof.model.report import Difference, EqualWork, Report, WorkUnit

_NO_COUNTER = Gap(
    what="reserved memory", reason="no device counter covers this process", remedy="record on a GPU"
)
GAPS = (
    Gap(
        kind=GapKind.UNTESTED_RULE,
        causes=("low_bus_bandwidth", "sharding_spans_nodes"),
        what="rules low_bus_bandwidth, sharding_spans_nodes not tested",
        reason="no bandwidth to expect",
        remedy="say --expected-busbw GB_PER_S",
    ),
    replace(_NO_COUNTER, rank=0),
    replace(_NO_COUNTER, rank=1),
)


def found(
    cause: str, sentence: str, saving_ms: tuple[float, float], confidence: Confidence = Confidence.HIGH
) -> Finding:
    """A finding with more evidence than the diagnosis shows."""
    return Finding(
        id=load_causes()[cause].id,
        cause=cause,
        severity=Severity.HIGH,
        sentence=sentence,
        evidence=tuple(
            Evidence(key="some_key", what=f"fact {number} of {cause}", value=number * MS, unit="ns")
            for number in range(1, 7)
        ),
        saving_ns=(int(saving_ms[0] * MS), int(saving_ms[1] * MS)),
        confidence=confidence,
        fix=f"FSDP2:\n    fix_of_{cause}()",
        disprove="turn it off",
        doc=f"docs/findings/{load_causes()[cause].id}.md",
    )


def judged(report: Report) -> Report:
    """The report with the verdict on what is in it."""
    loss = Unexplained(rank=report.unclaimed_rank, terms=report.unclaimed)
    case = Case(
        run=report.run, time=report.time, comparison=report.comparison, findings=report.findings,
        gaps=report.gaps, memory=report.memory, causes=load_causes(), unexplained=loss, volume=report.volume,
    )  # fmt: skip
    return replace(report, verdict=judge(case))


LATE = found("no_prefetch", "gathers start when they are needed", (60, 130))
FULL = found("fp32_reduce", "gradients travel in 4 bytes, 2 are enough", (10, 20), Confidence.MEDIUM)
GUESS = found("straggler_rank", "rank 1 may be late", (0, 5), Confidence.LOW)


def against_baseline() -> Report:
    """Two findings and a guess; the first is the verdict's."""
    rest = {"exposed_transfer_ns": 31 * MS, "idle_ns": 0, "exposed_wait_ns": 2 * MS}
    return judged(
        replace(slower(), findings=(LATE, FULL, GUESS), gaps=GAPS, unclaimed=rest, unclaimed_rank=1)
    )


def larger_batch() -> Report:
    """The step is longer, and four times the tokens are in it; the link is another one."""
    report = against_baseline()
    assert report.comparison is not None
    assert report.comparison.step_time is not None
    times = report.comparison.step_time
    work = EqualWork(
        unit=WorkUnit.TOKENS, a_per_step=8192, b_per_step=4 * 8192, b_ns=times.b_ns // 4,
        ci95=(-137 * MS, -135 * MS),
    )  # fmt: skip
    comparison = replace(
        report.comparison,
        equal_work=work,
        differences=(
            Difference(key="backend", what="backend", a="gloo", b="nccl"),
            Difference(key="tokens_per_step", what="tokens a step", a="8192", b="32768"),
        ),
    )
    return judged(replace(report, comparison=comparison, findings=(), gaps=()))


def alone() -> Report:
    """Four ranks without a baseline: nothing is sure."""
    rest = {"exposed_wait_ns": 40 * MS, "exposed_transfer_ns": 1 * MS}
    return judged(replace(straggler(), findings=(GUESS,), gaps=(), unclaimed=rest, unclaimed_rank=3))


def untimed() -> Report:
    """Memory alone."""
    frees = replace(
        LATE, cause="logits_dominate", id="ZP204", saving_ns=(0, 0), saving_bytes=(1 << 30, 2 << 30)
    )
    return judged(replace(memory_only(), findings=(frees,), gaps=(), unclaimed={}))


DIAGNOSES = {
    "against_baseline": against_baseline,
    "larger_batch": larger_batch,
    "alone": alone,
    "untimed": untimed,
}
