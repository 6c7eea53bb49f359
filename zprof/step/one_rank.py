"""Play one rank's schedule in exact times, assuming equal ranks, and model a measured step this way.

One thread runs the operations. The link carries one message after another in launch order; messages that
follow another message (``Launch.after``) use a second link. Times are integers or floats, as given.

A measured step is modelled as passes that compute, and one concurrent link:

    saving = exposed now - exposed(model, n times the size) + cost of launching 1 - 1/n of the messages

Exposed time that the model misses (wake-ups, copies, jitter) occurs with each message, so half of it is
assumed to remain. On a CPU rank, the computing thread also launches. This costs at least the launch spans,
and at most also the idle time, for work that follows a message. Simulated steps agreed with the result within
5 %.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
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
from zprof.step.traffic import Messages, StepTraffic

#: Prefetch depths of programs: none, the next unit, or several units.
_PREFETCH_DEPTHS = (0, 1, 2, 3)
#: On a CPU rank launching a large message takes long (82 ms for 49 MiB) because it copies, in proportion to
#: the bytes. A small one takes up to this long if cores are oversubscribed.
_LAUNCH_NS = 1_000_000
_ERROR_RATIO = 0.05
_MISSED_RATIO = 0.5
#: Below this share of the step, the midpoint of a saving is a guess.
MIN_SURE_RATIO = 0.02
#: Message sizes to try, as multiples of the current one.
SIZE_MULTIPLES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


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
    is the same as in the previous pass and was dropped after it, so it cannot be gathered earlier.
    """

    compute_ns: float
    gather_ns: float = 0.0
    reduce_ns: float = 0.0
    replicate_ns: float = 0.0
    turns: bool = False


def modelled_exposed_ns(passes: Sequence[TimedPass], ahead: int) -> float:
    """Return the passes' time beyond their compute, with ``ahead`` units prefetched."""
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


def list_timed_passes(traffic: StepTraffic, times: float) -> list[TimedPass]:
    """Return a step's passes with units, or buckets, ``times`` as large."""
    gather = traffic.gathers.sized(times) if traffic.gathers else 0.0
    reduce = traffic.reduces.sized(times) if traffic.reduces else 0.0
    gathers = _count_messages(traffic.gathers, times) if traffic.before else 0
    reduces = _count_messages(traffic.reduces, times)
    forward, again = _split_passes(gathers, reduces)
    turns = again and _count_messages(traffic.gathers, 1) >= 2 * _count_messages(traffic.reduces, 1)
    each = traffic.compute_ns / (forward + 2 * max(1, reduces))
    passes = [TimedPass(compute_ns=each, gather_ns=gather if gathers else 0.0) for _ in range(forward)]
    passes += [
        TimedPass(
            compute_ns=2 * each,
            gather_ns=gather if again else 0.0,
            reduce_ns=reduce,
            turns=turns and number == 0,
        )
        for number in range(reduces)
    ]
    return passes


def gather_again(traffic: StepTraffic) -> StepTraffic:
    """Return the same traffic with units gathered again for their backward pass.

    Unchanged if they already are, or if nothing is gathered for the passes.
    """
    if traffic.gathers is None or traffic.reduces is None or not traffic.before:
        return traffic
    if _split_passes(_count_messages(traffic.gathers, 1), _count_messages(traffic.reduces, 1))[1]:
        return traffic
    return replace(traffic, gathers=replace(traffic.gathers, count=2 * traffic.gathers.count))


def sum_closing_gathers_ns(traffic: StepTraffic, times: float) -> float:
    """Return the time of the gathers of new parameters after the update, which nothing hides."""
    if traffic.before or traffic.gathers is None:
        return 0.0
    return _count_messages(traffic.gathers, times) * traffic.gathers.sized(times)


def _count_messages(messages: Messages | None, times: float) -> int:
    return max(1, round(messages.count / times)) if messages else 0


def _split_passes(gathers: int, reduces: int) -> tuple[int, bool]:
    """Return the number of forward passes, and whether the backward pass gathers again."""
    again = gathers >= 1.5 * reduces
    forward = gathers - reduces if again and reduces else gathers
    return max(1, forward), again and bool(reduces)


