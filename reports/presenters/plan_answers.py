"""Describe the results of a plan in sentences, and the job it is for."""

from collections.abc import Iterator

from zprof.model.job import Hardware, Job
from zprof.model.plan import ZERO_STAGES, Plan, PlanRow, PlanVerification
from zprof.reports.presenters.plan_formatting import (
    SCHEMES,
    format_count,
    format_device_size,
    format_integer,
    format_plan_time,
    format_scaled,
    format_signed_percent,
    join_names,
)
from zprof.reports.presenters.plan_memory import choose_memory_scale, format_known_peak
from zprof.reports.presenters.plan_time import compute_tokens_per_s

#: Schemes within this share of the fastest count as equally fast.
_EQUAL_SPEED_RATIO = 0.01


def format_plan_title(plan: Plan) -> str:
    """Format the job in a few words."""
    job = plan.job
    name = f"{job.name}, " if job.name else ""
    return f"{name}{format_count(job.parameters)} parameters on {format_device_count(job)}"


def list_plan_answers(plan: Plan) -> tuple[str, ...]:
    """List the answers: sensitivity first, then what fits and is fastest, the model states, the rest."""
    sensitivity_answers = plan.sensitivity.answers if plan.sensitivity else ()
    verification = describe_verification(plan.verification)[:1] if plan.verification else ()
    return (
        *sensitivity_answers[:1],
        *_describe_fit(plan),
        _describe_states(plan),
        *sensitivity_answers[1:],
        *verification,
    )


def list_plan_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """List the properties of the job from which all figures are computed."""
    job = plan.job
    properties = (
        ("model", _describe_model(job)),
        ("devices", f"{format_device_count(job)}: data {job.degrees.dp} x model {job.degrees.mp} x "
         f"pipeline {job.degrees.pp}"),
        ("states", _describe_elements(job)),
        ("batch", _describe_batch(plan)),
        ("engine", _describe_engine(job)),
        ("hardware", _describe_hardware(job)),
    )  # fmt: skip
    return tuple((name, text) for name, text in properties if text)


def list_plan_figures(plan: Plan) -> tuple[tuple[str, str, str], ...]:
    """List the name, value and note of the model states of each stage."""
    scale = choose_memory_scale(plan)
    return tuple(
        (
            SCHEMES[row.scheme],
            f"{format_scaled(row.state_bytes, scale)} {scale.unit}",
            _format_figure_note(plan, row),
        )
        for row in plan.rows
        if row.scheme in ZERO_STAGES
    )


def format_device_count(job: Job) -> str:
    """Format the number of devices, such as ``64 devices``."""
    return f"{format_integer(job.degrees.devices)} device{'s' if job.degrees.devices != 1 else ''}"


def _format_figure_note(plan: Plan, row: PlanRow) -> str:
    scale = choose_memory_scale(plan)
    fits = {True: "; fits, tight" if row.tight else "; fits", False: "; does not fit", None: ""}[row.fits]
    return f"of model states; {format_known_peak(row, scale)} {scale.unit} at the peak{fits}"


def _describe_fit(plan: Plan) -> Iterator[str]:
    """Yield the schemes that fit, if a device is given."""
    if plan.job.hardware is None:
        return
    by_fit = {fit: [SCHEMES[r.scheme] for r in plan.rows if r.fits is fit] for fit in (True, False, None)}
    memory = f"{format_device_size(plan.job.hardware.memory_bytes)} of {plan.job.hardware.name}"
    tight_names = [SCHEMES[row.scheme] for row in plan.rows if row.tight]
    tight = f" (tight: {join_names(tight_names)})" if tight_names else ""
    text = [
        f"{what}: {join_names(names)}{tight if what.startswith('Fits') else ''}"
        for what, names in (
            (f"Fits {memory}", by_fit[True]),
            ("does not fit" if by_fit[True] else f"Does not fit {memory}", by_fit[False]),
            ("unknown" if by_fit[True] or by_fit[False] else f"Unknown if these fit {memory}",
             by_fit[None]),
        )
        if names
    ]  # fmt: skip
    yield f"{'; '.join(text)}."
    yield from _describe_fastest(plan)


