"""``zprof plan --verify``: plans against a rank of the reference engine on tensors without memory."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch.distributed as dist
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.integrations.planning import tasks, verify_task
from zprof.integrations.planning.count_task import count_units
from zprof.integrations.planning.tasks import verify_plan
from zprof.model.job import Batch, Degrees, ElementBytes, Job, ModelUnit, Overlap, Residual, Shape
from zprof.model.plan import Plan, Scheme, VerifiedStage
from zprof.model.tenants import Tenant
from zprof.planner.plan import plan
from zprof.process.sandbox import Limits

STAGES = (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)
LAYERS, HIDDEN, WORDS, CONTEXT, RANKS, ALIGNMENT = 3, 128, 256, 32, 8, 48
SHAPE = Shape(layers=LAYERS, hidden=HIDDEN, heads=2, vocabulary=WORDS, context=CONTEXT, tied=False)
JOB = Job(
    parameters=(12 * HIDDEN**2 + 13 * HIDDEN) * LAYERS + (2 * WORDS + CONTEXT + 2) * HIDDEN,
    shape=SHAPE,
    degrees=Degrees(dp=RANKS),
    batch=Batch(samples=2, sequence=CONTEXT),
    overlap=Overlap(alignment_elements=ALIGNMENT),
)
FP32 = ElementBytes(parameter=4, gradient=4, optimizer_state=8, gathered=4, reduced=4, gradient_copy=0)
CHECKPOINTED = replace(JOB, residual=Residual(checkpointing=True))
#: Checkpoints are a large part of it.
PARTITIONED = replace(
    JOB,
    degrees=Degrees(dp=4, mp=2),
    batch=Batch(samples=16, sequence=CONTEXT),
    residual=Residual(checkpointing=True, partition=True, defragment=True),
)
#: The peak is in the backward of the tied embedding: there are three tensors of words x hidden.
TIED = replace(
    JOB,
    parameters=JOB.parameters + (4096 - 2 * WORDS) * HIDDEN,
    shape=replace(SHAPE, vocabulary=4096, tied=True),
    batch=Batch(samples=1, sequence=8),
)
CASES = {
    "checkpointing": CHECKPOINTED,
    "fp32": replace(JOB, element_bytes=FP32),
    "accumulation": replace(JOB, batch=Batch(samples=2, sequence=CONTEXT, micro_batches=3)),
    "constant buffers": replace(JOB, residual=Residual(constant_buffer_elements=1 << 14)),
    "mp": replace(JOB, degrees=Degrees(dp=4, mp=2)),
    "tied": TIED,
    "partition and defragment": PARTITIONED,
}


def verify_in_this_process(task: dict[str, Any], limits: Limits) -> tuple[list[Mapping[str, Any]], str]:
    """What the child would answer: to start it takes longer than the task."""
    lines: list[Mapping[str, Any]] = []
    verify_task.verify_stages(
        task, lambda answer: lines.append(msgspec.json.decode(msgspec.json.encode(answer)))
    )
    return lines, ""


@lru_cache
def verified(job: Job) -> Mapping[int, VerifiedStage]:
    with mock.patch.object(tasks, "run_task", verify_in_this_process):
        found = verify_plan(plan(job, schemes=STAGES))
    assert not dist.is_initialized()
    return {stage.stage: stage for stage in found.stages}


def bytes_by_tenant(stage: VerifiedStage) -> Mapping[Tenant, int]:
    return {entry.tenant: entry.verified_bytes for entry in stage.tenants}


def check_stages(job: Job) -> None:
    """Two moments of a step can be highest by a kilobyte, with other tensors live."""
    stages = verified(job)
    assert sorted(stages) == [0, 1, 2, 3]
    for stage in stages.values():
        assert sum(bytes_by_tenant(stage).values()) == stage.verified_peak_bytes
        assert (stage.planned_peak_bytes or 0) / stage.verified_peak_bytes == pytest.approx(1, abs=0.01)
        for entry in stage.tenants:
            off_bytes = abs((entry.planned_bytes or 0) - entry.verified_bytes)
            assert off_bytes <= 0.015 * stage.verified_peak_bytes, entry


def padded_elements() -> int:
    units = [12 * HIDDEN**2 + 13 * HIDDEN] * LAYERS + [(2 * WORDS + CONTEXT + 2) * HIDDEN]
    whole = RANKS * ALIGNMENT
    return sum(-(-unit // whole) * whole for unit in units)


def test_the_walk_and_the_rank_agree_and_states_follow_the_zero_formulas_to_the_byte() -> None:
    check_stages(JOB)
    elements, step_counters = padded_elements(), 4 * (LAYERS + 1)
    for number, stage in verified(JOB).items():
        tenants = bytes_by_tenant(stage)
        assert tenants[Tenant.PARAMETERS] == 2 * elements // (RANKS if number == 3 else 1)
        state = 12 * elements // (RANKS if number >= 1 else 1)
        assert tenants[Tenant.OPTIMIZER_STATE] == state + step_counters
        assert (Tenant.COMMUNICATION_BUFFERS in tenants) == (number >= 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_walk_and_the_rank_agree_on_other_jobs(name: str) -> None:
    check_stages(CASES[name])


CODE = f"""
from zprof.reference_engine.program.gpt import GPT, GPTConfig

