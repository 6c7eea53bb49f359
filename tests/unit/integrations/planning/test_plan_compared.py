"""A plan beside the answers of a rank, and what is refused before a rank runs."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.integrations.planning import tasks
from zprof.integrations.planning.verify_task import make_engine_settings, make_gpt_config
from zprof.model.job import Backend, Batch, Degrees, ElementBytes, Job, Residual, Shape
from zprof.model.plan import Plan, PlanRow, Scheme
from zprof.model.tenants import Tenant

SHAPE = Shape(layers=2, hidden=128, heads=2, vocabulary=100, context=16)
JOB = Job(parameters=1, shape=SHAPE, degrees=Degrees(dp=4), batch=Batch(samples=1, sequence=16))


def row(stage: int, tenants: Mapping[Tenant, int], peak: int | None = 1) -> PlanRow:
    return PlanRow(
        scheme=list(Scheme)[stage], stage=stage, degrees=JOB.degrees, terms=(), tenants=tenants,
        state_bytes=0, least_bytes=0, peak_bytes=peak, peak_at="", fits=None, largest_parameters=None,
    )  # fmt: skip


def planned(*rows: PlanRow, job: Job = JOB) -> Plan:
    return Plan(zprof_version="0", job=job, rows=rows, assumptions={})


def ran(stage: int, **tenants: int) -> dict[str, Any]:
    return {"stage": stage, "peak_bytes": sum(tenants.values()), "peak_at": "there", "tenants": tenants}


def answer(monkeypatch: pytest.MonkeyPatch, *lines: dict[str, Any], ended: str = "") -> None:
    monkeypatch.setattr(tasks, "run_task", lambda task, limits: (lines, ended))


def test_differences_are_by_tenant_and_unknown_where_the_plan_is(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, ran(1, parameters=100, temporary_buffers=5), ran(3, parameters=100, activations=300))
    wrong = {Tenant.PARAMETERS: 150, Tenant.ACTIVATIONS: 300, Tenant.GRADIENTS: 7}
    unknown, stage = tasks.verify_plan(
        planned(row(1, {Tenant.PARAMETERS: 100}, None), row(3, wrong, 457))
    ).stages
    ratios = {entry.tenant: entry.difference_ratio for entry in stage.tenants}
    assert ratios == {Tenant.PARAMETERS: 0.5, Tenant.GRADIENTS: None, Tenant.ACTIVATIONS: 0.0}
    assert stage.difference_ratio == 457 / 400 - 1
    assert (stage.verified_peak_bytes, stage.peak_at) == (400, "there")
    last = unknown.tenants[-1]
    assert (last.planned_bytes, last.verified_bytes, last.difference_ratio) == (None, 5, None)
    assert unknown.difference_ratio is None


def test_a_stage_that_did_not_run_is_a_gap_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, ran(0, parameters=1), {"stage": 2, "error": "RuntimeError: no"}, ended="killed")
    found = tasks.verify_plan(planned(row(0, {}), row(2, {}), row(3, {})))
    assert [stage.stage for stage in found.stages] == [0]
    assert [gap.reason for gap in found.gaps[:2]] == ["RuntimeError: no", "killed"]


def test_a_rank_that_ran_no_stage_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, {"stage": 0, "error": "RuntimeError: no"})
    with pytest.raises(BadInput, match="RuntimeError: no"):
        tasks.verify_plan(planned(row(0, {})))


@pytest.mark.parametrize(
    ("job", "model", "gaps"),
    [
        (JOB, None, 1),
        (JOB, "its:model", 2),
        (replace(JOB, backend=Backend.GLOO), None, 2),
        (replace(JOB, residual=Residual(checkpointing=True, offload=True)), None, 2),
    ],
)
def test_bytes_that_such_a_rank_cannot_show_are_gaps(
    monkeypatch: pytest.MonkeyPatch, job: Job, model: str | None, gaps: int
) -> None:
    answer(monkeypatch, ran(0, parameters=1))
    found = tasks.verify_plan(planned(row(0, {}), job=job), model)
    assert len({gap.what for gap in found.gaps}) == gaps


@pytest.mark.parametrize(
    ("job", "stages", "word"),
    [
        (replace(JOB, shape=None), 1, "--layers"),
        (replace(JOB, batch=Batch()), 1, "--micro-batch"),
        (replace(JOB, degrees=Degrees(dp=2, pp=3)), 1, "--pp"),
        (JOB, 0, "--stage"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_child_starts(job: Job, stages: int, word: str) -> None:
    with pytest.raises(BadInput) as caught:
        tasks.verify_plan(planned(*[row(0, {})] * stages, job=job))
    assert word in caught.value.hint


@pytest.mark.parametrize(
    "changes", [{"optimizer_state": 4}, {"parameter": 1}, {"gradient": 4}, {"gathered": 4}, {"reduced": 1}]
)
def test_a_precision_that_the_engine_lacks_is_refused(changes: dict[str, int]) -> None:
    make_engine_settings(JOB, 1)
    with pytest.raises(BadInput, match=str(next(iter(changes.values())))):
        make_engine_settings(replace(JOB, element_bytes=replace(ElementBytes(), **changes)), 1)


@pytest.mark.parametrize("shape", [None, replace(SHAPE, vocabulary=0), replace(SHAPE, heads=3)])
def test_a_model_that_cannot_be_built_is_refused(shape: Shape | None) -> None:
    with pytest.raises(BadInput, match="--verify"):
        make_gpt_config(replace(JOB, shape=shape))
