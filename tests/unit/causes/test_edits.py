"""The step without a cause: which kernels and collectives of the measured step a fix changes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.diagnoses import Diagnosed, base, planted
from tests.support.rule_runs import claim
from zprof.analysis.analysis import RunAnalysis
from zprof.causes import comm_slows_compute, load_causes
from zprof.causes.cause import Cause, Sign
from zprof.diagnosis.find_causes import drop_explained, price_finding
from zprof.model.findings import Evidence, Finding
from zprof.step.play import PlayedStep
from zprof.step.tasks import NONE, Graph


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    return planted("fp32_reduce", base(0), tmp_path_factory.mktemp("job"), 0.5)


def remove(finding: Finding, analysis: RunAnalysis, graph: Graph) -> Sequence[Graph]:
    """Return the step without the cause of a finding."""
    edit = load_causes()[finding.cause].remove
    assert edit is not None
    return edit(analysis, graph, finding)


@pytest.mark.parametrize(
    ("cause", "copies"), [("fp32_reduce", {"chunk_cat"}), ("fp32_gather", {"split_with_sizes_copy"})]
)
def test_half_of_the_bytes_halves_only_their_own_copies(job: Diagnosed, cause: str, copies: set[str]) -> None:
    graph = PlayedStep(analysis=job.analysis).graph
    assert graph is not None
    for changed in remove(claim(cause), job.analysis, graph):
        for before, after in zip(graph.ranks, changed.ranks, strict=True):
            halved = after.work_ns < before.work_ns
            assert after.work_ns[halved] == pytest.approx(before.work_ns[halved] / 2)
            names = {name for name in np.array(before.tasks.kernel)[halved].tolist() if "nccl" not in name}
            assert {
                copy for copy in ("split_with_sizes_copy", "chunk_cat") if copy in " ".join(names)
            } == copies


def test_kernels_that_pad_become_plain_copies(tmp_path: Path) -> None:
    padded = planted("uneven_shapes", base(8), tmp_path)
    graph = PlayedStep(analysis=padded.analysis).graph
    assert graph is not None
    slower = Evidence(key="time_per_byte_ratio", what="", value=4.0, unit="factor")
    finding = replace(claim("uneven_shapes"), evidence=(slower,))
    (changed,) = remove(finding, padded.analysis, graph)
    for before, after in zip(graph.ranks, changed.ranks, strict=True):
        pads = before.tasks.kernel.match(lambda name: "chunk_cat" in name)
        assert pads.any()
        np.testing.assert_allclose(after.work_ns, np.where(pads, 0.25, 1.0) * before.work_ns)


def test_with_even_inputs_each_rank_computes_for_the_mean(tmp_path: Path) -> None:
    uneven = planted("straggler_rank", base(7, "gloo"), tmp_path)
    graph = PlayedStep(analysis=uneven.analysis).graph
    assert graph is not None
    (changed,) = remove(claim("uneven_shapes"), uneven.analysis, graph)
    before, after = (
        np.array([rank.work_ns[rank.collective == NONE].sum() for rank in each.ranks])
        for each in (graph, changed)
    )
    assert np.ptp(before) > 0.1 * before.mean()
    np.testing.assert_allclose(after, before.mean(), rtol=0.05)


@pytest.mark.parametrize("cause", ["allocator_retries", "rate_limited_prefetch", "units_too_small"])
def test_a_replay_without_an_edit_for_a_cause_leaves_the_finding_alone(job: Diagnosed, cause: str) -> None:
    """Nothing in this job allocates, waits for events, or is a part of a block."""
    replay = PlayedStep(analysis=job.analysis)
    assert replay.base_ns is not None
    finding = claim(cause, 0.1 * replay.step_ns, 0.2 * replay.step_ns)
    assert price_finding(replay, finding, load_causes()[cause]) == (finding, False)


def test_a_cause_without_an_edit_is_not_explained_by_another(job: Diagnosed) -> None:
    replay = PlayedStep(analysis=job.analysis)
    by = load_causes()["fp32_reduce"]
    causes = {
        "fp32_reduce": Cause(
            id="ZP1", name="fp32_reduce", meaning="", produces=(Sign.COPIES,), remove=by.remove
        ),
        "without_edit": Cause(id="ZP2", name="without_edit", meaning="", sign=Sign.COPIES),
    }
    findings = [
        replace(claim("fp32_reduce", 0.1 * replay.step_ns, 0.2 * replay.step_ns), cause=name)
        for name in causes
    ]
    assert drop_explained(replay, findings, causes) == findings


def test_the_cost_of_slowed_kernels_contains_what_the_evidence_states(job: Diagnosed) -> None:
    """One of the replayed steps undoes the factor of the rule, which may differ from the fitted one."""
    graph = PlayedStep(analysis=job.analysis).graph
    assert graph is not None
    stated = Evidence(key="slowdown_beside_collectives", what="", value=2.0, unit="ratio")
    finding = replace(claim("comm_slows_compute"), evidence=(stated,))
    changed = remove(finding, job.analysis, graph)
    before = graph.ranks[0].work_ns
    ratios = [np.min(each.ranks[0].work_ns[before > 0] / before[before > 0]) for each in changed]
    assert min(ratios) == pytest.approx(0.5, abs=0.01)


def test_a_slowdown_found_by_replay_states_what_was_measured(tmp_path: Path) -> None:
    """A price says what it rests on: the kernels' own pace, alone and beside collectives."""
    slowed = planted("comm_slows_compute", base(0), tmp_path)
    seen = comm_slows_compute.observe(PlayedStep(analysis=slowed.analysis))
    assert seen is not None
    facts = {each.key: each.value for each in seen.facts}
    beside_ns, factor = facts["compute_beside_collectives_per_step"], facts["slowdown_beside_collectives"]
    assert facts["lost_to_slowdown"] == pytest.approx(beside_ns * (1 - 1 / factor))
    assert facts["kernels_compared"] > 0


@pytest.mark.parametrize(("lost_ms", "hidden_ms"), [(3.0, []), (7.0, [3.0])])
def test_the_part_of_a_slowdown_that_its_price_excludes_is_stated(
    job: Diagnosed, lost_ms: float, hidden_ms: list[float]
) -> None:
    lost = Evidence(key="lost_to_slowdown", what="", value=lost_ms * MS, unit="ns")
    finding = replace(claim("comm_slows_compute", MS, 4 * MS), evidence=(lost,))
    stated = comm_slows_compute.state_hidden_slowdown(job.analysis, finding)
    hidden = [each.value for each in stated if each.key == "hidden_slowdown"]
    assert hidden == [each * MS for each in hidden_ms]
