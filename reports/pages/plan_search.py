"""The answer of a plan: layouts that fit, fastest first, why each is as fast as it is, and its command."""

import shlex
from collections.abc import Iterator, Sequence

from zprof.base.formatting import format_decimal_bytes
from zprof.model.cursor import Cursor, get
from zprof.model.layout import Framework, Layout, PipelineSchedule, Recompute
from zprof.model.plan import Bound, Estimate, Fit, Plan, Search
from zprof.reports.page import AxisMark, Block, Code, Line, LineChart, LinePoint, Note, Section, make_section
from zprof.reports.pages.plan_tables import (
    IN_FULL,
    choose_size_scale,
    choose_time_scale,
    compute_tokens_per_s,
    format_integer,
    format_memory_size,
    format_plan_time,
    format_with_unit,
    make_plan_table,
    read_scaled,
)
from zprof.reports.table import Row, Table, make_number_columns, make_text_column

#: Layouts that a sentence names.
_MAX_NAMED = 3
_MAX_COMMANDS = 6
#: Terms below this share of the step are not named as a reason.
_MIN_SHARE = 0.03
#: Points and labels keep this distance from the edges of a chart, in percent.
_MARGIN = 6.0
_SHARES = (0, 0.25, 0.5, 0.75, 1)
#: A chart ends at this multiple of the memory of a device.
_MAX_MEMORY_RATIO = 2
_SCHEDULES = {
    PipelineSchedule.GPIPE: "GPipe",
    PipelineSchedule.ONE_F_ONE_B: "1F1B",
    PipelineSchedule.INTERLEAVED: "interleaved",
    PipelineSchedule.ZERO_BUBBLE: "zero-bubble",
}
FRAMEWORK_NAMES = {
    Framework.REFERENCE: "reference",
    Framework.DDP: "DDP",
    Framework.FSDP2: "FSDP2",
    Framework.DEEPSPEED: "DeepSpeed",
    Framework.MEGATRON: "Megatron",
}
_BOUNDS = {
    Bound.COMPUTE: "compute-bound",
    Bound.LAUNCH: "launch-bound",
    Bound.NETWORK: "network-bound",
    Bound.BUBBLE: "bubble-bound",
}


def build_answer_sections(plan: Plan) -> tuple[Section, ...]:
    """Build the sections on the layouts that fit: of the search if there was one, else the suggestions."""
    if plan.search is not None:
        places = list(Cursor(plan).search.front)
        return make_section(
            "search",
            "Search",
            "The fastest layout for each amount of memory; no other is faster with less.",
            build_layout_chart(plan),
            _build_layout_table("Layouts, fastest first", places, _list_search_notes(plan.search)),
            *_build_commands(plan, plan.search.front),
        )
    places = list(Cursor(plan).suggestions)
    return make_section(
        "fits",
        "What fits",
        "The fastest layout of each kind on these devices, with the same global batch.",
        build_layout_chart(plan) if places else None,
        _build_layout_table("What fits, fastest first", places, _list_tight_notes(plan.suggestions)),
        *_build_commands(plan, plan.suggestions),
    )


def describe_answer(plan: Plan) -> Iterator[str]:
    """Yield the best layout of a search, or the fastest layouts if none of the plan's own ones fits."""
    hardware, search = plan.job.hardware, plan.search
    if hardware is None:
        return
    memory = f"{format_memory_size(hardware, plan.job)} of {hardware.name}"
    if search is not None:
        yield _describe_search(search, memory)
    elif not plan.rows:
        yield _describe_batch_conflict(plan)
    elif plan.suggestions and not fits_as_given(plan):
        peaks = [row.peak_bytes for row in plan.rows if row.peak_bytes is not None]
        needed = f" (needs {format_decimal_bytes(min(peaks))})" if peaks else ""
        yield f"Does not fit {memory}{needed}. Fits: {_name_fastest(plan.suggestions)}."


def _describe_batch_conflict(plan: Plan) -> str:
    """Describe that no compared scheme has the global batch."""
    devices = format_integer(plan.job.degrees.devices)
    if not plan.suggestions:
        return f"No layout of {devices} devices has this global batch."
    return f"No usual layout of {devices} devices has this global batch. Fits: " + (
        f"{_name_fastest(plan.suggestions)}."
    )


