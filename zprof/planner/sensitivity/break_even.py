"""Compute the tokens per device and micro-batch from which compute hides ZeRO-3's traffic.

Without latency, a unit of psi elements takes 2 psi T / (F eta) to compute and b psi / beta to gather, so

    forward     T* = b F eta / (2 beta), F eta / beta at 2 bytes
    backward    (b_gather + b_reduce) F eta / (2 k beta), k = 2, or 3 with recomputation: then 2/3 T*

for any model size, with beta the bandwidth of the data-parallel group. The whole step, with latency and with
the parts that nothing can hide (the first gather, the last reduction), comes from the step model.
"""

from collections.abc import Iterator

from zprof.model.job import Hardware, Job
from zprof.model.plan import BreakEven, Scheme
from zprof.planner.sensitivity.conditions import with_bandwidth, with_ranks, with_tokens
from zprof.planner.step.collectives import data_group
from zprof.planner.step.ledger import plan_step_of_stack
from zprof.planner.step.unit_times import Stack, reached_flops_per_s

#: A step "holds" if it keeps this share of the speed it would have with free gathers and reductions. This is
#: a judgement: at 0.97, the tokens would be about 8 % fewer.
KEPT_RATIO = 0.99
BANDWIDTHS = (1.0, 0.75, 0.5)
#: Upper end of the search: no device has more tokens at once.
_MOST_TOKENS = 1 << 26


def compute_break_even(job: Job, hardware: Hardware, stack: Stack | None) -> Iterator[BreakEven]:
    """Yield the break-even at each bandwidth; ``job`` has that hardware.

    Yields nothing for a single data-parallel rank, which moves nothing, or if the peak in the job's precision
    is unknown.
    """
    rate = reached_flops_per_s(job, hardware)
    if job.degrees.dp == 1 or rate is None:
        return
    for ratio in BANDWIDTHS:
        slower = with_bandwidth(job, ratio)
        beta = data_group(slower.hardware or hardware, job.degrees).bytes_per_s
        gathered, reduced = job.element_bytes.gathered, job.element_bytes.reduced
        passes = 3 if job.residual.checkpointing else 2
        yield BreakEven(
            hardware=hardware.name,
            bandwidth_ratio=ratio,
            forward_tokens=gathered * rate / (2 * beta),
            backward_tokens=(gathered + reduced) * rate / (2 * passes * beta),
            holds_from_tokens=None if stack is None else find_min_tokens(slower, stack),
            kept_ratio=KEPT_RATIO,
        )


def find_min_tokens(job: Job, stack: Stack) -> int | None:
    """Return the fewest tokens with which the step keeps ``KEPT_RATIO``; None if it never does or is unknown.

    More tokens never lower the ratio: compute grows with them, a gather does not.
    """
    if not _keeps_speed(job, stack, _MOST_TOKENS):
        return None
    below, enough = 0, _MOST_TOKENS
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if _keeps_speed(job, stack, middle) else (middle, enough)
    return enough


def kept_speed_ratio(job: Job, stack: Stack) -> float | None:
    """Return the step's speed relative to that with free gathers and reductions; None if unknown."""
    found = plan_step_of_stack(job, Scheme.ZERO_3, stack)
    alone = plan_step_of_stack(with_ranks(job, 1), Scheme.ZERO_3, stack)
    if found is None or alone is None or not found.wall_ns:
        return None
    return alone.wall_ns / found.wall_ns


def _keeps_speed(job: Job, stack: Stack, tokens: int) -> bool:
    kept = kept_speed_ratio(with_tokens(job, tokens), stack)
    return kept is not None and kept >= KEPT_RATIO