def _describe_fastest(plan: Plan) -> Iterator[str]:
    """Yield the fastest schemes by tokens per second and device, because steps may differ in work."""
    timed = [
        (rate, row) for row in plan.rows if row.fits and (rate := compute_tokens_per_s(plan, row)) is not None
    ]
    if len(timed) < 2:
        return
    max_rate = max(rate for rate, _ in timed)
    matching = [(rate, row) for rate, row in timed if rate >= max_rate * (1 - _EQUAL_SPEED_RATIO)]
    names = join_names(SCHEMES[row.scheme] for _, row in matching)
    steps = {format_plan_time(row.step.wall_ns) for _, row in matching if row.step}
    within = " (within 1 %)" if len(matching) > 1 else ""
    yield (
        f"Fastest of these{within}: {names}, {format_integer(max_rate)} tokens per second and device, "
        f"{' / '.join(sorted(steps))} per step."
    )


def _describe_states(plan: Plan) -> str:
    """Describe the model states, such as ``120 / 31.4 / 16.6 / 1.9 GB``, and the peak if it is known."""
    rows = [row for row in plan.rows if row.scheme in ZERO_STAGES] or list(plan.rows)
    scale = choose_memory_scale(plan)
    states = " / ".join(format_scaled(row.state_bytes, scale) for row in rows)
    names = " / ".join(SCHEMES[row.scheme] for row in rows)
    need = "need" if len(rows) > 1 else "needs"
    text = f"{names} {need} {states} {scale.unit} of model states on each device"
    if all(row.peak_bytes is None and row.least_bytes == row.state_bytes for row in rows):
        return f"{text}; the memory of activations and buffers is unknown."
    peaks = " / ".join(format_known_peak(row, scale) for row in rows)
    known = all(row.peak_bytes is not None for row in rows)
    return f"{text}; {peaks} {scale.unit} with everything else{'' if known else ' that is known'}."


def _describe_model(job: Job) -> str:
    shape = job.shape
    frozen = f", {format_integer(job.frozen_parameters)} of them frozen" if job.frozen_parameters else ""
    size = f"{format_integer(job.parameters)} parameters{frozen}"
    if shape is None:
        return size
    parts = [f"{format_integer(shape.layers)} layers of hidden {format_integer(shape.hidden)}"]
    parts += [f"{format_integer(shape.heads)} heads"] if shape.heads else []
    parts += [f"vocabulary {format_integer(shape.vocabulary)}"] if shape.vocabulary else []
    parts += [f"context {format_integer(shape.context)}"] if shape.context else []
    return f"{size}: {', '.join(parts)}"


def _describe_elements(job: Job) -> str:
    size = job.element_bytes
    each = size.parameter + size.gradient + size.optimizer_state
    copy = f"; {size.gradient_copy} more for a copy of each gradient while the optimizer runs"
    return (
        f"{each} bytes per parameter: {size.parameter} parameter, {size.gradient} gradient, "
        f"{size.optimizer_state} optimizer state{copy if size.gradient_copy else ''}"
    )


def _describe_batch(plan: Plan) -> str:
    batch = plan.job.batch
    if batch.samples is None or batch.sequence is None:
        return "not given, so activations and time are unknown (set --micro-batch and --sequence)"
    return (
        f"{format_integer(batch.samples)} x {format_integer(batch.sequence)} tokens per micro-batch "
        f"of one replica ({format_integer(batch.tokens)}){_describe_micro_batches(plan)}"
    )


