"""Play the schedule of one rank in exact times, where all ranks are alike: no delays, no waits for others.

One thread runs the operations. The link carries one message after another in launch order; messages that
follow another one (``Launch.after``) have a second link. Times are integers or floats, as they are given.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from zprof.step.schedule import (
    UNLIMITED,
    Await,
    Compute,
    EnginePolicy,
    Launch,
    Op,
    Pass,
    PassPhase,
    UnitSize,
    build_program,
)

#: Prefetch depths of programs: none, the next unit, or some more.
_PREFETCH_DEPTHS = (0, 1, 2, 3)


def play_one_rank(
    ops: Sequence[Op], compute_ns: Callable[[Compute], float], message_ns: Callable[[Launch], float]
) -> float:
    """Return the time from the first operation to the last."""
    host: float = 0
    free: dict[bool, float] = {False: 0, True: 0}
    ends: dict[str, float] = {}
    for op in ops:
        if isinstance(op, Compute):
            host += compute_ns(op)
        elif isinstance(op, Launch):
            link = bool(op.after)
            ends[op.key] = free[link] = max(free[link], host, ends.get(op.after, 0)) + message_ns(op)
        elif isinstance(op, Await):
            host = max(host, ends.get(op.key, 0))
    return host


class TimedPass(Struct, frozen=True, kw_only=True):
    """One pass over one unit, with the times of its messages.

    ``replicate_ns``: time of the all_reduce after its reduction on another link (HSDP). ``turns``: the unit
    is that of the previous pass and was dropped after it, so nothing can gather it earlier.
    """

    compute_ns: float
    gather_ns: float = 0.0
    reduce_ns: float = 0.0
    replicate_ns: float = 0.0
    turns: bool = False


def modelled_exposed_ns(passes: Sequence[TimedPass], ahead: int) -> float:
    """Return the time of the passes beyond their compute, with ``ahead`` units prefetched."""
    units = [
        UnitSize(
            name="",
            gather_bytes=one.gather_ns,
            reduce_bytes=one.reduce_ns,
            replicate_bytes=one.replicate_ns,
        )
        for one in passes
    ]
    turn = next((number for number, one in enumerate(passes) if one.turns), len(passes))
    scheduled = [
        Pass(
            phase=PassPhase.FORWARD if number < turn else PassPhase.BACKWARD,
            unit=number,
            needs=one.gather_ns > 0,
            reduces=one.reduce_ns > 0,
        )
        for number, one in enumerate(passes)
    ]
    policy = EnginePolicy(
        stage=3, prefetch=ahead, keep="none", overlap_reduce=True, overlap_gather=True, in_flight=UNLIMITED
    )
    computes = [one.compute_ns for one in passes]
    wall_ns = play_one_rank(
        build_program(units, scheduled, policy),
        lambda compute: computes[compute.what] if compute.what >= 0 else 0,
        lambda message: message.bytes,  # sizes are given as times
    )
    return wall_ns - sum(computes)


def infer_prefetch_depth(passes: Sequence[TimedPass], seen_ns: float) -> int:
    """Return the prefetch depth whose modelled exposed time is closest to the measured one."""
    return min(
        _PREFETCH_DEPTHS,
        key=lambda depth: (abs(modelled_exposed_ns(passes, depth) - seen_ns), abs(depth - 1)),
    )
