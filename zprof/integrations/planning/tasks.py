"""Count a user's model (``zprof plan --model``), and verify a plan on one rank (``--verify``).

The rank runs the reference engine with a GPT of the job's shape or the user's own model, in a fake process
group and on tensors with shapes and no memory. That takes no network, no GPU and hardly any memory. The
user's function runs in the current folder, on the meta device.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from zprof.integrations.planning.child_process import Limits, ask
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap, GapKind
from zprof.model.job import Backend, Job, Unit
from zprof.model.plan import Plan, PlanRow, PlanVerification, VerifiedStage, VerifiedTenant
from zprof.model.tenants import DISPLAY_ORDER

_METHOD = (
    "one rank in a fake process group, on tensors without memory: storages and their owners at the peak of "
    "the second step"
)


def verify_plan(plan: Plan, model: str | None = None, limits: Limits | None = None) -> PlanVerification:
    """Run one rank of the planned job at each of its stages 0 to 3, and compare the tenants at the peak.

    ``model``: the ``module:function`` that the plan was made for, if any.

    Raises:
        BadInput: the plan does not say enough to build and run a rank, or nothing of it can be verified.
    """
    began = time.monotonic()
    job = plan.job
    rows = {row.stage: row for row in plan.rows if row.stage is not None}
    _refuse_unverifiable(job, rows, model)
    task = {"what": "verify", "model": model, "job": msgspec.to_builtins(job), "stages": sorted(rows)}
    answers = ask(task, limits or Limits())
    ran = {line["stage"]: line for line in answers.lines if "peak_bytes" in line}
    failed = {line["stage"]: line["error"] for line in answers.lines if "error" in line}
    if not ran:
        why = next(iter(failed.values()), answers.ended or "it ended the process")
        raise BadInput(f"--verify: the rank could not run: {why}", hint="plan without --verify")
    return PlanVerification(
        ranks=job.degrees.devices,
        program=_describe_program(job, model),
        how=_METHOD,
        stages=tuple(_compare_stage(rows[stage], ran[stage]) for stage in sorted(ran)),
        gaps=(
            *_not_run_gaps(sorted(set(rows) - set(ran)), failed, answers.ended),
            *_not_seen_gaps(job, model),
        ),
        seconds=time.monotonic() - began,
    )


def _refuse_unverifiable(job: Job, rows: Mapping[int, PlanRow], model: str | None) -> None:
    if job.shape is None and model is None:
        raise BadInput(
            "--verify needs a model that can be built, and only a number of parameters is known",
            hint="give --layers, --hidden and --vocabulary, a --preset, or --model module:function",
        )
    if job.batch.samples is None or job.batch.sequence is None:
        raise BadInput("--verify runs a step and needs a batch", hint="add --micro-batch and --sequence")
    if job.degrees.pp > 1:
        raise BadInput(
            f"--verify runs data and model parallelism, not {job.degrees.pp} stages of a pipeline",
            hint="verify with --pp 1",
        )
    if not rows:
        raise BadInput(
            "--verify runs stages 0 to 3, and the plan has none of them", hint="add --stage, or leave it out"
        )


def _compare_stage(row: PlanRow, ran: Mapping[str, Any]) -> VerifiedStage:
    counted: Mapping[str, int] = ran["tenants"]
    tenants = tuple(
        VerifiedTenant(
            tenant=tenant,
            planned_bytes=row.tenants.get(tenant),
            verified_bytes=counted.get(tenant, 0),
            difference_ratio=_ratio(row.tenants.get(tenant), counted.get(tenant, 0)),
        )
        for tenant in DISPLAY_ORDER
        if tenant in row.tenants or counted.get(tenant)
    )
    peak = ran["peak_bytes"]
    return VerifiedStage(
        stage=ran["stage"],
        tenants=tenants,
        planned_peak_bytes=row.peak_bytes,
        verified_peak_bytes=peak,
        difference_ratio=_ratio(row.peak_bytes, peak),
        peak_at=ran["place"],
    )


def _ratio(planned: int | None, verified: int) -> float | None:
    return planned / verified - 1 if planned is not None and verified else None


def _describe_program(job: Job, model: str | None) -> str:
    ranks = f"{job.degrees.dp} data-parallel x {job.degrees.mp} model-parallel ranks"
    built = f"{model} as its function builds it" if model else "a GPT of the planned shape"
    return f"rank 0 of the reference engine's {ranks}: {built}"


def _not_run_gaps(stages: list[int], failed: Mapping[int, str], ended: str) -> tuple[Gap, ...]:
    return tuple(
        Gap(
            kind=GapKind.PLAN,
            what=f"stage {stage} was not verified",
            reason=failed.get(stage) or ended or "the process ended before it",
            remedy="plan that stage alone with --stage, and verify it",
        )
        for stage in stages
    )


def _not_seen_gaps(job: Job, model: str | None) -> tuple[Gap, ...]:
    """Return gaps for bytes that such a rank cannot show."""
    gaps = [
        Gap(
            kind=GapKind.PLAN,
            what="not in the verified bytes: what kernels and the network take for themselves",
            reason="tensors without memory have no allocator, no workspaces and no collectives in flight; "
            "attention is the CPU's, which keeps what flash attention keeps",
            remedy="record a few steps: zprof record -o RUN -- CMD",
        )
    ]
    if model is not None:
        gaps.append(
            Gap(
                kind=GapKind.PLAN,
                what="what the loss keeps is not verified",
                reason="--model returns a model without its loss; the sum of its first output stood for it",
                remedy="let the model return its loss",
            )
        )
    if job.backend is Backend.GLOO:
        gaps.append(
            Gap(
                kind=GapKind.PLAN,
                what="the copies that gloo makes of what it reduces and gathers are not verified",
                reason="a fake process group moves nothing; the plan has them as communication buffers",
                remedy="record a few steps of zprof train",
            )
        )
    if job.residual.offload:
        gaps.append(
            Gap(
                kind=GapKind.PLAN,
                what="checkpoints in host memory are not verified",
                reason="device and host are one where nothing has memory: they are counted on the device",
                remedy="record a few steps of zprof train --pa-cpu",
            )
        )
    return tuple(gaps)


def count_model(spec: str, job: Job, limits: Limits | None = None) -> Job:
    """Return the job with the parameters, the units and the name of the model built by ``module:function``.

    Element counts are exact. Bytes and flop of the units are known if the batch is known and the model takes
    tokens. ``parameters`` includes frozen parameters; ``frozen_parameters`` counts them separately.

    Raises:
        BadInput: the user's code fails, or the function is missing or unsuitable; one line says how.
    """
    if job.degrees.mp > 1:
        raise BadInput(
            f"--model counts a whole model; how {job.degrees.mp} model-parallel ranks share it is unknown",
            hint="leave --mp out, or plan with --layers, --hidden and --vocabulary",
        )
    task = {"what": "count", "model": spec, "job": msgspec.to_builtins(job)}
    answers = ask(task, limits or Limits())
    counted = next((line for line in answers.lines if "parameters" in line), None)
    if counted is None:
        why = answers.ended or "it ended the process"
        raise BadInput(
            f"--model {spec}: the function gave no model: {why}",
            hint="run it by itself: python -c 'import torch; ...'",
        )
    return replace(
        job,
        name=job.name or spec,
        parameters=counted["parameters"],
        frozen_parameters=counted["frozen"],
        units=msgspec.convert(counted["units"], tuple[Unit, ...]),
        shape=None,
    )
