"""Evaluate ZeRO-3 of a job over bandwidth, latency, tokens and world size.

Super-linear speed-up is split into an equal-batch and a larger-batch effect. Sharding over more ranks frees
memory on each device. The device can then run a larger micro-batch, which amortizes the exposed time (arXiv
1910.02054, section 10.3, figure 3, table 6). thr(N, n) is the throughput of a device at N ranks and n samples
per micro-batch:

    total = thr(N, n_N) / thr(N_0, n_0) = [thr(N, n_0) / thr(N_0, n_0)] x [thr(N, n_N) / thr(N, n_0)]

The first factor is the equal-batch effect. It is barely above 1, because sharding over more ranks does not
reduce traffic. n_N is the largest micro-batch that fits by the memory plan. If some term is unknown (counted
units carry bytes for one batch size only), n_N is the largest micro-batch that fits next to model states,
gathered units, checkpoints and the recomputed block. This is an upper bound.

Reported activations follow ``memory.closed_forms``, excluding work buffers and the optimizer's copies.

The working set is the sharded states plus the units gathered together. arXiv 1910.02054 does not
include the latter in its 15.6 GB for 1e12 parameters on 1024 devices.

Break-even: the tokens per device and micro-batch at which compute starts to hide ZeRO-3's traffic. Without
latency, a unit of psi elements takes 2 psi T / (F eta) to compute and b psi / beta to gather, so

    forward     T* = b F eta / (2 beta), F eta / beta at 2 bytes
    backward    (b_gather + b_reduce) F eta / (2 k beta), k = 2, or 3 with recomputation: then 2/3 T*

for any model size; beta is the bandwidth of the data-parallel group. The full step, including latency and
the parts that cannot be overlapped (the first gather, the last reduction), comes from the step model.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from zprof.model.job import Batch, Degrees, Job
from zprof.model.machines import A100, H100, V100, Hardware
from zprof.model.plan import BreakEven, Scheme, Sensitivity, SensitivityPoint, SpeedUp, Term
from zprof.planner.gpt_units import with_units
from zprof.planner.memory import closed_forms
from zprof.planner.memory.closed_forms import (
    gathered_bytes,
    sum_known_bytes,
    total_state_bytes,
    working_set_bytes,
)
from zprof.planner.memory.device_memory import plan_memory
from zprof.planner.memory.largest_model import find_largest_fit
from zprof.planner.parallelism import spread_devices
from zprof.planner.planned_step import plan_stack_step
from zprof.planner.rounding import ceil_div
from zprof.planner.unit_times import EqualUnits, UnitStack, achieved_flops_per_s, stack_units
from zprof.step.from_plan import make_data_group, make_group

#: Hardware to compare by default, all of different speed (an h200 is an h100 with more memory).
_KINDS = (V100, A100, H100)
LATENCIES_NS = (5_000, 10_000, 50_000, 100_000)
#: World sizes go up to this, or to the job's own size.
_MAX_DEVICES = 1024
#: Upper bound of the search, in samples per micro-batch.
_MAX_SAMPLES = 1 << 20
#: Hop latency of a fast and of a slow network.
_FAST_NS, _SLOW_NS = 10_000, 100_000
#: Split into units of a quarter of the size: about one matrix of a block each.
_SPLIT_FACTOR = 4
_HALF = 0.5
#: Smaller ratios would print as 1.00.
_SUPER_LINEAR_RATIO = 1.005
#: A step "holds" if it keeps this share of the speed it would have with free gathers and reductions. The
#: threshold is a choice; 0.97 would need about 8 % fewer tokens.
MIN_SPEED_RATIO = 0.99
BANDWIDTH_RATIOS = (1.0, 0.75, 0.5)
#: Upper bound of the search.
_MAX_TOKENS = 1 << 26


def analyze_sensitivity(job: Job) -> Sensitivity:
    """Evaluate ZeRO-3 for a job over bandwidth, latency, tokens and world size, and write the answers.

    Units are derived from the shape after the job is spread over devices, because that changes the
    micro-batches and so the bytes. Without hardware, the break-even is computed for all presets, and the
    series are empty. Without a peak in the job's precision the result is empty (the plan reports the gap).
    Without a batch, the token count is the largest power of two up to the break-even.
    """
    if job.hardware is not None and achieved_flops_per_s(job, job.hardware) is None:
        return Sensitivity()
    job_without_units = spread_devices(job, Scheme.ZERO_3)
    job = with_units(job_without_units)
    stack = stack_units(job)
    kinds = _KINDS if job.hardware is None else (job.hardware,)
    placed = [_place_on_hardware(job, kind) for kind in kinds]
    break_even = [
        tuple(compute_break_even(on_kind, kind, stack)) for on_kind, kind in zip(placed, kinds, strict=True)
    ]
    flat = tuple(row for rows in break_even for row in rows)
    single = tuple(
        sentence
        for on_kind, kind, rows in zip(placed, kinds, break_even, strict=True)
        for sentence in write_answers(on_kind, kind, stack, rows)
    )
    known = Sensitivity(answers=(*compare_hardware(job, kinds, flat), *single), break_even=flat)
    return (
        known
        if job.hardware is None or stack is None
        else _add_series(known, job_without_units, placed[0], stack)
    )


def _add_series(known: Sensitivity, job_without_units: Job, job: Job, stack: UnitStack) -> Sensitivity:
    """Add the series; ``job_without_units`` has no units yet, because their bytes depend on the batch."""
    speed_up = compute_speed_up(job_without_units, stack, list_world_sizes(job_without_units))
    return replace(
        known,
        answers=(*known.answers, *write_speed_up(speed_up)),
        bandwidth=compute_bandwidth_points(job, stack),
        latency=compute_latency_points(job, stack),
        tokens=compute_token_points(job, stack, known.break_even),
        world=compute_world_points(job, stack),
        speed_up=speed_up,
    )


def _place_on_hardware(job: Job, hardware: Hardware) -> Job:
    """Return the job on that hardware with a token count."""
    placed = replace(job, hardware=hardware)
    if job.batch.tokens is not None:
        return placed
    rate = achieved_flops_per_s(job, hardware) or 0.0
    break_even = job.element_bytes.gathered * rate / (2 * make_data_group(hardware, job.degrees).bytes_per_s)
    return with_tokens(placed, 1 << max(0, int(break_even).bit_length() - 1))


def compute_bandwidth_points(job: Job, stack: UnitStack) -> tuple[SensitivityPoint, ...]:
    """Return points at 100, 75 and 50 % of the group's network bandwidth."""
    states = total_state_bytes(job, Scheme.ZERO_3)
    return _known_points(_make_point(job, stack, states, ratio) for ratio in BANDWIDTH_RATIOS)


