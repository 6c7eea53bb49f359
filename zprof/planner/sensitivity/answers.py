"""Write sentences about the sensitivity of a job.

The working set is the sharded states plus the units gathered at the same time. arXiv 1910.02054 does not
include the latter in its 15.6 GB for 1e12 parameters on 1024 devices.
"""

from collections.abc import Iterator, Sequence

from zprof.model.job import Hardware, Job
from zprof.model.plan import BreakEven, Scheme, SpeedUp
from zprof.planner.memory.closed_forms import gathered_bytes
from zprof.planner.memory.device_memory import plan_memory
from zprof.planner.memory.states import total_state_bytes
from zprof.planner.sensitivity.break_even import compute_speed_ratio
from zprof.planner.sensitivity.conditions import split_units, with_bandwidth, with_latency
from zprof.planner.step.collectives import make_data_group
from zprof.planner.step.ledger import plan_stack_step
from zprof.planner.step.unit_times import UnitStack

#: Hop latency of a fast and of a slow network.
_FAST_NS, _SLOW_NS = 10_000, 100_000
#: Units a quarter of the size: roughly one matrix of a block each.
_SPLIT_FACTOR = 4
_HALF = 0.5
#: Smaller ratios print as 1.00 with two decimals.
_SUPER_LINEAR_RATIO = 1.005


def write_answers(
    job: Job, hardware: Hardware, stack: UnitStack | None, even: Sequence[BreakEven]
) -> Iterator[str]:
    """Yield the sentences for one kind of hardware: whether the speed holds, then whether the job fits.

    ``job`` must use ``hardware`` and have a number of tokens.
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
    """Yield the speed-up from the smallest world size at which a sample fits to the largest."""
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
    """Return the memory verdict: from the peak if it is known, else from states and gathered units."""
    sizes = [term.bytes for term in plan_memory(job, Scheme.ZERO_3).terms]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return _write_partial_fit_sentence(start, job, hardware)
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


def _write_partial_fit_sentence(start: str, job: Job, hardware: Hardware) -> str:
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


def _format_share(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"
