"""The answer of a plan in sentences, and the job that it is about."""

from collections.abc import Iterator

from zprof.model.job import Hardware, Job
from zprof.model.plan import ZERO_STAGES, Plan, PlanRow, PlanVerification
from zprof.reports.presenters.plan_memory import choose_memory_scale, format_known_peak
from zprof.reports.presenters.plan_time import compute_tokens_per_s
from zprof.reports.presenters.plan_words import (
    SCHEMES,
    format_count,
    format_device_size,
    format_integer,
    format_plan_time,
    format_scaled,
    format_signed_percent,
    join_names,
)

#: What is this near to the best is as fast.
_ALIKE_RATIO = 0.01


def format_plan_title(plan: Plan) -> str:
    """Return the job in a few words."""
    job = plan.job
    name = f"{job.name}, " if job.name else ""
    return f"{name}{format_count(job.parameters)} parameters on {format_device_count(job)}"


def list_plan_answers(plan: Plan) -> tuple[str, ...]:
    """Return the answer: what was asked, what fits and is fastest, the states, the rest."""
    asked = plan.sensitivity.answers if plan.sensitivity else ()
    counted = describe_verification(plan.verification)[:1] if plan.verification else ()
    return (*asked[:1], *_fits(plan), _states(plan), *asked[1:], *counted)