def build(layers={LAYERS}, frozen=()):
    model = GPT(GPTConfig(layers=layers, hidden={HIDDEN}, heads=2, vocabulary={WORDS}, context={CONTEXT}))
    for index in frozen:
        model.blocks[index].requires_grad_(False)
    return model

def two_frozen_blocks():
    return build(layers=4, frozen=(1, 2))
"""


@pytest.fixture
def users_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "models_to_verify.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "models_to_verify", raising=False)
    return "models_to_verify"


@pytest.mark.slow
def test_a_users_own_model_runs_in_a_child(users_models: str) -> None:
    by_shape = plan(CHECKPOINTED, schemes=(Scheme.ZERO_3,))
    found = verify_plan(replace(by_shape, job=replace(by_shape.job, shape=None)), f"{users_models}:build")
    assert bytes_by_tenant(found.stages[0])[Tenant.PARAMETERS] == 2 * padded_elements() // RANKS
    assert found.gaps


def count_in_this_process(model: str) -> Plan:
    job = Job(parameters=1, degrees=Degrees(dp=RANKS), batch=Batch(samples=2, sequence=CONTEXT))
    answers: list[Any] = []
    count_units({"job": msgspec.to_builtins(job), "model": model}, answers.append)
    units = msgspec.convert(answers[0]["units"], tuple[ModelUnit, ...])
    counted = replace(job, parameters=answers[0]["parameters"], frozen_parameters=answers[0]["frozen"])
    return plan(replace(counted, units=units), schemes=STAGES)


def test_a_counted_model_with_frozen_blocks_is_planned_within_three_percent(users_models: str) -> None:
    model = f"{users_models}:two_frozen_blocks"
    with mock.patch.object(tasks, "run_task", verify_in_this_process):
        found = verify_plan(count_in_this_process(model), model)
    assert [stage.stage for stage in found.stages] == [0, 1, 2, 3]
    for stage in found.stages:
        assert stage.difference_ratio == pytest.approx(0, abs=0.03), stage
        for entry in stage.tenants:
            off_bytes = abs((entry.planned_bytes or 0) - entry.verified_bytes)
            exact = entry.tenant in (Tenant.PARAMETERS, Tenant.OPTIMIZER_STATE)
            assert off_bytes <= (0 if exact else 0.03 * stage.verified_peak_bytes), (stage.stage, entry)


def test_a_job_that_the_child_refuses_is_refused_in_one_line() -> None:
    made = plan(JOB, schemes=(Scheme.ZERO_1,))
    with (
        mock.patch.object(tasks, "run_task", verify_in_this_process),
        pytest.raises(BadInput, match="vocabulary") as refused,
    ):
        verify_plan(replace(made, job=replace(JOB, shape=replace(SHAPE, vocabulary=0))))
    assert "\n" not in refused.value.message
    assert not dist.is_initialized()  # the caller's process keeps no group