def describe_alternatives(plan: Plan) -> Iterator[str]:
    """Yield the fastest layouts that the plan was not asked for."""
    best = plan.search.best if plan.search is not None else None
    if plan.search is not None and best is not None:
        smaller = [found for found in plan.search.front if found.peak_bytes < best.peak_bytes]
        if smaller:
            yield f"With less memory: {_name_fastest(smaller)}."
    elif plan.rows and plan.suggestions and fits_as_given(plan):
        yield f"Fastest layouts on these devices: {_name_fastest(plan.suggestions)}."


def fits_as_given(plan: Plan) -> bool:
    """Return True unless every layout that the plan was asked for is too large."""
    return not plan.rows or any(row.fits is not False for row in plan.rows)


def _describe_search(search: Search, memory: str) -> str:
    devices = format_integer(search.devices)
    if search.best is not None:
        best = search.best
        return (
            f"Best on {devices} devices: {format_layout(best.layout)}, "
            f"{format_decimal_bytes(best.peak_bytes)} of {memory}, {format_plan_time(best.step.wall_ns)} per "
            f"step, {format_integer(best.tokens_per_s)} tokens/s per device; {explain(best)}."
        )
    if search.smallest is None:
        return f"No layout of {devices} devices has a global batch of {format_integer(search.global_batch)}."
    smallest = search.smallest
    return (
        f"No layout of {devices} devices fits {memory}: the smallest, {format_layout(smallest.layout)}, "
        f"needs {format_decimal_bytes(smallest.peak_bytes)} and "
        f"{format_decimal_bytes(smallest.reserve_bytes)} of reserve."
    )


def describe_front(search: Search) -> Iterator[str]:
    """Yield two lines for each layout of the front: its name, and memory, speed and why."""
    for found in search.front:
        yield format_layout(found.layout)
        yield (
            f"  {format_decimal_bytes(found.peak_bytes)}, {format_integer(found.tokens_per_s)} tokens/s per "
            f"device, {format_plan_time(found.step.wall_ns)} per step; {explain(found)}"
        )


def _name_fastest(found: Sequence[Estimate]) -> str:
    return " · ".join(map(_describe_layout, found[:_MAX_NAMED]))


def describe_options(plan: Plan) -> Iterator[str]:
    """Yield what the options led to: the reference engine, old names, defaults of a file."""
    options = plan.options
    if options.reference_options:
        yield (
            f"Planned with --framework reference, because {', '.join(options.reference_options)} "
            "belongs to the reference engine."
        )
    for old, new in options.old_options:
        yield f"{old} is the old name of {new}; it goes with the next release."
    if options.auto_keys:
        yield f'"auto" in ds_config.json: usual values for {", ".join(options.auto_keys)}.'


def format_layout(layout: Layout) -> str:
    """Format a layout in a few words, such as ``TP 8 + PP 4 + ZeRO-1 + full recomputation``."""
    return " + ".join(_list_parts(layout))


def _list_parts(layout: Layout) -> Iterator[str]:
    degrees = layout.degrees
    if degrees.tensor > 1:
        yield f"TP {degrees.tensor}"
    if degrees.pipeline > 1:
        chunks = f" x {degrees.virtual}" if degrees.virtual > 1 else ""
        is_usual = layout.schedule is PipelineSchedule.ONE_F_ONE_B or chunks
        yield f"PP {degrees.pipeline}{chunks}" + ("" if is_usual else f" {_SCHEDULES[layout.schedule]}")
    if degrees.context > 1:
        yield f"CP {degrees.context}"
    if degrees.expert > 1:
        yield f"EP {degrees.expert}"
    match layout.framework:
        case Framework.DDP:
            yield "DDP"
        case Framework.FSDP2:
            yield "FSDP2" if degrees.replicas == 1 else f"HSDP {degrees.shard}"
            if not layout.reshard:
                yield "no reshard"
        case Framework.DEEPSPEED:
            yield f"DeepSpeed ZeRO-{layout.stage}"
        case _:
            yield "ZeRO-1" if layout.stage else "replicated states"
    if layout.recompute is not Recompute.NONE:
        yield f"{layout.recompute.value} recompute"
    if layout.offload_optimizer:
        yield "offload" if layout.offload_parameters else "optimizer offload"


