"""The page of a plan: what fits, what is fastest, the job, memory and time of one device, the assumptions."""

from collections.abc import Iterator, Mapping

from zprof.base.formatting import format_decimal_bytes, format_percent
from zprof.model.cursor import Cursor, get
from zprof.model.job import Assumed, Job, Shape
from zprof.model.layout import MIB, Framework, Recompute
from zprof.model.plan import SCHEME_NAMES, ZERO_STAGES, Assumption, Outlook, Plan, PlanVerification
from zprof.model.quantities import ESTIMATE_SIGN, Unit, Value, strip_unit
from zprof.model.report import VerdictStatus
from zprof.model.time import LEDGER_NAMES
from zprof.model.transformer import Attention, Experts, Mlp, Transformer
from zprof.reports.page import (
    Facts,
    Item,
    ItemList,
    KeyFigures,
    Page,
    Paragraph,
    Section,
    VerdictBlock,
    make_section,
)
from zprof.reports.pages.findings import build_gap_section
from zprof.reports.pages.head import MARKS
from zprof.reports.pages.plan_search import (
    FRAMEWORK_NAMES,
    build_answer_sections,
    describe_alternatives,
    describe_answer,
    describe_options,
    fits_as_given,
)
from zprof.reports.pages.plan_sensitivity import build_sensitivity_charts, build_sensitivity_tables
from zprof.reports.pages.plan_tables import (
    AXES,
    build_component_table,
    build_degree_table,
    build_memory_table,
    build_plan_bars,
    build_step_table,
    build_traffic_table,
    build_verified_table,
    choose_memory_scale,
    compute_tokens_per_s,
    format_count,
    format_integer,
    format_memory_size,
    format_plan_time,
    join_names,
    mark_assumed,
    read_known_peak,
    read_state_bytes,
)
from zprof.reports.pages.tenants import tenant_name

STEP = "wall_ns"
_NAMES = {**LEDGER_NAMES, "efficiency_ratio": "efficiency"}
#: Schemes within this share of the fastest count as equally fast.
_EQUAL_SPEED_RATIO = 0.01


def build_plan_assumptions(plan: Plan, *, brief: bool) -> tuple[Section, ...]:
    """Build the section on the assumptions of a plan, with figures grouped by scheme."""
    return _build_assumption_section(plan.assumptions, _list_plan_uses(plan), brief=brief)


def build_outlook_assumptions(outlook: Outlook) -> ItemList | None:
    """Build the list of the assumptions of predictions."""
    return _build_assumption_list(outlook.assumptions, _list_outlook_uses(outlook), brief=False)


def build_whatif_assumptions(outlook: Outlook, *, brief: bool) -> tuple[Section, ...]:
    """Build the section on the assumptions of predictions."""
    return _build_assumption_section(outlook.assumptions, _list_outlook_uses(outlook), brief=brief)


def _build_assumption_section(
    assumptions: Mapping[str, Assumption], uses: Iterator[tuple[str, str, str]], *, brief: bool
) -> tuple[Section, ...]:
    item_list = _build_assumption_list(assumptions, uses, brief=brief)
    lead = "Each predicted figure depends on one of these assumptions."
    note = "in full: --assumptions" if brief else ""
    return make_section("basis", "Assumptions", lead, item_list, note=note)


def _build_assumption_list(
    assumptions: Mapping[str, Assumption], uses: Iterator[tuple[str, str, str]], *, brief: bool
) -> ItemList | None:
    """Return the assumptions sorted by key; ``uses``: (key, figure, scheme)."""
    figures_by_key: dict[str, dict[str, dict[str, None]]] = {key: {} for key in assumptions}
    for key, figure, scheme in uses:
        figures_by_key.setdefault(key, {}).setdefault(figure, {})[scheme] = None
    items = []
    for key, assumption in sorted(assumptions.items()):
        figures = _format_figures(figures_by_key[key])
        details = ((("figures", figures),) if figures else ()) + list_assumption_details(assumption)
        items.append(Item(label=key, text=assumption.formula, details=details))
    return ItemList(items=tuple(items), brief=brief, noun="assumptions") if items else None


