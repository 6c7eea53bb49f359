"""A run of which only the memory is known gets an answer about its peak; time comes first where known."""

from dataclasses import replace

import pytest

from tests.support.analyses import Scenario, analysis_of
from tests.support.peaks import MIB, gpu, memory_run, tenants, with_rank
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause
from zprof.model.memory import AllocatorCounters, Basis, Memory
from zprof.model.report import Report, VerdictStatus
from zprof.model.tenants import Tenant
from zprof.rules.diagnose import diagnose
from zprof.rules.verdict import judge_peak

LARGE_BUFFERS = tenants(buffers=80)


def sentence(analysis: RunAnalysis) -> tuple[VerdictStatus, str]:
    verdict = diagnose(analysis).verdict
    return verdict.status, verdict.sentence


def test_a_healthy_peak_is_ok() -> None:
    status, text = sentence(memory_run())
    assert status is VerdictStatus.OK
    assert text == (
        "OK peak 66.0 MiB on rank 0 (activations 30.3 %): none of the causes that were tested frees a tenth "
        "of it; no step was timed"
    )


def test_a_sure_finding_that_frees_a_tenth_is_a_risk() -> None:
    status, text = sentence(memory_run(LARGE_BUFFERS))
    assert status is VerdictStatus.RISK
    assert text.startswith(
        "RISK peak 130.0 MiB on rank 0 (communication buffers 61.5 %): communication buffers"
    )


def test_a_guess_is_no_risk() -> None:
    guessed = with_rank(memory_run(LARGE_BUFFERS), basis_bytes={Basis.RULE: 130 * MIB})
    assert diagnose(guessed).findings[0].cause is Cause.BUFFERS_DOMINATE
    status, text = sentence(guessed)
    assert status is VerdictStatus.OK
    assert "nothing sure frees a tenth of it; ZP201 below may" in text


@pytest.mark.parametrize(("freed_mib", "status"), [(6, VerdictStatus.OK), (7, VerdictStatus.RISK)])
def test_a_tenth_of_the_peak_is_the_boundary(freed_mib: int, status: VerdictStatus) -> None:
    """Of 66 MiB."""
    (finding,) = diagnose(memory_run(LARGE_BUFFERS)).findings
    freed = replace(finding, saving_bytes=(0, freed_mib * MIB))
    assert judge_peak(memory_run().memory, [freed])[0] is status


def test_untagged_bytes_are_not_ok() -> None:
    analysis = memory_run()
    unknown = with_rank(analysis, untagged_bytes=7 * MIB)
    status, text = sentence(unknown)
    assert status is VerdictStatus.INCONCLUSIVE
    assert "10.6 % of it has no known owner" in text
    assert sentence(with_rank(analysis, untagged_bytes=6 * MIB))[0] is VerdictStatus.OK


def test_missing_ranks_are_not_ok() -> None:
    analysis = memory_run()
    partly = replace(analysis, run=replace(analysis.run, ranks_loaded=(0, 1)))
    status, text = sentence(partly)
    assert status is VerdictStatus.INCONCLUSIVE
    assert "on 2 of 4 ranks" in text


def test_an_upper_bound_is_said() -> None:
    assert "peak at most 66.0 MiB" in sentence(with_rank(memory_run(), upper_bound=True))[1]


def test_retries_are_a_risk_though_nobody_knows_what_they_cost() -> None:
    run = gpu(reserved_bytes=70 * MIB, split_bytes=0)
    counter = AllocatorCounters(
        rank=0, device="cuda:0", peak_allocated_bytes=1, peak_reserved_bytes=1, retries=9, ooms=0
    )
    assert sentence(replace(run, memory=replace(run.memory, counters=(counter,))))[0] is VerdictStatus.RISK


def test_no_memory_and_no_time_is_inconclusive() -> None:
    nothing = replace(memory_run(), memory=Memory())
    assert sentence(nothing) == (VerdictStatus.INCONCLUSIVE, "INCONCLUSIVE no step of run was timed")


def timed(**held: float) -> Report:
    memory = memory_run(tenants(**held))
    base = analysis_of(Scenario(ranks=4))
    return diagnose(replace(base, memory=memory.memory, training=memory.training))


def test_time_comes_first_where_there_is_time() -> None:
    report = timed(buffers=80)
    assert [f.cause for f in report.findings] == [Cause.BUFFERS_DOMINATE]
    assert report.verdict.status is VerdictStatus.OK
    assert " a step" in report.verdict.sentence


def test_findings_about_time_come_before_those_about_memory() -> None:
    memory = memory_run(LARGE_BUFFERS)
    slow = analysis_of(Scenario(ranks=4, prefetch=False, bytes_per_s=180e6))
    causes = [
        f.cause for f in diagnose(replace(slow, memory=memory.memory, training=memory.training)).findings
    ]
    assert causes == [Cause.NO_PREFETCH, Cause.BUFFERS_DOMINATE]


def test_rules_without_the_same_input_are_one_gap() -> None:
    gaps = [gap.what for gap in diagnose(memory_run(device="cuda:0")).gaps]
    assert "rules fragmentation, outside_allocator, allocator_retries not tested" in gaps
    facts = replace(memory_run().training, stage=None)
    gaps = [gap.what for gap in diagnose(memory_run(LARGE_BUFFERS, facts=facts)).gaps]
    assert "rules buffers_dominate, replicated_state, wrong_stage not tested" in gaps


def test_a_cpu_run_has_no_gaps_of_a_gpu() -> None:
    gaps = " ".join(gap.what for gap in diagnose(memory_run()).gaps)
    assert not any(word in gaps for word in ("fragmentation", "outside_allocator", "allocator_retries"))


def test_tenants_are_named_as_words() -> None:
    held = {**tenants(), Tenant.OPTIMIZER_STATE: 60 * MIB}
    assert "(optimizer state " in sentence(memory_run(held))[1]


def test_on_a_tenth_of_the_peak() -> None:
    """Of 60 MiB."""
    (finding,) = diagnose(memory_run(LARGE_BUFFERS)).findings
    analysis = memory_run(tenants(activations=14))
    freed = replace(finding, saving_bytes=(0, 6 * MIB))
    assert judge_peak(analysis.memory, [freed])[0] is VerdictStatus.RISK
    unknown = with_rank(analysis, untagged_bytes=6 * MIB)
    assert judge_peak(unknown.memory, [])[0] is VerdictStatus.INCONCLUSIVE