def explain(estimate: Estimate) -> str:
    """Return why a step takes as long as it does: what bounds it, and the terms beside compute."""
    step, words = estimate.step, []
    terms: tuple[tuple[str, Bound | None, int], ...] = (
        ("bubble", Bound.BUBBLE, step.idle_ns),
        ("network exposed", Bound.NETWORK, step.exposed_transfer_ns),
        ("host copies exposed", None, step.exposed_memcpy_ns),
    )
    named = [(name, bound, size) for name, bound, size in terms if size >= _MIN_SHARE * step.wall_ns]
    if estimate.bound not in [bound for _, bound, _ in named]:
        words.append(_BOUNDS[estimate.bound])
    words += [f"{name} {round(100 * size / step.wall_ns)} %" for name, _, size in named]
    if estimate.fit is Fit.TIGHT:
        words.append("tight")
    return ", ".join(words)


def format_layout_command(plan: Plan, estimate: Estimate) -> str:
    """Return the command that plans a layout alone."""
    layout, degrees = estimate.layout, estimate.layout.degrees
    options = {
        "--framework": layout.framework.value,
        "--stage": layout.stage if layout.framework is Framework.DEEPSPEED else None,
        "--world": degrees.devices,
        "--tp": _unless_one(degrees.tensor),
        "--pp": _unless_one(degrees.pipeline),
        "--virtual": _unless_one(degrees.virtual),
        "--schedule": None if layout.schedule is PipelineSchedule.ONE_F_ONE_B else layout.schedule.value,
        "--cp": _unless_one(degrees.context),
        "--ep": _unless_one(degrees.expert),
        "--shard": degrees.shard if layout.stage and degrees.replicas > 1 else None,
        "--recompute": None if layout.recompute is Recompute.NONE else layout.recompute.value,
        "--micro-batch": layout.micro_batch,
        "--global-batch": layout.micro_batch * layout.micro_batches * degrees.data,
        "--sequence": layout.sequence,
        "--offload": _get_offload(layout),
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    if not layout.reshard:
        words.append("--no-reshard")
    return shlex.join(("zprof", "plan", *plan.options.kept_arguments, *words))


def _unless_one(degree: int) -> int | None:
    return None if degree == 1 else degree


def _get_offload(layout: Layout) -> str | None:
    if layout.offload_parameters:
        return "parameters"
    return "optimizer" if layout.offload_optimizer else None


def build_layout_chart(plan: Plan) -> LineChart | None:
    """Build the chart of speed over memory, with the memory of the device; None if fewer than two are known.

    Layouts far above the memory of the device are left out.
    """
    hardware = plan.job.hardware
    if hardware is None:
        return None
    found = plan.search.front if plan.search is not None else plan.suggestions
    best = plan.search.best if plan.search is not None else next(iter(found), None)
    known = [(row, compute_tokens_per_s(plan, row), row.peak_bytes) for row in plan.rows]
    given = [(row, rate, peak) for row, rate, peak in known if rate is not None and peak is not None]
    if len(found) + len(given) < 2:
        return None
    widest = _MAX_MEMORY_RATIO * hardware.memory_bytes
    scale = choose_size_scale([hardware.memory_bytes])
    shown = [entry for entry in given if entry[2] <= widest]
    sizes = (*(each.peak_bytes for each in found), *(peak for _, _, peak in shown))
    top_bytes = max(hardware.memory_bytes, *sizes)
    top_rate = max(*(each.tokens_per_s for each in found), *(rate for _, rate, _ in given), 1.0)

    def make_point(name: str, peak_bytes: int, rate: float, label: str = "") -> LinePoint:
        return LinePoint(
            x=_place(peak_bytes / top_bytes),
            y=100 - _place(rate / top_rate),
            text=f"{name}: {format_with_unit(peak_bytes, scale)}, {format_integer(rate)} tokens/s per device",
            label=label,
        )

    front = [
        make_point(
            format_layout(each.layout), each.peak_bytes, each.tokens_per_s, "best" if each == best else ""
        )
        for each in found
    ]
    label = "given" if len(plan.rows) == 1 else ""
    fitting, too_large = (
        [
            make_point(row.name, peak, rate, label)
            for row, rate, peak in shown
            if (row.fits is False) == is_large
        ]
        for is_large in (False, True)
    )
    name = "no other is faster with less memory" if plan.search is not None else "fastest of each kind"
    compared = "as given" if label else "usual schemes"
    lines = (
        Line(name=name, points=tuple(front), is_joined=plan.search is not None),
        Line(name=f"{compared}: may fit", points=tuple(fitting), is_joined=False),
        Line(name=f"{compared}: does not fit", points=tuple(too_large), is_joined=False, is_muted=True),
    )
    left_out = len(given) - len(shown)
    more = f"; {left_out} above {format_with_unit(widest, scale)} not drawn" if left_out else ""
    return LineChart(
        title="Speed over memory of a device",
        lines=tuple(line for line in lines if line.points),
        heights=tuple(
            AxisMark(at=100 - _place(share), text=format_integer(top_rate * share)) for share in _SHARES
        ),
        marks=tuple(
            AxisMark(at=_place(share), text=format_with_unit(top_bytes * share, scale))
            for share in _SHARES[1:]
        ),
        x_title=f"memory per device at the peak{more}",
        y_title="tokens/s per device",
        limit=AxisMark(
            at=_place(hardware.memory_bytes / top_bytes),
            text=f"{format_memory_size(hardware, plan.job)} of {hardware.name}",
        ),
    )


def _place(share: float) -> float:
    """Return the position of a share of an axis, in percent."""
    return round(_MARGIN + (100 - 2 * _MARGIN) * share, 2)


def _build_layout_table(title: str, places: Sequence[Cursor], notes: Iterator[str]) -> Table:
    found: list[Estimate] = [get(place) for place in places]
    sizes = choose_size_scale([each.peak_bytes for each in found])
    times = choose_time_scale([each.step.wall_ns for each in found])
    return make_plan_table(
        title=title,
        note="per device",
        head="layout",
        columns=(
            *make_number_columns("memory", unit=sizes.unit),
            *make_number_columns("tokens/s"),
            *make_number_columns("step", unit=times.unit),
            *make_number_columns("micro-batch", wide=True),
            make_text_column("why"),
        ),
        rows=[
            Row(
                cells=(
                    format_layout(estimate.layout),
                    read_scaled(place.peak_bytes, sizes),
                    read_scaled(place.tokens_per_s, IN_FULL),
                    read_scaled(place.step.wall_ns, times),
                    read_scaled(place.layout.micro_batch, IN_FULL),
                    explain(estimate),
                )
            )
            for place, estimate in zip(places, found, strict=True)
        ],
        notes=tuple(notes),
    )


def _list_search_notes(search: Search) -> Iterator[str]:
    yield (
        f"{format_integer(search.tried)} layouts were estimated, {format_integer(search.fitting)} fit; "
        f"global batch {format_integer(search.global_batch)}, {format_integer(search.sequence)} tokens per "
        "sample."
    )
    if search.left_out:
        yield f"{format_integer(search.left_out)} further layouts were left out: the search is limited."
    yield from _list_tight_notes(search.front)


def _list_tight_notes(found: Sequence[Estimate]) -> Iterator[str]:
    tight = [each.reserve_bytes for each in found if each.fit is Fit.TIGHT]
    if tight:
        yield (
            f"Tight: fits only if context, NCCL and fragmentation take less than the usual "
            f"{format_decimal_bytes(max(tight))}."
        )
    if found:
        yield "Memory: what the framework allocates, without this reserve."


def _build_commands(plan: Plan, found: Sequence[Estimate]) -> Iterator[Block]:
    """Yield the commands that plan the first layouts alone, each on one line to copy."""
    if found:
        yield Note(text="Commands that plan the first of these layouts, in the same order:")
        yield Code(lines=tuple(format_layout_command(plan, each) for each in found[:_MAX_COMMANDS]))


def _describe_layout(estimate: Estimate) -> str:
    tight = ", tight" if estimate.fit is Fit.TIGHT else ""
    return (
        f"{format_layout(estimate.layout)} ({format_decimal_bytes(estimate.peak_bytes)}, "
        f"{format_integer(estimate.tokens_per_s)} tokens/s{tight})"
    )
