"""Find messages that are mostly latency, and distinguish slow links from units that are too small.

    share = count * latency / sum of times > 50 %      and their exposed time > 3 % of the step

Larger messages fix both, but the causes differ. Units are the cause if their names show more than three per
block (``layers.3.attn.wq`` is in ``layers.3``), or if the link's latency is normal. Otherwise the latency is
the cause. Up to 200 us is normal: ten times the time of a one-element all_reduce between eight GPUs of a host
in a public trace (18.6 us), which allows for rings over several hosts.
"""

import re
from collections.abc import Iterable
from statistics import median

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import find_missing_collectives, has_no_collectives, mean_wall_ns
from zprof.analysis.signal import Fact, Untested, make_fact, make_untested
from zprof.model.findings import Confidence
from zprof.step.links import measure_transfers
from zprof.step.one_rank import SIZE_MULTIPLES, StepModel, is_guess, model_step, sizes_that_help
from zprof.step.traffic import Messages, StepTraffic, read_step_traffic

LATENCY_RATIO = 0.50
WORTH_RATIO = 0.03
UNITS_PER_BLOCK = 3
ORDINARY_LATENCY_NS = 200_000
#: If the model misses more than this share of the exposed time, its confidence is low.
MISSED_RATIO = 0.5
SURE_COUNT = 10
#: Every message takes at least the latency: if one in ten takes less than half, the estimate is noise.
QUICK_SHARE, QUICKER_RATIO = 0.1, 0.5
#: Fewer units than this are worse than small ones.
MIN_UNITS = 4
#: Messages so large that latency is not half of their time on any link (64 MiB).
SURELY_LARGE_BYTES = 64 * 1024 * 1024


class SmallMessages(Struct, frozen=True, kw_only=True):
    """Messages that are mostly latency. ``per_block``: units per block, None if names do not show it.

    ``is_met``: True if the fastest messages also take about the latency.
    """

    step: StepModel
    latency_ratio: float
    latency_ns: float
    is_met: bool
    per_block: float | None
    wall_ns: float

    @property
    def units_are_at_fault(self) -> bool:
        """True if the units are the cause, not the link."""
        if not self.step.traffic.before:
            return False
        return self.are_parts or self.latency_ns <= ORDINARY_LATENCY_NS

    @property
    def are_parts(self) -> bool:
        """True if names show that units are parts of blocks."""
        return self.per_block is not None and self.per_block > UNITS_PER_BLOCK

    @property
    def sizes(self) -> tuple[float, ...]:
        """Multiples of the current size that fix it: full blocks if names show them, else the best sizes."""
        if self.per_block is not None and self.are_parts:
            return (self.per_block / 2, self.per_block)
        fewest = min(messages.count for messages in self.step.traffic.both)
        return tuple(sizes_that_help(self.step, max(fewest / MIN_UNITS, SIZE_MULTIPLES[0])))

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Saving per step with messages of those sizes."""
        return self.step.saving_ns(self.sizes)

    @property
    def is_worth_it(self) -> bool:
        """True if larger messages save enough of the step."""
        return bool(self.sizes) and self.saving_ns[1] >= WORTH_RATIO * self.wall_ns

    @property
    def facts(self) -> list[Fact]:
        """Counts, sizes and times of the messages, and what is exposed of them."""
        facts = []
        for messages in self.step.traffic.both:
            kind = messages.kind.value
            facts += [
                make_fact("{kind}_count_per_step", messages.count, kind=kind),
                make_fact("{kind}_bytes_median", messages.bytes, kind=kind),
                make_fact("{kind}_time_median", messages.each_ns, kind=kind),
                make_fact("{kind}_latency", messages.latency_ns or 0.0, kind=kind),
            ]
        facts += [
            make_fact("latency_share", self.latency_ratio),
            make_fact("exposed_transfer_per_step", self.step.exposed_ns),
        ]
        if self.step.traffic.launch_ns:
            launch = self.step.traffic.launch_ns
            facts.append(make_fact("launch_time_per_step", launch))
        return facts


def rate_small_messages(small: SmallMessages) -> Confidence:
    """Return the confidence of a finding about small messages.

    It is low if the saving may be close to 0, or if fast messages contradict the latency and no name supports
    it. It is high if the model of the step matches the measured one.
    """
    if is_guess(small.saving_ns, small.wall_ns) or not (small.is_met or small.are_parts):
        return Confidence.LOW
    met = small.step.missed_ns <= MISSED_RATIO * small.step.exposed_ns
    enough_seen = all(len(messages.rows) >= SURE_COUNT for messages in small.step.traffic.both)
    return Confidence.HIGH if met and enough_seen else Confidence.MEDIUM


def find_unknown_latency(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if exposed messages may be small and the latency is unknown, else None."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    traffic = read_step_traffic(analysis) if analysis.run.world_size > 1 else None
    if traffic is None or not _is_exposed(traffic, mean_wall_ns(analysis)):
        return None
    if traffic.latency_ratio is not None or max(m.bytes for m in traffic.both) > SURELY_LARGE_BYTES:
        return None
    return make_untested("latency_unknown")


def _is_exposed(traffic: StepTraffic, wall: float) -> bool:
    return traffic.exposed_ns + traffic.launch_ns > WORTH_RATIO * wall


def find_small_messages(analysis: RunAnalysis) -> SmallMessages | None:
    """Return the small messages of a run, None if messages are not mostly latency or cost nothing."""
    if has_no_collectives(analysis) or analysis.run.world_size == 1:
        return None
    traffic = read_step_traffic(analysis)
    wall = mean_wall_ns(analysis)
    if traffic is None or not _is_exposed(traffic, wall):
        return None
    ratio = traffic.latency_ratio
    if ratio is None or ratio <= LATENCY_RATIO:
        return None
    names = traffic.gathers.rows.texts("unit").list_distinct() if traffic.gathers is not None else None
    return SmallMessages(
        step=model_step(analysis, traffic),
        latency_ratio=ratio,
        latency_ns=max(messages.latency_ns or 0.0 for messages in traffic.both),
        is_met=all(_is_latency_confirmed(analysis, messages) for messages in traffic.both),
        per_block=None if names is None else count_units_per_block(names),
        wall_ns=wall,
    )


def _is_latency_confirmed(analysis: RunAnalysis, messages: Messages) -> bool:
    quick = float(np.quantile(measure_transfers(analysis, messages.rows).floats("elapsed_ns"), QUICK_SHARE))
    return quick >= QUICKER_RATIO * (messages.latency_ns or 0.0)


_BLOCK = re.compile(r"(?:[A-Za-z_]\w*\.)*\d+(?![^.\s\[])", re.ASCII)
#: Longer names are not module names.
_MAX_NAME_LENGTH = 1_000


def find_block(unit: str) -> str | None:
    """Return a unit's name up to its first number, None without one."""
    found = _BLOCK.match(unit[:_MAX_NAME_LENGTH])
    return found.group() if found else None


def count_units_per_block(units: Iterable[str]) -> float | None:
    """Return the median number of distinct units per block, None if no name shows a block."""
    blocks: dict[str, int] = {}
    for unit in sorted(set(units)):
        block = find_block(unit)
        if block is not None:
            blocks[block] = blocks.get(block, 0) + 1
    return float(median(blocks.values())) if blocks else None
