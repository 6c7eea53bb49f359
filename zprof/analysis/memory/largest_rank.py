"""Find the rank with the largest peak, and measure what a change would free of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.signal import Untested
from zprof.analysis.user_code import find_user_frame
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.memory import Allocation, Basis, DeviceMemory, MemoryPart, PhasePeak, RankMemory
from zprof.model.tenants import Tenant

#: Returns the bytes that a change removes in a phase, given its name and each tenant's bytes at its peak.
Removable = Callable[[str, Mapping[Tenant, int]], float]
RESERVED_PEAK = "reserved peak"
#: One text for all causes that need these, so that their gaps merge.
MISSING_FACTS = Untested(
    reason="the sharding stage, its ranks, the number of parameters or their bytes are unknown",
    remedy="pass the recorder the model, or the facts: zprof.record(training=TrainingFacts(...))",
)
MISSING_DEVICE = Untested(
    reason="the GPU's allocator and driver were not sampled at the peak",
    remedy="record on the GPU machine with the memory window on: zprof.steps(memory=2)",
)


class LargestRank(Struct, frozen=True, kw_only=True):
    """The largest rank's peak, the peaks of its phases, its largest allocations and its device samples."""

    memory: RankMemory
    phases: tuple[PhasePeak, ...]
    top: tuple[Allocation, ...]
    devices: tuple[DeviceMemory, ...]

    @property
    def peak_bytes(self) -> int:
        """Peak in bytes; at least 1, so that shares of it can be taken."""
        return max(1, self.memory.peak_bytes)

    @property
    def rank(self) -> int:
        """Number of the rank."""
        return self.memory.rank

    @property
    def on_gpu(self) -> bool:
        """True if the memory is on an accelerator."""
        return self.memory.device != "cpu"

    @property
    def total_bytes(self) -> int | None:
        """Memory of the device in bytes, None if it was not sampled."""
        return max((device.device_total_bytes or 0 for device in self.devices), default=0) or None

    def at_reserved_peak(self) -> DeviceMemory | None:
        """Return the device sample at the allocator's maximum, None if it was not sampled."""
        return next((device for device in self.devices if device.moment == RESERVED_PEAK), None)

    def of(self, tenant: Tenant) -> int:
        """Return a tenant's bytes at the peak."""
        return self.memory.tenants.get(tenant, 0)

    def uncertain_ratio(self, *tenants: Tenant) -> float:
        """Return the share of these tenants' bytes whose owner is uncertain, 0 if unknown."""
        names = {tenant.value for tenant in tenants}
        parts = [part for part in self.memory.parts if part.tenant in names]
        if sum(part.bytes for part in parts):
            return measure_uncertain_ratio(parts)
        basis = self.memory.basis_bytes
        return 1 - basis.get(Basis.TAGGED, 0) / self.peak_bytes if basis else 0.0

    def estimate_peak_reduction(self, removable: Removable) -> float:
        """Return the maximum reduction of the peak: a different phase may then be the highest.

        peak - max over the phases of (their peak - what the change removes there)
        """
        moments = [(self.memory.peak_phase, self.memory.tenants, self.memory.peak_bytes)]
        moments += [(phase.phase, phase.tenants, phase.peak_bytes) for phase in self.phases]
        after = max(size - max(0.0, removable(phase, held)) for phase, held, size in moments)
        return max(0.0, self.memory.peak_bytes - after)


#: Weight of a byte's owner among the uncertain ones, without a hook or tag.
_UNCERTAINTY = {Confidence.HIGH: 0.0, Confidence.MEDIUM: 0.5, Confidence.LOW: 1.0, None: 1.0}


def measure_uncertain_ratio(parts: Sequence[MemoryPart | Allocation]) -> float:
    """Return the share of bytes whose owner is uncertain; a likely owner counts half."""
    sizes = [part.held_bytes if isinstance(part, Allocation) else part.bytes for part in parts]
    weights = [0.0 if part.basis is Basis.TAGGED else _UNCERTAINTY[part.confidence] for part in parts]
    return sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / max(1, sum(sizes))


def find_largest_rank(analysis: RunAnalysis) -> LargestRank | None:
    """Return the rank with the largest peak, None if no rank's memory was recorded."""
    memory = analysis.memory
    if not memory.per_rank:
        return None
    rank = max(memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank))
    return LargestRank(
        memory=rank,
        phases=tuple(phase for phase in memory.phases if phase.rank == rank.rank),
        top=tuple(entry for entry in memory.top if entry.rank == rank.rank),
        devices=tuple(device for device in memory.devices if device.rank == rank.rank),
    )


#: Minimum bytes that a change frees, as a share of the peak and in total, to be worth a finding.
_MIN_STEP_RATIO = 0.01
_WORTH_BYTES = 1 << 20
#: Share of bytes attributed by rules about stacks and sizes above which the confidence is limited.
_GUESSED_RATIO = 0.10
_MOSTLY_GUESSED_RATIO = 0.50

_CONFIDENCE_ORDER = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def is_worth(saving_bytes: float, big: LargestRank) -> bool:
    """Return True if the bytes are worth a finding: at least 1 % of the peak, and 1 MiB."""
    return saving_bytes >= max(_WORTH_BYTES, _MIN_STEP_RATIO * big.peak_bytes)


def cap_confidence(confidence: Confidence, limit: Confidence) -> Confidence:
    """Return the lower of the two."""
    return min(confidence, limit, key=_CONFIDENCE_ORDER.index)


def limit_confidence(confidence: Confidence, big: LargestRank, uncertain_ratio: float) -> Confidence:
    """Return the confidence that the recording supports.

    It is limited if tenants were attributed by rules, or if the peak is an upper bound.
    """
    if uncertain_ratio > _MOSTLY_GUESSED_RATIO:
        return Confidence.LOW
    if uncertain_ratio > _GUESSED_RATIO or big.memory.upper_bound:
        return cap_confidence(confidence, Confidence.MEDIUM)
    return confidence


def locate_allocation(analysis: RunAnalysis, rows: Iterable[Allocation]) -> SourceLocation | None:
    """Return the user's line that made the largest of these allocations whose stack is known."""
    folder = analysis.source.manifest.folder if analysis.source is not None else ""
    for row in sorted(rows, key=lambda row: -(row.total_bytes or row.bytes)):
        location = find_user_frame(row.stack, folder)
        if location is not None:
            return location
    return None


#: Ratio of the most activations of two runs up to which they did the same work.
_MAX_SIZE_FACTOR = 1.25


def did_same_work(
    analysis: RunAnalysis, largest: LargestRank, baseline: RunAnalysis, before: LargestRank
) -> bool:
    """Return True if both runs have the same model, ranks and micro-batches, and similar activations."""
    mine, theirs = analysis.training, baseline.training
    is_same = mine.parameters == theirs.parameters and mine.micro_batches == theirs.micro_batches
    is_same = is_same and analysis.run.world_size == baseline.run.world_size
    ours, others = _max_activations(analysis, largest), _max_activations(baseline, before)
    return is_same and max(ours, others) <= _MAX_SIZE_FACTOR * max(1, min(ours, others))


def _max_activations(analysis: RunAnalysis, largest: LargestRank) -> int:
    """Return the maximum activations at any time, because a stage can move the peak."""
    held = [phase.tenants.get(Tenant.ACTIVATIONS, 0) for phase in largest.phases]
    for timeline in analysis.memory.timelines:
        if timeline.rank == largest.rank:
            held += timeline.tenants.get(Tenant.ACTIVATIONS.value, ())
    return max([largest.of(Tenant.ACTIVATIONS), *held])
