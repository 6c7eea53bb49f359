"""Count a user's model (``zprof plan --model``), and verify a plan on one rank (``--verify``).

The rank runs the reference engine with a GPT of the job's shape or the user's model, in a fake process group
and on fake tensors (shapes without data). This needs no network, no GPU and very little memory. The user's
function runs in the current folder, on the meta device.
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from zprof.base.errors import BadInput, Extra, require_extra
from zprof.integrations.planning.child_process import LIMITS, run_task
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.job import Assumed, Backend, Job, ModelUnit
from zprof.model.plan import Plan, PlanRow, PlanVerification, VerifiedStage, VerifiedTenant
from zprof.model.tenants import DISPLAY_ORDER
from zprof.process.sandbox import Limits

_METHOD = (
    "one rank in a fake process group, on fake tensors: storages and their owners at the peak of the "
    "second step"
)


def verify_plan(plan: Plan, model: str | None = None, limits: Limits = LIMITS) -> PlanVerification:
    """Run one rank of the planned job at each planned stage, and compare the tenants at the peak.

    ``model``: the planned ``module:function``, if any.

    Raises:
        BadInput: the plan lacks the data needed to build a rank, or has no stage that can be verified.
        MissingPackage: torch is not installed.
    """
    start = time.monotonic()
    job = plan.job
    rows = {row.stage: row for row in plan.rows if row.stage is not None}
    _refuse_unverifiable(job, rows, model)
    require_extra(Extra.RECORD, "--verify")
    task = {"task": "verify", "model": model, "job": msgspec.to_builtins(job), "stages": sorted(rows)}
    answers, failure = run_task(task, limits)
    results = {line["stage"]: line for line in answers if "peak_bytes" in line}
    failed = {line["stage"]: line["error"] for line in answers if "error" in line}
    if not results:
        reason = next(iter(failed.values()), failure or "it exited the process")
        raise BadInput(f"--verify: the rank failed to run: {reason}", hint="plan without --verify")
    failed = {stage: failed.get(stage) or failure for stage in sorted(set(rows) - set(results))}
    ranks = f"{job.degrees.dp} data-parallel x {job.degrees.mp} model-parallel ranks"
    source = f"the model returned by {model}" if model else "a GPT of the planned shape"
    return PlanVerification(
        ranks=job.degrees.devices,
        program=(f"rank 0 of the reference engine's {ranks}: {source}"),
        how=_METHOD,
        stages=tuple(_compare_stage(rows[stage], results[stage]) for stage in sorted(results)),
        gaps=(
            *(
                make_gap("stage_failed" if reason else "stage_not_reached", stage=stage, reason=reason)
                for stage, reason in failed.items()
            ),
            *_list_unverifiable_gaps(job, model),
        ),
        seconds=time.monotonic() - start,
    )


def _refuse_unverifiable(job: Job, rows: Mapping[int, PlanRow], model: str | None) -> None:
    has_shape = job.shape is not None and Assumed.SHAPE not in job.assumed
    if not has_shape and model is None:
        raise BadInput(
            "--verify needs a model definition, but only the parameter count is known",
            hint="use --layers, --hidden and --vocabulary, a --preset, or --model module:function",
        )
    if job.shape is not None and job.shape.block is not None:
        raise BadInput(
            "--verify builds a GPT, and the planned model has Llama blocks",
            hint="verify your own model: --model module:function",
        )
    if job.batch.samples is None or job.batch.sequence is None:
        raise BadInput(
            "--verify runs a step, so it needs a batch size", hint="add --micro-batch and --sequence"
        )
    if job.degrees.pp > 1:
        raise BadInput(
            f"--verify supports data and model parallelism, not pipeline parallelism (--pp {job.degrees.pp})",
            hint="verify with --pp 1",
        )
    if not rows:
        raise BadInput(
            "--verify runs stages 0 to 3, but the plan contains none of them",
            hint="set --stage, or remove it",
        )


def _compare_stage(row: PlanRow, result: Mapping[str, Any]) -> VerifiedStage:
    counted: Mapping[str, int] = result["tenants"]
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
    peak = result["peak_bytes"]
    return VerifiedStage(
        stage=result["stage"],
        tenants=tenants,
        planned_peak_bytes=row.peak_bytes,
        verified_peak_bytes=peak,
        difference_ratio=_ratio(row.peak_bytes, peak),
        peak_at=result["peak_at"],
    )


def _ratio(planned: int | None, verified: int) -> float | None:
    return planned / verified - 1 if planned is not None and verified else None


def _list_unverifiable_gaps(job: Job, model: str | None) -> tuple[Gap, ...]:
    """List memory that a fake rank cannot measure."""
    gaps = [make_gap("workspaces_not_verified")]
    if model is not None:
        gaps.append(make_gap("loss_not_verified"))
    if job.backend is Backend.GLOO:
        gaps.append(make_gap("gloo_copies_not_verified"))
    if job.residual.offload:
        gaps.append(make_gap("host_checkpoints_not_verified"))
    return tuple(gaps)


def count_model(spec: str, job: Job, limits: Limits = LIMITS) -> Job:
    """Return the job with the parameters, the units and the name of the model built by ``module:function``.

    Element counts are exact. Bytes and flop of units require a known batch and a model that takes tokens.
    ``parameters`` includes frozen parameters; ``frozen_parameters`` counts them separately.

    Raises:
        BadInput: the user's code fails, or the function is missing or unsuitable, as the message explains.
        MissingPackage: torch is not installed.
    """
    if job.degrees.mp > 1:
        raise BadInput(
            f"--model counts the full model; its split over {job.degrees.mp} model-parallel ranks is unknown",
            hint="remove --mp, or plan with --layers, --hidden and --vocabulary",
        )
    require_extra(Extra.RECORD, "--model")
    task = {"task": "count", "model": spec, "job": msgspec.to_builtins(job)}
    answers, failure = run_task(task, limits)
    counted = next((line for line in answers if "parameters" in line), None)
    if counted is None:
        reason = failure or "it exited the process"
        raise BadInput(
            f"--model {spec}: the function returned no model: {reason}",
            hint="run the function on its own: python -c 'import torch; ...'",
        )
    return replace(
        job,
        name=job.name or spec,
        parameters=counted["parameters"],
        frozen_parameters=counted["frozen"],
        units=msgspec.convert(counted["units"], tuple[ModelUnit, ...]),
        shape=None,
    )
