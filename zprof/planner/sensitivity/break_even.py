"""Compute the tokens per device and micro-batch at which compute starts to hide ZeRO-3's traffic.

Without latency, a unit of psi elements takes 2 psi T / (F eta) to compute and b psi / beta to gather, so

    forward     T* = b F eta / (2 beta), F eta / beta at 2 bytes
    backward    (b_gather + b_reduce) F eta / (2 k beta), k = 2, or 3 with recomputation: then 2/3 T*

for any model size, with beta the bandwidth of the data-parallel group. The full step, including latency and
the parts that cannot be overlapped (the first gather, the last reduction), comes from the step model.
"""

from collections.abc import Iterator

from zprof.model.job import Hardware, Job
from zprof.model.plan import BreakEven, Scheme
from zprof.planner.planned_step import plan_stack_step
from zprof.planner.sensitivity.conditions import with_bandwidth, with_ranks, with_tokens
from zprof.planner.unit_times import UnitStack, achieved_flops_per_s
from zprof.step.planned_links import make_data_group

#: A step "holds" if it keeps this share of the speed it would have with free gathers and reductions. The
#: threshold is a choice; 0.97 would need about 8 % fewer tokens.
MIN_SPEED_RATIO = 0.99
BANDWIDTH_RATIOS = (1.0, 0.75, 0.5)
#: Upper bound of the search.
_MAX_TOKENS = 1 << 26


def compute_break_even(job: Job, hardware: Hardware, stack: UnitStack | None) -> Iterator[BreakEven]:
    """Yield the break-even at each bandwidth; ``job`` must use ``hardware``.

    Yields nothing for a single data-parallel rank, which communicates nothing, or if the peak in the job's
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
