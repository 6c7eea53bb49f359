"""Evaluate ZeRO-3 of a job over bandwidth, latency, tokens and world size."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from zprof.model.job import Hardware, Job
from zprof.model.machines import A100, H100, V100
from zprof.model.plan import BreakEven, Scheme, Sensitivity, SensitivityPoint
from zprof.planner.degrees import spread_devices
from zprof.planner.gpt_units import with_units
from zprof.planner.memory.states import total_state_bytes
from zprof.planner.sensitivity.answers import compare_hardware, write_answers, write_speed_up
from zprof.planner.sensitivity.break_even import BANDWIDTH_RATIOS, compute_break_even
from zprof.planner.sensitivity.conditions import with_bandwidth, with_latency, with_ranks, with_tokens
from zprof.planner.sensitivity.speed_up import compute_speed_up
from zprof.planner.step.collectives import make_data_group
from zprof.planner.step.ledger import plan_stack_step
from zprof.planner.step.unit_times import UnitStack, achieved_flops_per_s, stack_units

#: Hardware to compare if none is given; they differ in speed (an h200 is an h100 with more memory).
_KINDS = (V100, A100, H100)
LATENCIES_NS = (5_000, 10_000, 50_000, 100_000)
#: World sizes go up to this, or to the job's own size.
_MAX_DEVICES = 1024


def analyze_sensitivity(job: Job) -> Sensitivity:
    """Evaluate ZeRO-3 of a job over bandwidth, latency, tokens and world size, and write the answers.

    Units are derived from the shape after the job is spread, because spreading changes the micro-batches and
    with them the bytes. Without hardware, the break-even is computed for all presets, and the series are
    empty. Without a peak in the job's precision the result is empty (``unit_times.find_rate_gaps`` has the
    gap). Without a batch, the job gets the largest power of two of tokens up to the break-even.
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
    """Add the series; the bytes of ``job_without_units``' units depend on the batch."""
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
    """Return the job on that hardware, with a number of tokens."""
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
    counts = list(_powers_of_two(min(tokens) / 2, max(tokens) * 2))
    states = total_state_bytes(job, Scheme.ZERO_3)
    return _known_points(
        _make_point(with_tokens(job, count), stack, states, ratio)
        for ratio in BANDWIDTH_RATIOS
        for count in counts
    )


def compute_world_points(job: Job, stack: UnitStack) -> tuple[SensitivityPoint, ...]:
    """Return points from one node on, doubling the data-parallel ranks; a device keeps its batch."""
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


def _powers_of_two(low: float, high: float) -> Iterator[int]:
    count = 1
    while count <= high:
        if count >= low:
            yield count
        count *= 2