def compute_latency_points(job: Job, stack: UnitStack) -> tuple[SensitivityPoint, ...]:
    """Return points at hop latencies of 5 to 100 µs between nodes."""
    states = total_state_bytes(job, Scheme.ZERO_3)
    return _known_points(_make_point(with_latency(job, latency), stack, states) for latency in LATENCIES_NS)


def compute_token_points(
    job: Job, stack: UnitStack, break_even: Iterable[BreakEven]
) -> tuple[SensitivityPoint, ...]:
    """Return points at powers of two around the job's tokens and the break-even, at each bandwidth."""
    tokens = [even.forward_tokens for even in break_even] + [float(job.batch.tokens or 1)]
    powers = (1 << exponent for exponent in range(int(max(tokens) * 2).bit_length()))
    counts = [count for count in powers if count >= min(tokens) / 2]
    states = total_state_bytes(job, Scheme.ZERO_3)
    return _known_points(
        _make_point(with_tokens(job, count), stack, states, ratio)
        for ratio in BANDWIDTH_RATIOS
        for count in counts
    )


def compute_world_points(job: Job, stack: UnitStack) -> tuple[SensitivityPoint, ...]:
    """Return points from one node upward, doubling the data-parallel ranks; the batch per device stays."""
    scaled = [with_ranks(job, dp) for dp in list_world_sizes(job)]
    return _known_points(
        _make_point(scaled_job, stack, total_state_bytes(scaled_job, Scheme.ZERO_3)) for scaled_job in scaled
    )


