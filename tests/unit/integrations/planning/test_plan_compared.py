"""A plan held against what a rank answered, and what is refused before a rank runs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from zprof.integrations.planning import tasks
from zprof.integrations.planning.child_process import Answers
from zprof.integrations.planning.fake_rank import engine_settings, gpt_config
from zprof.model.errors import BadInput
from zprof.model.job import Backend, Batch, Degrees, ElementBytes, Job, Residual, Shape
from zprof.model.plan import Plan, PlanRow, Scheme
from zprof.model.tenants import Tenant

SHAPE = Shape(layers=2, hidden=128, heads=2, vocabulary=100, context=16)
JOB = Job(parameters=1, shape=SHAPE, degrees=Degrees(dp=4), batch=Batch(samples=1, sequence=16))


def row(stage: int, tenants: Mapping[Tenant, int], peak: int | None) -> PlanRow:
    return PlanRow(
        scheme=list(Scheme)[stage], stage=stage, degrees=JOB.degrees, terms=(), tenants=tenants,
        state_bytes=0, least_bytes=0, peak_bytes=peak, peak_at="", fits=None, largest_parameters=None,
    )  # fmt: skip


def planned(*rows: PlanRow, job: Job = JOB) -> Plan:
    return Plan(zprof_version="0", job=job, rows=rows, assumptions={})


def answer(stage: int, **tenants: int) -> dict[str, Any]:
    return {"stage": stage, "peak_bytes": sum(tenants.values()), "place": "there", "tenants": tenants}


def answered(monkeypatch: pytest.MonkeyPatch, *lines: dict[str, Any], ended: str = "") -> None:
    monkeypatch.setattr(tasks, "ask", lambda task, limits: Answers(lines=lines, ended=ended))


def test_a_plan_that_is_wrong_is_seen_in_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, answer(3, parameters=100, activations=300))
    made = planned(row(3, {Tenant.PARAMETERS: 150, Tenant.ACTIVATIONS: 300, Tenant.GRADIENTS: 7}, 457))
    (stage,) = tasks.verify_plan(made).stages
    ratios = {entry.tenant: entry.difference_ratio for entry in stage.tenants}
    assert ratios == {Tenant.PARAMETERS: 0.5, Tenant.GRADIENTS: None, Tenant.ACTIVATIONS: 0.0}
    assert stage.difference_ratio == 457 / 400 - 1
    assert (stage.verified_peak_bytes, stage.peak_at) == (400, "there")


def test_what_the_plan_does_not_know_has_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, answer(1, parameters=100, temporary_buffers=5))
    (stage,) = tasks.verify_plan(planned(row(1, {Tenant.PARAMETERS: 100}, None))).stages
    last = stage.tenants[-1]
    assert (last.planned_bytes, last.verified_bytes, last.difference_ratio) == (None, 5, None)
    assert stage.difference_ratio is None


def test_a_stage_that_did_not_run_is_a_gap_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, answer(0, parameters=1), {"stage": 2, "error": "RuntimeError: no"}, ended="killed")
    found = tasks.verify_plan(planned(row(0, {}, 1), row(2, {}, 1), row(3, {}, 1)))
    assert [stage.stage for stage in found.stages] == [0]
    reasons = {gap.what: gap.reason for gap in found.gaps}
    assert reasons["stage 2 was not verified"] == "RuntimeError: no"
    assert reasons["stage 3 was not verified"] == "killed"


def test_a_rank_that_ran_no_stage_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, {"stage": 0, "error": "RuntimeError: no"})
    with pytest.raises(BadInput, match="the rank could not run: RuntimeError: no"):
        tasks.verify_plan(planned(row(0, {}, 1)))


@pytest.mark.parametrize(
    ("job", "what"),
    [
        (replace(JOB, backend=Backend.GLOO), "the copies that gloo makes"),
        (replace(JOB, residual=Residual(checkpointing=True, offload=True)), "checkpoints in host memory"),
    ],
)
def test_what_such_a_rank_cannot_show_is_a_gap(monkeypatch: pytest.MonkeyPatch, job: Job, what: str) -> None:
    answered(monkeypatch, answer(0, parameters=1))
    found = tasks.verify_plan(planned(row(0, {}, 1), job=job))
    assert any(gap.what.startswith(what) for gap in found.gaps)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (replace(JOB, shape=None), "only a number of parameters is known"),
        (replace(JOB, batch=Batch()), "needs a batch"),
        (replace(JOB, degrees=Degrees(dp=2, pp=3)), "3 stages of a pipeline"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_child_starts(job: Job, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        tasks.verify_plan(planned(row(0, {}, 1), job=job))
    assert caught.value.hint


def test_a_plan_without_a_stage_is_refused() -> None:
    with pytest.raises(BadInput, match="stages 0 to 3"):
        tasks.verify_plan(planned())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimizer_state": 4}, "runs AdamW with 12 bytes"),
        ({"parameter": 1}, "parameters of 1"),
        ({"gradient": 4}, "gradients of 4"),
        ({"gathered": 4}, "gathers of 4"),
        ({"reduced": 1}, "reductions of 1"),
    ],
)
def test_a_precision_that_the_engine_lacks_is_refused(changes: dict[str, int], says: str) -> None:
    job = replace(JOB, element_bytes=replace(ElementBytes(), **changes))
    with pytest.raises(BadInput, match=says):
        engine_settings(job, 1)


@pytest.mark.parametrize("shape", [None, replace(SHAPE, vocabulary=0), replace(SHAPE, heads=3)])
def test_a_model_that_cannot_be_built_is_refused(shape: Shape | None) -> None:
    with pytest.raises(BadInput, match="--verify"):
        gpt_config(replace(JOB, shape=shape))
