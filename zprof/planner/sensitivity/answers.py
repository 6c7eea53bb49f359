"""Express the sensitivity of a job in sentences.

The working set is the sharded states plus the units gathered at the same time. arXiv 1910.02054 leaves the
latter out of its 15.6 GB for 1e12 parameters on 1024 devices.
"""

from collections.abc import Iterator, Sequence

from zprof.model.job import Hardware, Job
from zprof.model.plan import BreakEven, Scheme, SpeedUp
from zprof.planner.memory.closed_forms import gathered_bytes
from zprof.planner.memory.device_memory import plan_memory
from zprof.planner.memory.states import total_state_bytes
from zprof.planner.sensitivity.break_even import kept_speed_ratio
from zprof.planner.sensitivity.conditions import split_units, with_bandwidth, with_latency
from zprof.planner.step.collectives import data_group
from zprof.planner.step.ledger import plan_step_of_stack
from zprof.planner.step.unit_times import Stack

#: Hop latency of a fast and of a slow network.
_FAST_NS, _SLOW_NS = 10_000, 100_000
#: Units a quarter of the size: roughly one matrix of a block each.
_PARTS = 4
_HALF = 0.5
#: Below this, two decimals print 1.00.
_SUPER_LINEAR_RATIO = 1.005


def answer_sentences(
    job: Job, hardware: Hardware, stack: Stack | None, even: Sequence[BreakEven]
) -> Iterator[str]:
    """Yield the sentences for one kind of hardware: whether the speed holds, then whether the job fits.

    ``job`` has that hardware and a number of tokens.
    """
    devices = f"{job.degrees.devices:,} {'device' if job.degrees.devices == 1 else 'devices'}"
    start = f"{hardware.name}, {devices}"
    group = data_group(hardware, job.degrees)
    if group.ranks == 1:
        yield f"{start}: one data-parallel rank, so that ZeRO shards and moves nothing."
    elif group.nodes == 1:
        yield from _single_node_sentence(start, even[0])
    else:
        yield from (
            _holding_sentence(start, job, found, stack) for found in even if found.bandwidth_ratio == _HALF
        )
    if stack is not None:
        yield _fit_sentence(start, job, hardware)
    if group.nodes > 1:
        yield from _hiding_sentences(start, job, stack, even)


def compare_hardware(job: Job, kinds: Sequence[Hardware], even: Sequence[BreakEven]) -> Iterator[str]:
    """Yield a comparison of hardware: the tokens from which each kind holds at half the bandwidth."""
    across = {kind.name for kind in kinds if data_group(kind, job.degrees).nodes > 1}
    half = [row for row in even if row.bandwidth_ratio == _HALF and row.holds_from_tokens is not None]
    half = [row for row in half if row.hardware in across]
    if len(half) < 2:
        return
    each = [f"{row.holds_from_tokens:,} ({row.hardware})" for row in half]
    yield (
        f"ZeRO-3 on {job.degrees.devices:,} devices holds at half the bandwidth (keeps "
        f"{_format_share(half[0].kept_ratio)} of its speed) from {', '.join(each[:-1])} or {each[-1]} "
        "tokens of a "
        "device in a micro-batch on, and not with fewer."
    )


def speed_up_sentences(rows: Sequence[SpeedUp]) -> Iterator[str]:
    """Yield the speed-up from the smallest world in which a sample fits to the largest."""
    if len(rows) < 2:
        return
    first, last = rows[0], rows[-1]
    kind = "super-linear" if last.whole_ratio >= _SUPER_LINEAR_RATIO else "not super-linear"
    bound = " (at most: a part of the memory is unknown)" if first.at_most or last.at_most else ""
    yield (
        f"With the most samples of a micro-batch that fit{bound}, {first.samples:,} on {first.devices:,} "
        f"devices and {last.samples:,} on {last.devices:,}, a device's throughput changes by "
        f"{last.whole_ratio:.2f} ({kind}): {last.equal_batch_ratio:.2f} with {first.samples:,} on both, "
        f"times {last.larger_batch_ratio:.2f} by {last.samples:,} instead. What kernels gain from larger "
        "matrices is not in it; the table of world sizes keeps the job's own batch."
    )