def list_world_sizes(job: Job) -> tuple[int, ...]:
    """Return data-parallel degrees from one node to 1024 devices, and the job's own."""
    degrees, hardware = job.degrees, job.hardware
    within = degrees.mp * degrees.pp
    first = 1 if hardware is None else max(1, hardware.devices_per_node // within)
    max_dp = max(_MAX_DEVICES // within, degrees.dp)
    sizes, dp = {degrees.dp}, first
    while dp <= max_dp:
        sizes.add(dp)
        dp *= 2
    return tuple(sorted(sizes))


def _make_point(job: Job, stack: UnitStack, states: int, ratio: float = 1.0) -> SensitivityPoint | None:
    hardware = job.hardware
    step = plan_stack_step(with_bandwidth(job, ratio), Scheme.ZERO_3, stack)
    if step is None or hardware is None or job.batch.tokens is None:
        return None
    return SensitivityPoint(
        bandwidth_ratio=ratio,
        latency_ns=hardware.inter_latency_ns,
        tokens=job.batch.tokens,
        devices=job.degrees.devices,
        wall_ns=step.wall_ns,
        compute_ns=step.compute_ns,
        exposed_ns=step.exposed_transfer_ns,
        efficiency_ratio=step.efficiency_ratio,
        state_bytes=states,
    )


def _known_points(points: Iterable[SensitivityPoint | None]) -> tuple[SensitivityPoint, ...]:
    return tuple(point for point in points if point is not None)


def compute_speed_up(
    job: Job, stack: UnitStack, dp_degrees: Sequence[int], scheme: Scheme = Scheme.ZERO_3
) -> tuple[SpeedUp, ...]:
    """Return the speed-up of every world size that fits a sample, relative to the smallest.

    Empty if unknown. ``job`` must not have its units filled in yet, because their bytes depend on the batch.
    """
    worlds = []
    for dp in sorted(dp_degrees):
        world = with_ranks(job, dp)
        samples, at_most = find_max_samples(world, scheme)
        if samples:
            worlds.append((world, samples, at_most))
    rows = [_compare_worlds(worlds[0], world, stack, scheme) for world in worlds]
    return tuple(row for row in rows if row is not None)


def find_max_samples(job: Job, scheme: Scheme) -> tuple[int, bool]:
    """Return the largest micro-batch that fits a device, and True if the size is an upper bound.

    The size is 0 if no sample fits or the inputs are unknown, and an upper bound if some memory is unknown.
    """
    if job.hardware is None or job.shape is None or job.batch.sequence is None:
        return 0, False
    memory = job.hardware.memory_bytes

    def plan_terms(samples: int) -> Sequence[Term]:
        return plan_memory(with_units(with_samples(job, samples)), scheme).terms

    if not job.units and all(term.bytes is not None for term in plan_terms(1)):  # known for any batch size
        count = find_largest_fit(
            lambda samples: sum_known_bytes(plan_terms(samples)), memory, max_value=_MAX_SAMPLES
        )
        return count, False
    job_with_units = with_units(job)
    free_bytes = (
        memory
        - total_state_bytes(job_with_units, scheme)
        - (gathered_bytes(job_with_units) if scheme is Scheme.ZERO_3 else 0)
    )
    bytes_per_sample = micro_batch_activation_bytes(job, 1) or 0
    if job.residual.checkpointing:
        sequence, size = job.batch.sequence or 0, job.element_bytes.parameter
        bytes_per_sample += working_set_bytes(job.shape, sequence, size, mp=job.degrees.mp)
    return max(0, min(_MAX_SAMPLES, free_bytes // max(1, bytes_per_sample))), True


def _compare_worlds(
    first: tuple[Job, int, bool], world: tuple[Job, int, bool], stack: UnitStack, scheme: Scheme
) -> SpeedUp | None:
    """Return the speed-up of a world over the first, each with the largest micro-batch that fits."""
    (first_job, first_samples, _), (job, samples, at_most) = first, world
    base = _device_throughput(first_job, stack, first_samples, scheme)
    equal_batch = _device_throughput(job, stack, first_samples, scheme)
    larger_batch = _device_throughput(job, stack, samples, scheme)
    activation_bytes = micro_batch_activation_bytes(job, samples)
    if base is None or equal_batch is None or larger_batch is None or activation_bytes is None:
        return None
    return SpeedUp(
        devices=job.degrees.devices,
        samples=samples,
        at_most=at_most,
        state_bytes=total_state_bytes(with_units(job), scheme),
        activation_bytes=activation_bytes,
        whole_ratio=larger_batch / base,
        equal_batch_ratio=equal_batch / base,
        larger_batch_ratio=larger_batch / equal_batch,
    )


def _device_throughput(job: Job, stack: UnitStack, samples: int, scheme: Scheme) -> float | None:
    """Return samples per ns of a device."""
    step = plan_stack_step(with_samples(job, samples), scheme, stack)
    return None if step is None or not step.wall_ns else samples * job.batch.micro_batches / step.wall_ns


def micro_batch_activation_bytes(job: Job, samples: int) -> int | None:
    """Return the bytes saved by the forward pass of a micro-batch; None if shape or sequence is unknown."""
    shape, sequence, mp = job.shape, job.batch.sequence, job.degrees.mp
    if shape is None or sequence is None:
        return None
    size = job.element_bytes.parameter
    if job.residual.checkpointing:
        return closed_forms.checkpoint_bytes(shape, samples * sequence, size, job.residual, mp=mp)
    return closed_forms.activation_bytes(shape, samples * sequence, size, mp=mp)


def write_answers(
    job: Job, hardware: Hardware, stack: UnitStack | None, even: Sequence[BreakEven]
) -> Iterator[str]:
    """Yield the sentences for one kind of hardware: whether the speed holds, then whether the job fits.

    ``job`` must use ``hardware`` and have a token count.
    """
    devices = f"{job.degrees.devices:,} {'device' if job.degrees.devices == 1 else 'devices'}"
    start = f"{hardware.name}, {devices}"
    group = make_data_group(hardware, job.degrees)
    if group.ranks == 1:
        yield f"{start}: one data-parallel rank, so ZeRO neither shards nor communicates."
    elif group.nodes == 1:
        yield from _write_single_node_sentence(start, even[0])
    else:
        yield from (
            _write_speed_sentence(start, job, row, stack) for row in even if row.bandwidth_ratio == _HALF
        )
    if stack is not None:
        yield _write_fit_sentence(start, job, hardware)
    if group.nodes > 1:
        counts = [
            f"{row.forward_tokens:,.0f} (at {_format_share(row.bandwidth_ratio)} of the bandwidth)"
            for row in even
        ]
        yield (
            f"{start}: compute hides a unit's gather with at least {', '.join(counts[:-1])} or {counts[-1]} "
            "tokens per device and micro-batch."
        )
        if stack is not None and (sentence := _write_latency_sentence(start, job, stack)):
            yield sentence


def compare_hardware(job: Job, kinds: Sequence[Hardware], even: Sequence[BreakEven]) -> Iterator[str]:
    """Yield a comparison of hardware: the tokens at which each kind keeps its speed at half the bandwidth."""
    multi_node = {kind.name for kind in kinds if make_data_group(kind, job.degrees).nodes > 1}
    half = [row for row in even if row.bandwidth_ratio == _HALF and row.holds_from_tokens is not None]
    half = [row for row in half if row.hardware in multi_node]
    if len(half) < 2:
        return
    counts = [f"{row.holds_from_tokens:,} ({row.hardware})" for row in half]
    yield (
        f"At half the bandwidth, ZeRO-3 on {job.degrees.devices:,} devices keeps "
        f"{_format_share(half[0].kept_ratio)} of its speed with at least {', '.join(counts[:-1])} or "
        f"{counts[-1]} tokens per device and micro-batch."
    )


def write_speed_up(rows: Sequence[SpeedUp]) -> Iterator[str]:
    """Yield the speed-up from the smallest to the largest world size that fits a sample."""
    if len(rows) < 2:
        return
    first, last = rows[0], rows[-1]
    kind = "super-linear" if last.whole_ratio >= _SUPER_LINEAR_RATIO else "not super-linear"
    bound = (
        " (an upper bound, because part of the memory is unknown)" if first.at_most or last.at_most else ""
    )
    yield (
        f"With the largest micro-batch that fits{bound}, {first.samples:,} samples on {first.devices:,} "
        f"devices and {last.samples:,} on {last.devices:,}, the throughput per device changes by a factor of "
        f"{last.whole_ratio:.2f} ({kind}): {last.equal_batch_ratio:.2f} with {first.samples:,} on both, "
        f"times {last.larger_batch_ratio:.2f} with {last.samples:,} instead. This excludes the "
        "gain of kernels from larger matrices; the table of world sizes keeps the job's own batch."
    )


def _write_single_node_sentence(start: str, even: BreakEven) -> Iterator[str]:
    """Yield the sentence for a single node, which needs no network."""
    holds = even.holds_from_tokens
    kept = (
        ""
        if holds is None
        else f", and the step keeps {_format_share(even.kept_ratio)} of its speed with at least {holds:,}"
    )
    yield (
        f"{start}: ZeRO-3 stays within a node, so the network between nodes does not matter. Compute hides "
        f"a unit's gather with at least {even.forward_tokens:,.0f} tokens per device and micro-batch{kept}."
    )


def _write_speed_sentence(start: str, job: Job, even: BreakEven, stack: UnitStack | None) -> str:
    kept, at_half = (
        f"{_format_share(even.kept_ratio)} of its speed",
        f"{start}: at half the bandwidth, ZeRO-3",
    )
    if stack is None:
        return (
            f"{at_half} hides its gathers with at least {even.forward_tokens:,.0f} tokens per device and "
            "micro-batch; the speed of the full step needs the model's shape."
        )
    if even.holds_from_tokens is None:
        return f"{at_half} does not keep {kept} at any number of tokens."
    current = compute_speed_ratio(with_bandwidth(job, _HALF), stack)
    at_job = (
        "" if current is None else f" With {job.batch.tokens:,} tokens it keeps {_format_share(current)}."
    )
    start_at = f"with at least {even.holds_from_tokens:,} tokens per device and micro-batch"
    return f"{at_half} keeps {kept} {start_at}.{at_job}"


def _write_latency_sentence(start: str, job: Job, stack: UnitStack) -> str | None:
    times = [
        plan_stack_step(with_latency(job, latency), Scheme.ZERO_3, units)
        for units in (stack, split_units(stack, _SPLIT_FACTOR))
        for latency in (_FAST_NS, _SLOW_NS)
    ]
    walls = [
        (f"{step.wall_ns / 1e9:,.1f} s" if step.wall_ns >= 1e9 else f"{step.wall_ns / 1e6:,.1f} ms")
        for step in times
        if step is not None
    ]
    if len(walls) < len(times):
        return None
    return (
        f"{start}, {job.batch.tokens:,} tokens: {_SLOW_NS // 1000} µs per hop between nodes instead of "
        f"{_FAST_NS // 1000} µs lengthens a step from {walls[0]} to {walls[1]}; with units a quarter as "
        f"large, from {walls[2]} to {walls[3]}."
    )


def _write_fit_sentence(start: str, job: Job, hardware: Hardware) -> str:
    """Return the memory verdict, based on the peak if known, else on states and gathered units."""
    sizes = [term.bytes for term in plan_memory(job, Scheme.ZERO_3).terms]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        states, gathered = total_state_bytes(job, Scheme.ZERO_3), gathered_bytes(job)
        free_bytes = hardware.memory_bytes - states - gathered
        verdict = (
            f"{_format_size(free_bytes)} remains for everything else"
            if free_bytes >= 0
            else f"does not fit, {_format_size(-free_bytes)} over"
        )
        return (
            f"{start}: ZeRO-3 needs {_format_size(states)} for states and {_format_size(gathered)} for "
            "gathered units, of "
            f"{_format_size(hardware.memory_bytes)} on a device: {verdict}."
        )
    free_bytes = hardware.memory_bytes - sum(known)
    verdict = (
        f"fits, {_format_size(free_bytes)} free"
        if free_bytes >= 0
        else f"does not fit, {_format_size(-free_bytes)} over"
    )
    return (
        f"{start}, {job.batch.tokens:,} tokens: ZeRO-3 needs {_format_size(sum(known))} at its peak, of "
        f"{_format_size(hardware.memory_bytes)} on a device: {verdict}."
    )


def _format_share(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"


def compute_break_even(job: Job, hardware: Hardware, stack: UnitStack | None) -> Iterator[BreakEven]:
    """Yield the break-even at each bandwidth; ``job`` must use ``hardware``.

    Yields nothing for a single data-parallel rank, which does not communicate, or if the peak in the job's
    precision is unknown.
    """
    rate = achieved_flops_per_s(job, hardware)
    if job.degrees.dp == 1 or rate is None:
        return
    for ratio in BANDWIDTH_RATIOS:
        slower = with_bandwidth(job, ratio)
        beta = make_data_group(slower.hardware or hardware, job.degrees).bytes_per_s
        gathered, reduced = job.element_bytes.gathered, job.element_bytes.reduced
        passes = 3 if job.residual.checkpointing else 2
        yield BreakEven(
            hardware=hardware.name,
            bandwidth_ratio=ratio,
            forward_tokens=gathered * rate / (2 * beta),
            backward_tokens=(gathered + reduced) * rate / (2 * passes * beta),
            holds_from_tokens=None if stack is None else find_min_tokens(slower, stack),
            kept_ratio=MIN_SPEED_RATIO,
        )


def find_min_tokens(job: Job, stack: UnitStack) -> int | None:
    """Return the minimum tokens at which the step keeps ``MIN_SPEED_RATIO``; None if never or unknown.

    More tokens never lower the ratio: compute grows with them, a gather does not.
    """
    if not _keeps_speed(job, stack, _MAX_TOKENS):
        return None
    low, high = 0, _MAX_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _keeps_speed(job, stack, middle) else (middle, high)
    return high


def compute_speed_ratio(job: Job, stack: UnitStack) -> float | None:
    """Return the step's speed relative to a step without communication cost; None if unknown."""
    step = plan_stack_step(job, Scheme.ZERO_3, stack)
    single_rank = plan_stack_step(with_ranks(job, 1), Scheme.ZERO_3, stack)
    if step is None or single_rank is None or not step.wall_ns:
        return None
    return single_rank.wall_ns / step.wall_ns


def _keeps_speed(job: Job, stack: UnitStack, tokens: int) -> bool:
    ratio = compute_speed_ratio(with_tokens(job, tokens), stack)
    return ratio is not None and ratio >= MIN_SPEED_RATIO


def with_bandwidth(job: Job, ratio: float) -> Job:
    """Scale the inter-node bandwidth of the data-parallel group.

    ``ratio`` applies to min(bus, node g / devices per node), so it has an effect even if the bus is the
    bottleneck. A group within one node is not affected.
    """
    if job.hardware is None:
        return job
    return replace(job, hardware=scale_network(job.hardware, job.degrees, ratio))


def scale_network(hardware: Hardware, degrees: Degrees, ratio: float) -> Hardware:
    """Return the hardware with the group's inter-node bandwidth scaled, as in ``with_bandwidth``."""
    group = make_group(hardware, degrees.dp, stride=degrees.mp)
    if ratio == 1 or group.nodes == 1:
        return hardware
    share = group.per_node / hardware.devices_per_node
    return replace(hardware, node_bytes_per_s=ratio * group.bytes_per_s / share)


def with_latency(job: Job, latency_ns: int) -> Job:
    """Return the job with a different inter-node hop latency."""
    if job.hardware is None:
        return job
    return replace(job, hardware=replace(job.hardware, inter_latency_ns=latency_ns))


def with_tokens(job: Job, tokens: int) -> Job:
    """Return the job with a different number of tokens per device and micro-batch.

    Flop per token stay the same, as with more samples of the same length: longer sequences would need more
    attention flop.
    """
    return replace(job, batch=Batch(samples=1, sequence=tokens, micro_batches=job.batch.micro_batches))


def with_samples(job: Job, samples: int) -> Job:
    """Return the job with a different number of samples per device and micro-batch."""
    return replace(job, batch=replace(job.batch, samples=samples))


def with_ranks(job: Job, dp: int) -> Job:
    """Return the job with a different number of data-parallel ranks; the batch per rank stays."""
    return replace(job, degrees=replace(job.degrees, dp=dp))


def split_units(stack: UnitStack, parts: int) -> UnitStack:
    """Split every unit except the root into ``parts`` equal units."""
    return replace(
        stack,
        runs=tuple(
            EqualUnits(
                count=run.count * parts,
                elements=ceil_div(run.elements, parts),
                flop_per_token=run.flop_per_token / parts,
            )
            for run in stack.runs
        ),
    )