def list_assumption_details(assumption: Assumption) -> tuple[tuple[str, str], ...]:
    """List the source of an assumption and what it omits, each with a label."""
    details = (("source", assumption.source), ("limitation", assumption.deviation))
    return tuple((name, text) for name, text in details if text)


def format_term_name(name: str, period: str) -> str:
    """Format a term name: ``exposed wait`` for ``exposed_wait_ns``; the step has the name of its period."""
    return period if name == STEP else _NAMES.get(name) or strip_unit(name)


def _format_figures(uses: Mapping[str, Mapping[str, None]]) -> str:
    """Format the figures grouped by scheme, such as ``gradients, parameters (ZeRO-3); ...``."""
    by_schemes: dict[tuple[str, ...], list[str]] = {}
    for figure, schemes in uses.items():
        by_schemes.setdefault(tuple(schemes), []).append(figure)
    return "; ".join(
        f"{', '.join(names)} ({', '.join(schemes)})" if any(schemes) else ", ".join(names)
        for schemes, names in by_schemes.items()
    )


def _list_plan_uses(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for row in plan.rows:
        scheme = row.name
        for term in row.terms:
            name = tenant_name(term.tenant)
            yield term.assumption, f"{name}: {term.sub.replace('_', ' ')}" if term.sub else name, scheme
        for link in row.links:
            yield link.assumption, f"bytes, {AXES[link.axis]}", scheme
        for leaf, key in row.step.assumptions.items() if row.step else ():
            yield key, format_term_name(leaf, "step"), scheme


def _list_outlook_uses(outlook: Outlook) -> Iterator[tuple[str, str, str]]:
    for prediction in outlook.predictions:
        for entry in (*prediction.step, *prediction.memory):
            yield entry.assumption, format_term_name(entry.name, outlook.period), ""


def build_plan_page(plan: Plan, *, everything: bool = False) -> Page:
    """Build the page of a plan; with ``everything``, the terminal shows each assumption in full."""
    first, *more = list_plan_answers(plan)
    status = judge_plan(plan)
    gaps = (*plan.gaps, *(plan.verification.gaps if plan.verification else ()))
    return Page(
        kind="zprof plan: every figure is predicted",
        subject=format_plan_title(plan),
        head=(
            VerdictBlock(tone=status.value, mark=MARKS[status], text=first),
            ItemList(items=tuple(Item(text=line) for line in more)),
            KeyFigures(figures=list_plan_figures(plan), repeated=True),
            Facts(rows=(("plan", format_plan_title(plan)), *list_plan_facts(plan))),
        ),
        sections=(
            *build_answer_sections(plan),
            *(_build_scheme_sections(plan) if plan.rows else ()),
            *_build_checked_sections(plan),
            *build_plan_assumptions(plan, brief=not everything),
            *build_gap_section(gaps, "Unknown"),
        ),
        made_by=f"zprof {plan.zprof_version}, {plan.schema}",
        data_command="zprof plan … -f json",
    )


def _build_scheme_sections(plan: Plan) -> tuple[Section, ...]:
    """Build the sections that compare the schemes; a search may have none with its global batch."""
    return (
        *make_section(
            "memory",
            "Memory",
            "Predicted memory of a device by tenant, for each parallelism scheme.",
            build_plan_bars(plan),
            build_memory_table(plan),
            build_component_table(plan),
        ),
        *make_section(
            "step",
            "Time and traffic",
            "The terms add up to the step; bytes are per device.",
            build_step_table(plan),
            build_traffic_table(plan),
            build_degree_table(plan),
        ),
    )


def judge_plan(plan: Plan) -> VerdictStatus:
    """Return OK if any scheme fits, RISK if no scheme fits, INCONCLUSIVE if unknown.

    A search answers in place of the schemes.
    """
    if plan.search is not None:
        return VerdictStatus.OK if plan.search.front else VerdictStatus.RISK
    fits = [row.fits for row in plan.rows]
    if True in fits:
        return VerdictStatus.OK
    return VerdictStatus.RISK if fits and all(fit is False for fit in fits) else VerdictStatus.INCONCLUSIVE


def _build_checked_sections(plan: Plan) -> tuple[Section, ...]:
    """Build the sections requested in addition to the plan: sensitivity and verification."""
    sensitivity: tuple[Section, ...] = ()
    if plan.sensitivity is not None:
        sensitivity = make_section(
            "sensitivity",
            "Sensitivity",
            "One condition varies; everything else is as in the job.",
            *build_sensitivity_charts(plan.sensitivity),
            *build_sensitivity_tables(plan),
        )
    if plan.verification is None:
        return sensitivity
    return sensitivity + make_section(
        "verification",
        "Verification",
        "One rank of the job ran on fake tensors without memory, and its tenants were counted.",
        *(Paragraph(text=line) for line in describe_verification(plan.verification)[1:]),
        *(build_verified_table(stage) for stage in Cursor(plan).verification.stages),
    )


def format_plan_title(plan: Plan) -> str:
    """Format the job in a few words."""
    job = plan.job
    name = f"{job.name}, " if job.name else ""
    return f"{name}{format_count(job.parameters)} parameters on {format_device_count(job)}"


def list_plan_answers(plan: Plan) -> tuple[str, ...]:
    """List the answers: sensitivity or search first, then what fits, what is fastest, the model states."""
    sensitivity_answers = plan.sensitivity.answers if plan.sensitivity else ()
    verification = describe_verification(plan.verification)[:1] if plan.verification else ()
    return (
        *sensitivity_answers[:1],
        *describe_answer(plan),
        *(_describe_fit(plan) if plan.rows and (fits_as_given(plan) or not plan.suggestions) else ()),
        *describe_alternatives(plan),
        *((_describe_states(plan),) if plan.rows else ()),
        *describe_assumed(plan.job),
        *describe_options(plan),
        *sensitivity_answers[1:],
        *verification,
    )


def list_plan_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """List the job properties that all figures are computed from."""
    job = plan.job
    shape = job.shape
    frozen = f", {format_integer(job.frozen_parameters)} of them frozen" if job.frozen_parameters else ""
    size = f"{format_integer(job.parameters)} parameters{frozen}"
    is_reference = plan.options.framework is Framework.REFERENCE
    sizes = "" if shape is None else f": {_describe_sizes(job, shape)}"
    if plan.model is not None:
        sizes = f": {_describe_layers(plan, plan.model)}"
    properties = (
        ("model", f"{size}{sizes}"),
        ("devices", f"{format_device_count(job)}: data {job.degrees.dp} x model {job.degrees.mp} x "
         f"pipeline {job.degrees.pp}"),
        ("states", _describe_elements(job) if is_reference else ""),
        ("batch", _describe_batch(plan)),
        ("engine", _describe_engine(job) if is_reference else _describe_frameworks(plan)),
        ("hardware", _describe_hardware(plan)),
    )  # fmt: skip
    return tuple((name, text) for name, text in properties if text)


def list_plan_figures(plan: Plan) -> tuple[tuple[str, str, str], ...]:
    """List the name, value and note of the model states of each stage."""
    scale, figures = choose_memory_scale(plan), []
    for place in Cursor(plan).rows:
        row = get(place)
        if row.scheme not in ZERO_STAGES:
            continue
        fits = {True: "fits, tight" if row.tight else "fits", False: "does not fit", None: ""}[row.fits]
        fits = f"; {mark_assumed(fits, 'fits' in row.assumed)}" if fits else ""
        peak = f"{read_known_peak(place, scale).text} {scale.unit} at the peak"
        states = f"{read_state_bytes(place, scale).text} {scale.unit}"
        figures.append((row.name, states, f"of model states; {peak}{fits}"))
    return tuple(figures)


def format_device_count(job: Job) -> str:
    """Format the number of devices, such as ``64 devices``."""
    return f"{format_integer(job.degrees.devices)} device{'s' if job.degrees.devices != 1 else ''}"


def _describe_fit(plan: Plan) -> Iterator[str]:
    """Yield the schemes that fit, if a device is given."""
    if plan.job.hardware is None:
        return
    by_fit: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for row in plan.rows:
        by_fit[row.fits].append(mark_assumed(row.name, "fits" in row.assumed))
    memory = f"{format_memory_size(plan.job.hardware, plan.job)} of {plan.job.hardware.name}"
    tight_names = [mark_assumed(row.name, "fits" in row.assumed) for row in plan.rows if row.tight]
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
    """Yield the fastest schemes by tokens per second and device, because work per step may differ."""
    timed = [
        (rate, row) for row in plan.rows if row.fits and (rate := compute_tokens_per_s(plan, row)) is not None
    ]
    if not timed:
        return
    max_rate = max(rate for rate, _ in timed)
    matching = [(rate, row) for rate, row in timed if rate >= max_rate * (1 - _EQUAL_SPEED_RATIO)]
    names = join_names(row.name for _, row in matching)
    is_assumed = "step" in matching[0][1].assumed
    steps = {mark_assumed(format_plan_time(row.step.wall_ns), is_assumed) for _, row in matching if row.step}
    within = " (within 1 %)" if len(matching) > 1 else ""
    lead = f"Fastest of these{within}: {names}," if len(timed) > 1 else f"{names}:"
    yield (
        f"{lead} {mark_assumed(format_integer(max_rate), is_assumed)} tokens per second and device, "
        f"{' / '.join(sorted(steps))} per step."
    )


#: Assumed value: its name, and the options that set it.
_ASSUMED_PARTS = {
    Assumed.SHAPE: ("shape", "--layers with --hidden, or --preset"),
    Assumed.MICRO_BATCH: ("micro-batch", "--micro-batch"),
    Assumed.SEQUENCE: ("sequence", "--sequence"),
    Assumed.HARDWARE: ("hardware", "--hardware"),
}


def describe_assumed(job: Job) -> Iterator[str]:
    """Yield each assumed value and the options that set it."""
    values = {
        Assumed.SHAPE: "",
        Assumed.MICRO_BATCH: format_integer(job.batch.samples),
        Assumed.SEQUENCE: format_integer(job.batch.sequence),
        Assumed.HARDWARE: "" if job.hardware is None else job.hardware.name,
    }
    parts = []
    for part in job.assumed:
        name, options = _ASSUMED_PARTS[part]
        parts.append(" ".join(text for text in (name, values[part], f"({options})") if text))
    if parts:
        usual = ", ".join(parts)
        yield f"Figures with {ESTIMATE_SIGN} rest on usual values for what was not stated: {usual}."


def _describe_states(plan: Plan) -> str:
    """Describe the model states, such as ``120 / 31.4 / 16.6 / 1.9 GB``, and the peak if known."""
    places = list(Cursor(plan).rows)
    places = [place for place in places if get(place).scheme in ZERO_STAGES] or places
    scale, rows = choose_memory_scale(plan), [get(place) for place in places]
    states = " / ".join(read_state_bytes(place, scale).text for place in places)
    names = " / ".join(row.name for row in rows)
    need = "need" if len(rows) > 1 else "needs"
    text = f"{names} {need} {states} {scale.unit} of model states on each device"
    if all(row.peak_bytes is None and row.least_bytes == row.state_bytes for row in rows):
        return f"{text}; the memory of activations and buffers is unknown."
    peaks = " / ".join(read_known_peak(place, scale).text for place in places)
    known = all(row.peak_bytes is not None for row in rows)
    return f"{text}; {peaks} {scale.unit} with everything else{'' if known else ' that is known'}."


def _describe_sizes(job: Job, shape: Shape) -> str:
    """Describe a shape, marking each size if the shape is assumed."""
    block = shape.block
    sizes = [(shape.layers, "{} layers"), (shape.hidden, "hidden {}"), (shape.heads, "{} heads")]
    if block is not None:
        sizes.append((block.kv_heads if block.kv_heads != shape.heads else None, "{} for keys and values"))
        sizes.append((block.mlp, "MLP {}"))
    if block is not None and block.experts > 1:
        sizes.append((block.experts, "{} experts"))
        sizes.append((block.active_experts, "{} of them for a token"))
    sizes += [(shape.vocabulary, "vocabulary {}"), (shape.context, "context {}")]
    is_assumed = Assumed.SHAPE in job.assumed
    units = (unit.elements if unit.active_elements is None else unit.active_elements for unit in job.units)
    active = sum(units) * job.degrees.mp  # what a token passes; units are of one model-parallel rank
    routed = f", {format_count(active)} active parameters" if block is not None and block.experts > 1 else ""
    texts = ", ".join(
        text.format(mark_assumed(format_integer(size), is_assumed)) for size, text in sizes if size
    )
    return f"{texts}{routed}"


def _describe_layers(plan: Plan, model: Transformer) -> str:
    """Describe the sizes of a model layer by layer, marking each size if the shape is assumed."""
    mixer = next((run.mixer for run in model.layers if run.mixer is not None), None)
    parts = [run.feed_forward for run in model.layers]
    mlp = next((part for part in parts if isinstance(part, Mlp)), None)
    experts = next((part for part in parts if isinstance(part, Experts)), None)
    kv_heads = mixer.kv_heads if isinstance(mixer, Attention) else None
    sizes: list[tuple[int | None, str]] = [
        (model.layer_count, "{} layers"),
        (model.hidden, "hidden {}"),
        (None if mixer is None else mixer.heads, "{} heads"),
        (None if mixer is None or kv_heads == mixer.heads else kv_heads, "{} for keys and values"),
        (None if mlp is None else mlp.width, "MLP {}"),
        (None if experts is None else experts.experts, "{} experts"),
        (None if experts is None else experts.active, "{} of them for a token"),
        (None if experts is None else experts.width, "of width {}"),
        (model.vocabulary, "vocabulary {}"),
        (model.context, "context {}"),
    ]
    is_assumed = Assumed.SHAPE in plan.job.assumed
    texts = [text.format(mark_assumed(format_integer(size), is_assumed)) for size, text in sizes if size]
    if experts is not None:
        texts.append(f"{format_count(plan.active_parameters)} active parameters")
    return ", ".join(texts)


def _describe_elements(job: Job) -> str:
    size = job.element_bytes
    each = size.parameter + size.gradient + size.optimizer_state
    copy = f"; {size.gradient_copy} more for a copy of each gradient while the optimizer runs"
    return (
        f"{each} bytes per parameter: {size.parameter} parameter, {size.gradient} gradient, "
        f"{size.optimizer_state} optimizer state{copy if size.gradient_copy else ''}"
    )


def _describe_batch(plan: Plan) -> str:
    """Describe samples and sequence, such as ``4 x 1,024 = 4,096``; each marked if assumed."""
    batch, assumed = plan.job.batch, plan.job.assumed
    if batch.samples is None or batch.sequence is None:
        return "not given, so activations and time are unknown (set --micro-batch and --sequence)"
    parts = ((batch.samples, Assumed.MICRO_BATCH), (batch.sequence, Assumed.SEQUENCE))
    texts = [mark_assumed(format_integer(count), part in assumed) for count, part in parts]
    tokens = mark_assumed(format_integer(batch.tokens), any(part in assumed for _, part in parts))
    what = "tokens per micro-batch of one replica"
    return f"{' x '.join(texts)} = {tokens} {what}{_describe_micro_batches(plan)}"


def _describe_micro_batches(plan: Plan) -> str:
    """Describe the micro-batches per step, and columns with a different number."""
    micro_batches = plan.job.batch.micro_batches
    count_text = f", {format_integer(micro_batches)} micro-batch{'es' if micro_batches > 1 else ''} per step"
    matching = [row for row in plan.rows if row.micro_batches == micro_batches]
    if len(matching) == len(plan.rows):
        return count_text if micro_batches > 1 else ""
    sharded = [row.scheme for row in matching if row.scheme in ZERO_STAGES]
    names = ["DP", "ZeRO"] if len(sharded) == len(ZERO_STAGES) else [SCHEME_NAMES[each] for each in sharded]
    names += [row.name for row in matching if row.scheme not in ZERO_STAGES]
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


def _describe_frameworks(plan: Plan) -> str:
    """Describe what the columns are run with, and what they have in common."""
    names: dict[Framework, list[str]] = {}
    for row in plan.rows:
        if row.layout is not None:
            names.setdefault(row.layout.framework, []).append(row.name)
    if not names:
        return ""
    parts = [
        FRAMEWORK_NAMES[framework] + (f" ({', '.join(columns)})" if len(plan.rows) > 1 else "")
        for framework, columns in names.items()
    ]
    layout = next(row.layout for row in plan.rows if row.layout is not None)
    recompute = {
        Recompute.NONE: "no recomputation",
        Recompute.SELECTIVE: "selective recomputation",
        Recompute.FULL: "full recomputation",
    }[layout.recompute]
    weights = "" if layout.master_weights else " without fp32 weights"
    return f"{', '.join(parts)}; {layout.precision.value}{weights}, {layout.optimizer.value}, {recompute}"


def _describe_hardware(plan: Plan) -> str:
    job = plan.job
    hardware = job.hardware
    if hardware is None:
        return ""
    intra_hop, inter_hop = (
        f"{latency_ns / 1000:g} µs per hop"
        for latency_ns in (hardware.intra_latency_ns, hardware.inter_latency_ns)
    )
    size = job.element_bytes.parameter
    flops, name = hardware.peak_flops_per_s(size), f"{size * 8}-bit"
    peak = f"{name} Tflop/s unknown" if flops is None else f"{flops / 1e12:,.3g} {name} Tflop/s"
    share = f" at {hardware.efficiency_ratio * 100:.0f} %"
    if any(row.layout is not None for row in plan.rows):
        ratio = hardware.matmul_ratio
        share = "" if ratio is None else f" ({ratio * 100:.0f} % in a large product)"
    return (
        f"{mark_assumed(hardware.name, Assumed.HARDWARE in job.assumed)}: "
        f"{format_decimal_bytes(hardware.memory_bytes)} ({hardware.memory_bytes / MIB:,.0f} MiB), "
        f"{peak}{share}, {hardware.devices_per_node} devices per node, "
        f"{hardware.intra_bytes_per_s / 1e9:g} GB/s and {intra_hop} in a node, "
        f"{hardware.node_bytes_per_s / 1e9:g} GB/s per node and {inter_hop} between "
        f"nodes, {hardware.host_bytes_per_s / 1e9:g} GB/s to the host"
    )


def describe_verification(verification: PlanVerification) -> tuple[str, ...]:
    """Describe the largest error of the plan and the reference."""
    errors = [(abs(s.difference_ratio), s) for s in verification.stages if s.difference_ratio is not None]
    duration = "" if verification.seconds is None else f" It took {verification.seconds:.1f} s."
    method = (
        f"One of {format_integer(verification.ranks)} ranks was counted, {verification.how}: "
        f"{verification.program}.{duration}"
    )
    if not errors:
        return ("The planned peak could not be checked against a counted rank.", method)
    max_error, worst_stage = max(errors, key=lambda entry: entry[0])
    if format_percent(max_error) == format_percent(0.0):
        return ("The planned peak agrees with a counted rank to within 0.1 %.", method)
    error = Value(worst_stage.difference_ratio, Unit.RATIO, signed=True).text
    return (f"The planned peak is off by at most {error} (stage {worst_stage.stage}).", method)