def list_plan_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the job in full: what every figure is computed from."""
    job = plan.job
    named = (
        ("model", _model(job)),
        ("devices", f"{format_device_count(job)}: data {job.degrees.dp} x model {job.degrees.mp} x "
         f"pipeline {job.degrees.pp}"),
        ("states", _element_words(job)),
        ("batch", _batch(plan)),
        ("engine", _engine(job)),
        ("hardware", _hardware(job)),
    )  # fmt: skip
    return tuple((name, said) for name, said in named if said)


def list_plan_figures(plan: Plan) -> tuple[tuple[str, str, str], ...]:
    """Return name, value and note of the model states of each stage."""
    scale = choose_memory_scale(plan)
    return tuple(
        (
            SCHEMES[row.scheme],
            f"{format_scaled(row.state_bytes, scale)} {scale.unit}",
            _figure_note(plan, row),
        )
        for row in plan.rows
        if row.scheme in ZERO_STAGES
    )


def format_device_count(job: Job) -> str:
    """Return ``64 devices``."""
    return f"{format_integer(job.degrees.devices)} device{'s' if job.degrees.devices != 1 else ''}"


def _figure_note(plan: Plan, row: PlanRow) -> str:
    scale = choose_memory_scale(plan)
    fits = {True: "; fits, tight" if row.tight else "; fits", False: "; does not fit", None: ""}[row.fits]
    return f"of model states; {format_known_peak(row, scale)} {scale.unit} at the peak{fits}"


def _fits(plan: Plan) -> Iterator[str]:
    """Yield what fits, if there is a device to fit into."""
    if plan.job.hardware is None:
        return
    by_fit = {fit: [SCHEMES[r.scheme] for r in plan.rows if r.fits is fit] for fit in (True, False, None)}
    memory = f"{format_device_size(plan.job.hardware.memory_bytes)} of {plan.job.hardware.name}"
    near = [SCHEMES[row.scheme] for row in plan.rows if row.tight]
    tight = f" (tight: {join_names(near)})" if near else ""
    said = [
        f"{what}: {join_names(names)}{tight if what.startswith('Fits') else ''}"
        for what, names in (
            (f"Fits {memory}", by_fit[True]),
            ("does not fit" if by_fit[True] else f"Does not fit {memory}", by_fit[False]),
            ("unknown" if by_fit[True] or by_fit[False] else f"Unknown if it fits {memory}",
             by_fit[None]),
        )
        if names
    ]  # fmt: skip
    yield f"{'; '.join(said)}."
    yield from _fastest(plan)


def _fastest(plan: Plan) -> Iterator[str]:
    """Yield the fastest by tokens per second and device: steps may differ in work."""
    timed = [
        (rate, row) for row in plan.rows if row.fits and (rate := compute_tokens_per_s(plan, row)) is not None
    ]
    if len(timed) < 2:
        return
    best = max(rate for rate, _ in timed)
    alike = [(rate, row) for rate, row in timed if rate >= best * (1 - _ALIKE_RATIO)]
    names = join_names(SCHEMES[row.scheme] for _, row in alike)
    steps = {format_plan_time(row.step.wall_ns) for _, row in alike if row.step}
    within = " (within 1 %)" if len(alike) > 1 else ""
    yield (
        f"Fastest of those{within}: {names}, {format_integer(best)} tokens per second and device, "
        f"{' / '.join(sorted(steps))} per step."
    )


def _states(plan: Plan) -> str:
    """Return ``120 / 31.4 / 16.6 / 1.9 GB``, and the peak if more of it is known."""
    rows = [row for row in plan.rows if row.scheme in ZERO_STAGES] or list(plan.rows)
    scale = choose_memory_scale(plan)
    states = " / ".join(format_scaled(row.state_bytes, scale) for row in rows)
    names = " / ".join(SCHEMES[row.scheme] for row in rows)
    need = "need" if len(rows) > 1 else "needs"
    said = f"{names} {need} {states} {scale.unit} of model states on each device"
    if all(row.peak_bytes is None and row.least_bytes == row.state_bytes for row in rows):
        return f"{said}; what activations and buffers add is unknown."
    peaks = " / ".join(format_known_peak(row, scale) for row in rows)
    known = all(row.peak_bytes is not None for row in rows)
    return f"{said}; {peaks} {scale.unit} with everything else{'' if known else ' that is known'}."


def _model(job: Job) -> str:
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


def _element_words(job: Job) -> str:
    size = job.element_bytes
    each = size.parameter + size.gradient + size.optimizer_state
    copy = f"; {size.gradient_copy} more for a gradient's copy while the optimizer runs"
    return (
        f"{each} bytes per parameter: {size.parameter} parameter, {size.gradient} gradient, "
        f"{size.optimizer_state} optimizer state{copy if size.gradient_copy else ''}"
    )


def _batch(plan: Plan) -> str:
    batch = plan.job.batch
    if batch.samples is None or batch.sequence is None:
        return "not given, so no activations and no time (--micro-batch and --sequence)"
    return (
        f"{format_integer(batch.samples)} x {format_integer(batch.sequence)} tokens per micro-batch of one replica "
        f"({format_integer(batch.tokens)}){_micro_batches(plan)}"
    )


def _micro_batches(plan: Plan) -> str:
    """Return in which columns a step has as many as were given, if others have another number."""
    stated = plan.job.batch.micro_batches
    many = f", {format_integer(stated)} micro-batch{'es' if stated > 1 else ''} per step"
    alike = [row for row in plan.rows if row.micro_batches == stated]
    if len(alike) == len(plan.rows):
        return many if stated > 1 else ""
    sharded = [row.scheme for row in alike if row.scheme in ZERO_STAGES]
    names = ["DP", "ZeRO"] if len(sharded) == len(ZERO_STAGES) else [SCHEMES[each] for each in sharded]
    names += [SCHEMES[row.scheme] for row in alike if row.scheme not in ZERO_STAGES]
    where = (
        f"in the column{'s' if len(alike) > 1 else ''} {join_names(names)}" if names else "as you spread it"
    )
    return f"{many} {where}; other columns do the same batch with more or fewer (see the table of devices)"


def _engine(job: Job) -> str:
    residual, overlap = job.residual, job.overlap
    parts = [f"prefetch {overlap.prefetch}"]
    parts += ["last unit kept gathered"] if overlap.keep_last else []
    parts += ["checkpointing" if residual.checkpointing else "no checkpointing"]
    parts += ["checkpoints partitioned (Pa)"] if residual.partition else []
    parts += ["checkpoints on the host (Pa+cpu)"] if residual.offload else []
    if residual.constant_buffer_elements is not None:
        parts.append(f"buffers of {format_count(residual.constant_buffer_elements)} elements (CB)")
    parts += ["gradients in one piece (MD)"] if residual.defragment else []
    return ", ".join(parts)


def _hardware(job: Job) -> str:
    hardware = job.hardware
    if hardware is None:
        return ""
    return (
        f"{hardware.name}: {format_device_size(hardware.memory_bytes)}, {_peak(job, hardware)} "
        f"at {hardware.efficiency_ratio * 100:.0f} %, {hardware.devices_per_node} devices per node, "
        f"{hardware.intra_bytes_per_s / 1e9:g} GB/s and {_hop(hardware.intra_latency_ns)} in a node, "
        f"{hardware.node_bytes_per_s / 1e9:g} GB/s per node and {_hop(hardware.inter_latency_ns)} between "
        f"nodes, {hardware.host_bytes_per_s / 1e9:g} GB/s to the host"
    )


def _peak(job: Job, hardware: Hardware) -> str:
    """Return the peak that times are computed with."""
    size = job.element_bytes.parameter
    peak, name = hardware.peak_flops_per_s(size), f"{size * 8}-bit"
    return f"{name} Tflop/s unknown" if peak is None else f"{peak / 1e12:,.3g} {name} Tflop/s"


def _hop(latency_ns: int) -> str:
    return f"{latency_ns / 1000:g} µs per hop"


def describe_verification(found: PlanVerification) -> tuple[str, ...]:
    """Return how far off the plan is at most, and what it was checked against."""
    off = [(abs(s.difference_ratio), s) for s in found.stages if s.difference_ratio is not None]
    took = "" if found.seconds is None else f" It took {found.seconds:.1f} s."
    ran = f"One of {format_integer(found.ranks)} ranks was counted, {found.how}: {found.program}.{took}"
    if not off:
        return ("The plan's peak could not be checked against what was counted.", ran)
    most, worst = max(off, key=lambda entry: entry[0])
    if format_signed_percent(most) == format_signed_percent(0.0):
        return ("The planned peak is that of a counted rank, to a tenth of a percent.", ran)
    return (
        f"The planned peak is off by {format_signed_percent(worst.difference_ratio)} at most (stage {worst.stage}).",
        ran,
    )