def _describe_micro_batches(plan: Plan) -> str:
    """Describe the micro-batches per step, and the columns with a different number."""
    micro_batches = plan.job.batch.micro_batches
    count_text = f", {format_integer(micro_batches)} micro-batch{'es' if micro_batches > 1 else ''} per step"
    matching = [row for row in plan.rows if row.micro_batches == micro_batches]
    if len(matching) == len(plan.rows):
        return count_text if micro_batches > 1 else ""
    sharded = [row.scheme for row in matching if row.scheme in ZERO_STAGES]
    names = ["DP", "ZeRO"] if len(sharded) == len(ZERO_STAGES) else [SCHEMES[each] for each in sharded]
    names += [SCHEMES[row.scheme] for row in matching if row.scheme not in ZERO_STAGES]
    columns = (
        f"in the column{'s' if len(matching) > 1 else ''} {join_names(names)}"
        if names
        else "with the given parallelism"
    )
    return (
        f"{count_text} {columns}; other columns need more or fewer for the same batch (see table of devices)"
    )


def _describe_engine(job: Job) -> str:
    residual, overlap = job.residual, job.overlap
    parts = [f"prefetch {overlap.prefetch}"]
    parts += ["last unit stays gathered"] if overlap.keep_last else []
    parts += ["checkpointing" if residual.checkpointing else "no checkpointing"]
    parts += ["checkpoints partitioned (Pa)"] if residual.partition else []
    parts += ["checkpoints on the host (Pa+cpu)"] if residual.offload else []
    if residual.constant_buffer_elements is not None:
        parts.append(f"buffers of {format_count(residual.constant_buffer_elements)} elements (CB)")
    parts += ["contiguous gradients (MD)"] if residual.defragment else []
    return ", ".join(parts)


def _describe_hardware(job: Job) -> str:
    hardware = job.hardware
    if hardware is None:
        return ""
    intra_hop = _format_hop_latency(hardware.intra_latency_ns)
    inter_hop = _format_hop_latency(hardware.inter_latency_ns)
    return (
        f"{hardware.name}: {format_device_size(hardware.memory_bytes)}, {_format_peak_flops(job, hardware)} "
        f"at {hardware.efficiency_ratio * 100:.0f} %, {hardware.devices_per_node} devices per node, "
        f"{hardware.intra_bytes_per_s / 1e9:g} GB/s and {intra_hop} in a node, "
        f"{hardware.node_bytes_per_s / 1e9:g} GB/s per node and {inter_hop} between "
        f"nodes, {hardware.host_bytes_per_s / 1e9:g} GB/s to the host"
    )


def _format_peak_flops(job: Job, hardware: Hardware) -> str:
    """Format the peak compute rate from which times are computed."""
    size = job.element_bytes.parameter
    peak, name = hardware.peak_flops_per_s(size), f"{size * 8}-bit"
    return f"{name} Tflop/s unknown" if peak is None else f"{peak / 1e12:,.3g} {name} Tflop/s"


def _format_hop_latency(latency_ns: int) -> str:
    return f"{latency_ns / 1000:g} µs per hop"


def describe_verification(verification: PlanVerification) -> tuple[str, ...]:
    """Describe the largest error of the plan, and what it was checked against."""
    errors = [(abs(s.difference_ratio), s) for s in verification.stages if s.difference_ratio is not None]
    duration = "" if verification.seconds is None else f" It took {verification.seconds:.1f} s."
    method = (
        f"One of {format_integer(verification.ranks)} ranks was counted, {verification.how}: "
        f"{verification.program}.{duration}"
    )
    if not errors:
        return ("The planned peak could not be checked against a counted rank.", method)
    max_error, worst_stage = max(errors, key=lambda entry: entry[0])
    if format_signed_percent(max_error) == format_signed_percent(0.0):
        return ("The planned peak agrees with a counted rank to within 0.1 %.", method)
    return (
        f"The planned peak is off by at most {format_signed_percent(worst_stage.difference_ratio)} "
        f"(stage {worst_stage.stage}).",
        method,
    )
