"""The series, said in sentences.

Working set: sharded states and 1 + prefetch gathered units, which arXiv 1910.02054 leaves out of its 15.6 GB
for 1e12 parameters on 1024 devices.
"""

from collections.abc import Iterator, Sequence

from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Job
from zprof.model.planning.plan import Scheme
from zprof.model.planning.sensitivity import BreakEven
from zprof.planner.sensitivity.break_even import kept_of
from zprof.planner.sensitivity.conditions import in_parts, with_bandwidth, with_latency
from zprof.planner.sensitivity.states import gathered_bytes, state_bytes
from zprof.planner.step.ledger import step_with
from zprof.planner.step.runs import Stack

#: A network of low and one of high latency, a hop.
_FAST_NS, _SLOW_NS = 10_000, 100_000
#: Units a quarter as large: each matrix of a block by itself, about.
_PARTS = 4


def answers_of(job: Job, hardware: Hardware, stack: Stack | None, even: Sequence[BreakEven]) -> Iterator[str]:
    """For one kind of machine; ``job`` has it, and tokens."""
    devices = f"{job.degrees.devices} {'device' if job.degrees.devices == 1 else 'devices'}"
    start = f"{hardware.name}, {devices}"
    if not even:
        yield f"{start}: one data-parallel rank, so that ZeRO shards and moves nothing."
    for found in even:
        if found.bandwidth_ratio == 0.5:
            yield _holds(start, job, found, stack)
    if even:
        yield f"{start}: compute hides a unit's gather from {_list_of(even)} tokens of a device on."
    if stack is not None:
        if even and (sentence := _latency(start, job, stack)):
            yield sentence
        yield _fits(start, job, hardware, stack)


def _holds(start: str, job: Job, even: BreakEven, stack: Stack | None) -> str:
    kept = f"{even.kept_ratio:.0%} of its speed"
    at_half = f"{start}: at half the bandwidth ZeRO-3"
    if stack is None:
        return (
            f"{at_half} hides its gathers from {even.forward_tokens:.0f} tokens of a device in a micro-batch "
            "on; what the whole step keeps needs the model's shape."
        )
    if even.holds_from_tokens is None:
        return f"{at_half} does not keep {kept} at any number of tokens."
    now = kept_of(with_bandwidth(job, 0.5), stack)
    at_job = "" if now is None else f" With {job.batch.tokens} tokens it keeps {now:.0%}."
    start_at = f"from {even.holds_from_tokens} tokens of a device in a micro-batch on"
    return f"{at_half} keeps {kept} {start_at}.{at_job}"


def _list_of(even: Sequence[BreakEven]) -> str:
    """Break-even at each bandwidth."""
    each = [f"{found.forward_tokens:.0f} ({found.bandwidth_ratio:.0%} of the bandwidth)" for found in even]
    return f"{', '.join(each[:-1])} or {each[-1]}" if len(each) > 1 else each[0]


def _latency(start: str, job: Job, stack: Stack) -> str | None:
    times = [
        step_with(with_latency(job, latency), Scheme.ZERO_3, units)
        for units in (stack, in_parts(stack, _PARTS))
        for latency in (_FAST_NS, _SLOW_NS)
    ]
    walls = [_seconds(step.wall_ns) for step in times if step is not None]
    if len(walls) < len(times):
        return None
    return (
        f"{start}, {job.batch.tokens} tokens: {_SLOW_NS // 1000} us a hop between nodes instead of "
        f"{_FAST_NS // 1000} makes a step of {walls[0]} one of {walls[1]}; with units a quarter as large, "
        f"{walls[2]} one of {walls[3]}."
    )


def _fits(start: str, job: Job, hardware: Hardware, stack: Stack) -> str:
    states, gathered = state_bytes(job, stack, stage=3), gathered_bytes(job, stack)
    rest = hardware.memory_bytes - states - gathered
    verdict = f"{_gb(rest)} is left for the rest" if rest >= 0 else f"does not fit, {_gb(-rest)} short"
    return (
        f"{start}: ZeRO-3 needs {_gb(states)} of states and {_gb(gathered)} of gathered units, of "
        f"{_gb(hardware.memory_bytes)} on a device: {verdict}."
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:.1f} s" if time_ns >= 1e9 else f"{time_ns / 1e6:.1f} ms"
