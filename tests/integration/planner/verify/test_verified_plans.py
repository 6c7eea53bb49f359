"""``zprof plan --verify``: plans held against a rank of the reference engine on tensors without memory."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch.distributed as dist

from zprof.integrations.planning import tasks, verify_task
from zprof.integrations.planning.child_process import Answers, Limits
from zprof.integrations.planning.tasks import verify_plan
from zprof.model.errors import BadInput
from zprof.model.job import Batch, Degrees, ElementBytes, Job, Overlap, Residual, Shape
from zprof.model.plan import Plan, Scheme, VerifiedStage
from zprof.model.tenants import Tenant
from zprof.planner.plan import plan

STAGES = (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)
LAYERS, HIDDEN, WORDS, CONTEXT, RANKS, ALIGNMENT = 3, 128, 256, 32, 8, 48
JOB = Job(
    parameters=(12 * HIDDEN**2 + 13 * HIDDEN) * LAYERS + (2 * WORDS + CONTEXT + 2) * HIDDEN,
    shape=Shape(layers=LAYERS, hidden=HIDDEN, heads=2, vocabulary=WORDS, context=CONTEXT, tied=False),
    degrees=Degrees(dp=RANKS),
    batch=Batch(samples=2, sequence=CONTEXT),
    overlap=Overlap(alignment_elements=ALIGNMENT),
)
FP32 = ElementBytes(parameter=4, gradient=4, optimizer_state=8, gathered=4, reduced=4, gradient_copy=0)
#: The peak is in the backward of the tied embedding: there are three tensors of words x hidden.
TIED_WORDS = 4096
TIED = replace(
    JOB,
    parameters=(12 * HIDDEN**2 + 13 * HIDDEN) * LAYERS + (TIED_WORDS + CONTEXT + 2) * HIDDEN,
    shape=Shape(layers=LAYERS, hidden=HIDDEN, heads=2, vocabulary=TIED_WORDS, context=CONTEXT, tied=True),
    batch=Batch(samples=1, sequence=8),
)


def partitioned(*, defragment: bool = False) -> Job:
    """Checkpoints are a large part of it."""
    residual = Residual(checkpointing=True, partition=True, defragment=defragment)
    batch = Batch(samples=16, sequence=CONTEXT)
    return replace(JOB, degrees=Degrees(dp=4, mp=2), batch=batch, residual=residual)


def planned(job: Job, schemes: tuple[Scheme, ...] = STAGES) -> Plan:
    return plan(job, schemes=schemes)


def in_this_process(task: dict[str, Any], limits: Limits) -> Answers:
    """What the child would answer: to start it takes longer than the task."""
    lines: list[Mapping[str, Any]] = []
    verify_task.verify_stages(
        task, lambda answer: lines.append(msgspec.json.decode(msgspec.json.encode(answer)))
    )
    return Answers(lines=tuple(lines), ended="")


@lru_cache
def verified(job: Job) -> Mapping[int, VerifiedStage]:
    with mock.patch.object(tasks, "ask", in_this_process):
        found = verify_plan(planned(job))
    assert not dist.is_initialized()
    assert not [gap for gap in found.gaps if "was not verified" in gap.what]
    return {stage.stage: stage for stage in found.stages}


def padded_elements() -> int:
    units = [12 * HIDDEN**2 + 13 * HIDDEN] * LAYERS + [(2 * WORDS + CONTEXT + 2) * HIDDEN]
    whole = RANKS * ALIGNMENT
    return sum(-(-unit // whole) * whole for unit in units)


def counted(stage: VerifiedStage) -> Mapping[Tenant, int]:
    return {entry.tenant: entry.verified_bytes for entry in stage.tenants}


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(JOB, id="bf16"),
        pytest.param(replace(JOB, residual=Residual(checkpointing=True)), id="checkpointing"),
        pytest.param(replace(JOB, element_bytes=FP32), id="fp32", marks=pytest.mark.slow),
        pytest.param(
            replace(JOB, batch=Batch(samples=2, sequence=CONTEXT, micro_batches=3)),
            id="accumulation",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(JOB, residual=Residual(checkpointing=True, defragment=True)),
            id="defragment",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(JOB, residual=Residual(constant_buffer_elements=1 << 14)),
            id="constant_buffers",
            marks=pytest.mark.slow,
        ),
        pytest.param(replace(JOB, degrees=Degrees(dp=4, mp=2)), id="mp", marks=pytest.mark.slow),
        pytest.param(TIED, id="tied", marks=pytest.mark.slow),
        pytest.param(partitioned(), id="partition", marks=pytest.mark.slow),
        pytest.param(partitioned(defragment=True), id="partition_defragment", marks=pytest.mark.slow),
        pytest.param(
            replace(JOB, element_bytes=replace(JOB.element_bytes, gradient_copy=0)),
            id="no_copy",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_walk_and_the_rank_agree_on_every_stage(job: Job) -> None:
    stages = verified(job)
    assert sorted(stages) == [0, 1, 2, 3]
    for stage in stages.values():
        assert sum(entry.verified_bytes for entry in stage.tenants) == stage.verified_peak_bytes
        assert stage.difference_ratio == pytest.approx(0, abs=0.01)
        assert stage.planned_peak_bytes is not None
        for entry in stage.tenants:
            off_bytes = abs((entry.planned_bytes or 0) - entry.verified_bytes)
            # the two highest moments of a step can be a kilobyte apart, with other tensors live
            assert off_bytes <= 0.015 * stage.verified_peak_bytes, entry
        assert stage.difference_ratio == stage.planned_peak_bytes / stage.verified_peak_bytes - 1


def test_states_are_those_of_the_law_to_the_byte() -> None:
    elements = padded_elements()
    step_counters = 4 * (LAYERS + 1)
    for number, stage in verified(JOB).items():
        tenants = counted(stage)
        assert tenants[Tenant.PARAMETERS] == 2 * elements // (RANKS if number == 3 else 1)
        state = 12 * elements // (RANKS if number >= 1 else 1)
        assert tenants[Tenant.OPTIMIZER_STATE] == state + step_counters
        if number < 2:
            assert tenants[Tenant.GRADIENTS] >= 2 * elements
        assert (Tenant.COMMUNICATION_BUFFERS in tenants) == (number >= 2)


def test_a_users_own_model_runs_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_to_verify.py").write_text(
        "from zprof.reference_engine.program.gpt import GPT, GPTConfig\n"
        f"def build(): return GPT(GPTConfig(layers={LAYERS}, hidden={HIDDEN}, heads=2, "
        f"vocabulary={WORDS}, context={CONTEXT}))\n"
    )
    monkeypatch.chdir(tmp_path)
    by_shape = planned(replace(JOB, residual=Residual(checkpointing=True)), (Scheme.ZERO_3,))
    found = verify_plan(replace(by_shape, job=replace(by_shape.job, shape=None)), "model_to_verify:build")
    tenants = counted(found.stages[0])
    assert tenants[Tenant.PARAMETERS] == 2 * padded_elements() // RANKS
    assert any("loss" in gap.what for gap in found.gaps)


def test_what_the_child_refuses_is_one_line_here() -> None:
    shape = Shape(layers=LAYERS, hidden=HIDDEN, heads=2)
    made = planned(JOB, (Scheme.ZERO_1,))
    with pytest.raises(BadInput, match="needs its vocabulary") as caught:
        verify_plan(replace(made, job=replace(JOB, shape=shape)))
    assert "\n" not in caught.value.message
    assert not dist.is_initialized()  # the caller's process keeps no group


@pytest.mark.slow
def test_a_large_model_takes_no_memory_to_speak_of() -> None:
    shape = Shape(layers=48, hidden=1600, heads=25, vocabulary=50257, context=1024)
    job = Job(parameters=1, shape=shape, degrees=Degrees(dp=64), batch=Batch(samples=2, sequence=1024))
    job = replace(job, parameters=(12 * 1600**2 + 13 * 1600) * 48 + (50257 + 1024 + 2) * 1600)
    for stage in verified(job).values():
        assert stage.difference_ratio == pytest.approx(0, abs=0.01)