class StepModel(Struct, frozen=True, kw_only=True):
    """A measured step's model: exposed part of its traffic, prefetch depth, and the time missed by the
    model.
    """

    traffic: StepTraffic
    ahead: int
    exposed_ns: float
    missed_ns: float
    idle_ns: float

    @property
    def forward_ns(self) -> float:
        """Compute of one forward pass, assuming that a backward pass takes twice as long."""
        return list_timed_passes(self.traffic, 1)[0].compute_ns

    def then_ns(self, times: float) -> tuple[float, float]:
        """Return the exposed time with messages ``times`` as large: lower and upper bound."""
        least, most = self.shown_ns(list_timed_passes(self.traffic, times))
        after = sum_closing_gathers_ns(self.traffic, times)
        return (least + after, most + after)

    def shown_ns(self, passes: Sequence[TimedPass]) -> tuple[float, float]:
        """Return the passes' exposed time if the gather between forward and backward is hidden, and if not.

        Some engines delay this gather until the unit is freed.
        """
        hidden = [replace(one, turns=False) for one in passes]
        return (modelled_exposed_ns(hidden, self.ahead), modelled_exposed_ns(passes, self.ahead))

    def saving_ns(self, sizes: Sequence[float]) -> tuple[float, float]:
        """Return lower and upper bound of the saving over these sizes."""
        bounds = [self._saving(times) for times in sizes]
        return self.bounded(min(low for low, _ in bounds), max(high for _, high in bounds))

    def _saving(self, times: float) -> tuple[float, float]:
        least, most = self.then_ns(times)
        gone = 1 - 1 / times
        launch = self.traffic.launch_ns * gone
        # more messages are launched while the link is busy, and may cost nothing
        idle = max(0.0, launch, launch + self.idle_ns * gone) if self.traffic.launch_ns else 0.0
        low = self.exposed_ns - most - _MISSED_RATIO * self.missed_ns + launch
        return (low, self.exposed_ns - least + idle)

    def bounded(self, low: float, high: float) -> tuple[float, float]:
        """Return the range widened by the model's error, limited to 0 and the exposed time."""
        launched = self.traffic.launch_ns
        most = self.exposed_ns + (self.idle_ns + launched if launched else 0.0)
        high = min((1 + _ERROR_RATIO) * high, most)
        return (max(0.0, min((1 - _ERROR_RATIO) * low, high)), max(0.0, high))


def model_step(analysis: RunAnalysis, traffic: StepTraffic) -> StepModel:
    """Model a run's step."""
    seen = traffic.exposed_ns
    passes = list_timed_passes(traffic, 1)
    ahead = infer_prefetch_depth(passes, seen - sum_closing_gathers_ns(traffic, 1))
    modelled = modelled_exposed_ns(passes, ahead) + sum_closing_gathers_ns(traffic, 1)
    return StepModel(
        traffic=traffic,
        ahead=ahead,
        exposed_ns=seen,
        missed_ns=max(0.0, seen - modelled),
        idle_ns=float(analysis.steps.ints("idle_ns").mean()) if len(analysis.steps) else 0.0,
    )


def is_guess(saving: tuple[float, float], wall: float) -> bool:
    """Return True if the saving may be 0, or is below 2 % of the step."""
    return saving[0] <= 0 or sum(saving) / 2 < MIN_SURE_RATIO * wall


def sizes_that_help(step: StepModel, most: float) -> Iterable[float]:
    """Return the sizes from the most helpful multiple to four times this multiple, up to ``most``."""
    sizes = [times for times in SIZE_MULTIPLES if times <= most]
    if not sizes:
        return ()
    shown = {times: step.then_ns(times)[1] for times in sizes}
    best = min(sizes, key=lambda times: (shown[times], times))
    return [times for times in sizes if best <= times <= 4 * best]


def limit_launch_cost(traffic: StepTraffic) -> StepTraffic:
    """Return the traffic with launch costs that do not depend on the size of a message."""
    gathers, reduces = (
        messages and replace(messages, launch_ns=min(messages.launch_ns, messages.count * _LAUNCH_NS))
        for messages in (traffic.gathers, traffic.reduces)
    )
    return replace(traffic, gathers=gathers, reduces=reduces)
