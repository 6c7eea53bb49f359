"""What a rank did when, as the ledger needs it: compute, waits, copies, and what the device ran.

Which events are which is decided in :mod:`host` for ranks that compute on the CPU, and in :mod:`device`.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from zprof.analysis.intervals import EMPTY, Int64s, Intervals
from zprof.analysis.time.activity.named import NamedWork
from zprof.analysis.time.clocks.offsets import RankClock


def _no_times() -> Int64s:
    return np.empty(0, dtype=np.int64)


def _no_spans() -> Intervals:
    return EMPTY


def _no_kernels() -> Int64s:
    return np.empty((0, 3), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """What the device says of steps: from its first to its last work for one, a row a stream and step."""

    number: Int64s = field(default_factory=_no_times)
    spans: Intervals = field(default_factory=_no_spans)
    stream: Int64s = field(default_factory=_no_times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a rank did when.  ``coverage`` spans its first to its last event.

    On a CPU: ``waits`` are when the main thread was blocked for a collective; ``anonymous_waits`` those of
    them, outside all others, that do not say which.

    On a device: ``work`` is all that it ran, ``nameless`` the communication kernels that no collective
    stands for.  ``launched`` is launch and end of all work whose call is in the trace; for the rest
    ``unlaunched`` is when it ran and ``unlaunched_stream`` where, ``steps`` what the device says of steps.
    ``lost_launches``: when kernels were launched that the trace does not hold, because it ends before them.
    ``first_call``: the first call of the host into the device's driver, if any.
    ``awaits_until``, for each interval of ``compute``: it can only have waited for collectives that were
    launched before this.  ``kernels``: launch, start and end of each compute kernel, in place of an unseen
    launch the start; ``kernel_stream`` its stream.  ``named``: the same, or on a CPU the operators, by name.
    """

    on_device: bool
    compute: Intervals
    waits: Intervals
    anonymous_waits: Intervals
    copies: Intervals
    coverage: Intervals
    launched: Intervals
    work: Intervals = field(default_factory=_no_spans)
    nameless: Intervals = field(default_factory=_no_spans)
    unlaunched: Intervals = field(default_factory=_no_spans)
    unlaunched_stream: Int64s = field(default_factory=_no_times)
    lost_launches: Int64s = field(default_factory=_no_times)
    first_call: Intervals = field(default_factory=_no_spans)
    steps: DeviceSteps = field(default_factory=DeviceSteps)
    awaits_until: Int64s = field(default_factory=_no_times)
    kernels: Int64s = field(default_factory=_no_kernels)
    kernel_stream: Int64s = field(default_factory=_no_times)
    named: NamedWork = field(default_factory=NamedWork)

    def on(self, clock: RankClock) -> "Activity":
        """The same on the common clock."""
        return replace(
            self,
            compute=clock.common(self.compute),
            waits=clock.common(self.waits),
            anonymous_waits=clock.common(self.anonymous_waits),
            copies=clock.common(self.copies),
            coverage=clock.common(self.coverage),
            launched=clock.common(self.launched),
            work=clock.common(self.work),
            nameless=clock.common(self.nameless),
            unlaunched=clock.common(self.unlaunched),
            lost_launches=clock.common(self.lost_launches),
            first_call=clock.common(self.first_call),
            steps=replace(self.steps, spans=clock.common(self.steps.spans)),
            awaits_until=clock.common(self.awaits_until),
            kernels=clock.common(self.kernels),
            named=self.named.on(clock),
        )