def _single_node_sentence(start: str, even: BreakEven) -> Iterator[str]:
    """Yield the sentence for a single node, where no network takes part."""
    holds = even.holds_from_tokens
    kept = (
        ""
        if holds is None
        else f", and the step keeps {_format_share(even.kept_ratio)} of its speed from {holds:,} on"
    )
    yield (
        f"{start}: ZeRO-3 stays within a node, so that the network between nodes does not matter. Compute "
        f"hides a unit's gather from {even.forward_tokens:,.0f} tokens of a device in a micro-batch on{kept}."
    )


def _hiding_sentences(start: str, job: Job, stack: Stack | None, even: Sequence[BreakEven]) -> Iterator[str]:
    each = [
        f"{row.forward_tokens:,.0f} (at {_format_share(row.bandwidth_ratio)} of the bandwidth)"
        for row in even
    ]
    yield (
        f"{start}: compute hides a unit's gather from {', '.join(each[:-1])} or {each[-1]} tokens of a "
        "device in a micro-batch on."
    )
    if stack is not None and (sentence := _latency_sentence(start, job, stack)):
        yield sentence


def _holding_sentence(start: str, job: Job, even: BreakEven, stack: Stack | None) -> str:
    kept, at_half = f"{_format_share(even.kept_ratio)} of its speed", f"{start}: at half the bandwidth ZeRO-3"
    if stack is None:
        return (
            f"{at_half} hides its gathers from {even.forward_tokens:,.0f} tokens of a device in a "
            "micro-batch on; what the whole step keeps needs the model's shape."
        )
    if even.holds_from_tokens is None:
        return f"{at_half} does not keep {kept} at any number of tokens."
    now = kept_speed_ratio(with_bandwidth(job, _HALF), stack)
    at_job = "" if now is None else f" With {job.batch.tokens:,} tokens it keeps {_format_share(now)}."
    start_at = f"from {even.holds_from_tokens:,} tokens of a device in a micro-batch on"
    return f"{at_half} keeps {kept} {start_at}.{at_job}"


def _latency_sentence(start: str, job: Job, stack: Stack) -> str | None:
    times = [
        plan_step_of_stack(with_latency(job, latency), Scheme.ZERO_3, units)
        for units in (stack, split_units(stack, _PARTS))
        for latency in (_FAST_NS, _SLOW_NS)
    ]
    walls = [_format_time(step.wall_ns) for step in times if step is not None]
    if len(walls) < len(times):
        return None
    return (
        f"{start}, {job.batch.tokens:,} tokens: {_SLOW_NS // 1000} µs a hop between nodes instead of "
        f"{_FAST_NS // 1000} µs makes a step of {walls[0]} one of {walls[1]}; with units a quarter as large, "
        f"{walls[2]} one of {walls[3]}."
    )


def _fit_sentence(start: str, job: Job, hardware: Hardware) -> str:
    """Return the memory verdict: by the whole peak if it is known, else by states and gathered units."""
    sizes = [term.bytes for term in plan_memory(job, Scheme.ZERO_3).terms]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return _partial_fit_sentence(start, job, hardware)
    rest = hardware.memory_bytes - sum(known)
    verdict = (
        f"fits, {_format_size(rest)} is left" if rest >= 0 else f"does not fit, {_format_size(-rest)} short"
    )
    return (
        f"{start}, {job.batch.tokens:,} tokens: ZeRO-3 needs {_format_size(sum(known))} at its peak, of "
        f"{_format_size(hardware.memory_bytes)} on a device: {verdict}."
    )


def _partial_fit_sentence(start: str, job: Job, hardware: Hardware) -> str:
    states, gathered = total_state_bytes(job, Scheme.ZERO_3), gathered_bytes(job)
    rest = hardware.memory_bytes - states - gathered
    verdict = (
        f"{_format_size(rest)} is left for the rest"
        if rest >= 0
        else f"does not fit, {_format_size(-rest)} short"
    )
    return (
        f"{start}: ZeRO-3 needs {_format_size(states)} of states and {_format_size(gathered)} of "
        "gathered units, of "
        f"{_format_size(hardware.memory_bytes)} on a device: {verdict}."
    )


def _format_share(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"


def _format_time(time_ns: int) -> str:
    return f"{time_ns / 1e9:,.1f} s" if time_ns >= 1e9 else f"{time_ns / 1e6:,.1f} ms"
