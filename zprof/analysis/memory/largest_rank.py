"""Find the rank with the largest peak, what a change would free there, and the model's structure.

The structure (blocks, units, sharding, logits) follows from module names and training facts. Names come from
the program and are untrusted: they are compared, and escaped before they are shown.
"""

import bisect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis, make_untested
from zprof.base.formatting import printable, shorten
from zprof.model.findings import Confidence, SourceLocation, cap_confidence
from zprof.model.memory import (
    Allocation,
    Basis,
    DeviceMemory,
    MemoryPart,
    MemoryTimeline,
    PhasePeak,
    RankMemory,
)
from zprof.model.tenants import BACKEND_SCRATCH, DISPLAY_ORDER, Tenant
from zprof.model.training import Engine, Phase, TrainingFacts
from zprof.run.user_code import find_user_frame

#: Returns the bytes that a change removes in a phase, given the phase name and the bytes by tenant at its
#: peak.
Removable = Callable[[str, Mapping[Tenant, int]], float]
RESERVED_PEAK = "reserved peak"
#: Shared by all causes that need these, so their gaps merge.
MISSING_FACTS = make_untested("sharding_unknown")
MISSING_DEVICE = make_untested("allocator_not_sampled")
_ABOVE_RATIO = 0.10
#: Minimum share of a step's gradients in a forward pass, so a few late gradients do not count.
_HALF_RATIO = 0.5
_NUMBERED = re.compile(r"(?:^|\.)(\d{1,6})(?:\.|$)")
_MAX_SHOWN = 60
#: Names of wrappers around the entire model.
_WRAPPERS = frozenset({"module", "model", "_orig_mod", "_forward_module", "_fsdp_wrapped_module"})
#: Names of output layers and losses in common training libraries.
_OUTPUTS = frozenset(
    {
        "lm_head", "head", "output", "output_layer", "logits", "to_logits", "embed_out", "unembed",
        "classifier", "loss", "loss_fn", "loss_function", "criterion", "cross_entropy",
    }
)  # fmt: skip


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
        """Rank number."""
        return self.memory.rank

    @property
    def on_gpu(self) -> bool:
        """True if the memory is on an accelerator."""
        return self.memory.device != "cpu"

    @property
    def total_bytes(self) -> int | None:
        """Device memory in bytes, None if it was not sampled."""
        return max((device.device_total_bytes or 0 for device in self.devices), default=0) or None

    def at_reserved_peak(self) -> DeviceMemory | None:
        """Return the device sample at the allocator's maximum, None without samples."""
        return next((device for device in self.devices if device.moment == RESERVED_PEAK), None)

    def of(self, tenant: Tenant) -> int:
        """Return a tenant's bytes at the peak."""
        return self.memory.tenants.get(tenant, 0)

    def uncertain_ratio(self, *tenants: Tenant) -> float:
        """Return the share of these tenants' bytes with an uncertain owner, 0 if unknown."""
        names = {tenant.value for tenant in tenants}
        parts = [part for part in self.memory.parts if part.tenant in names]
        if sum(part.bytes for part in parts):
            return measure_uncertain_ratio(parts)
        basis = self.memory.basis_bytes
        return 1 - basis.get(Basis.TAGGED, 0) / self.peak_bytes if basis else 0.0

    def estimate_peak_reduction(self, removable: Removable) -> float:
        """Return the maximum reduction of the peak; another phase may be the highest afterwards.

        peak - max over the phases of (their peak - what the change removes there)
        """
        moments = [(self.memory.peak_phase, self.memory.tenants, self.memory.peak_bytes)]
        moments += [(phase.phase, phase.tenants, phase.peak_bytes) for phase in self.phases]
        after = max(size - max(0.0, removable(phase, held)) for phase, held, size in moments)
        return max(0.0, self.memory.peak_bytes - after)


#: Weight of a byte as uncertain if its owner has neither hook nor tag.
_UNCERTAINTY = {Confidence.HIGH: 0.0, Confidence.MEDIUM: 0.5, Confidence.LOW: 1.0, None: 1.0}


def measure_uncertain_ratio(parts: Sequence[MemoryPart | Allocation]) -> float:
    """Return the share of bytes with an uncertain owner; a likely owner counts half."""
    sizes = [part.held_bytes if isinstance(part, Allocation) else part.bytes for part in parts]
    weights = [0.0 if part.basis is Basis.TAGGED else _UNCERTAINTY[part.confidence] for part in parts]
    return sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / max(1, sum(sizes))


def find_largest_rank(analysis: RunAnalysis) -> LargestRank | None:
    """Return the rank with the largest peak, None if no memory was recorded."""
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


#: Minimum bytes that a change must free to be worth a finding, as a share of the peak and in total.
_MIN_STEP_RATIO = 0.01
_WORTH_BYTES = 1 << 20
#: Confidence is limited above this share of bytes attributed by rules on stacks and sizes.
_GUESSED_RATIO = 0.10
_MOSTLY_GUESSED_RATIO = 0.50


def is_worth(saving_bytes: float, big: LargestRank) -> bool:
    """Return True if the bytes are worth a finding: at least 1 % of the peak, and 1 MiB."""
    return saving_bytes >= max(_WORTH_BYTES, _MIN_STEP_RATIO * big.peak_bytes)


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
    """Return the user's line behind the largest of these allocations with a known stack."""
    folder = analysis.source.manifest.folder if analysis.source is not None else ""
    for row in sorted(rows, key=lambda row: -(row.total_bytes or row.bytes)):
        location = find_user_frame(row.stack, folder)
        if location is not None:
            return location
    return None


#: Two runs did the same work if their maximum activations differ by at most this ratio.
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
    """Return the maximum activations at any time, because a ZeRO stage can move the peak."""
    held = [phase.tenants.get(Tenant.ACTIVATIONS, 0) for phase in largest.phases]
    for timeline in analysis.memory.timelines:
        if timeline.rank == largest.rank:
            held += timeline.tenants.get(Tenant.ACTIVATIONS.value, ())
    return max([largest.of(Tenant.ACTIVATIONS), *held])


class EarlyPeak(Struct, frozen=True, kw_only=True):
    """A peak before the first step or outside the recorded steps; ``tenant``: the largest tenant."""

    rank: int
    before_bytes: int
    steady_bytes: int
    tenant: str = ""


def find_early_peaks(analysis: RunAnalysis) -> list[EarlyPeak]:
    """Return the peaks above the steps' peaks, from allocator counters if the start was not recorded."""
    return _list_recorded_peaks(analysis) if analysis.memory.init else _list_counted_peaks(analysis)


def _list_recorded_peaks(analysis: RunAnalysis) -> list[EarlyPeak]:
    steady = {(entry.rank, entry.device): entry.peak_bytes for entry in analysis.memory.per_rank}
    above = [
        entry
        for entry in analysis.memory.init
        if _is_above(entry.peak_bytes, steady.get((entry.rank, entry.device), 0))
    ]
    return [
        EarlyPeak(
            rank=entry.rank,
            before_bytes=entry.peak_bytes,
            steady_bytes=steady[entry.rank, entry.device],
            tenant=max(DISPLAY_ORDER, key=lambda tenant: entry.tenants.get(tenant, 0)).value,
        )
        for entry in above
    ]


def _list_counted_peaks(analysis: RunAnalysis) -> list[EarlyPeak]:
    """Return peaks from the allocator's counters, without ranks whose recorded peak is a lower bound.

    On these ranks, the maximum may belong to the steps.
    """
    known = [entry for entry in analysis.memory.per_rank if not entry.lower_bound]
    steady = {(entry.rank, entry.device): entry.peak_bytes for entry in known}
    above = [
        (entry.rank, entry.peak_allocated_bytes, steady[entry.rank, entry.device])
        for entry in analysis.memory.counters
        if entry.peak_allocated_bytes
        and _is_above(entry.peak_allocated_bytes, steady.get((entry.rank, entry.device), 0))
    ]
    return [EarlyPeak(rank=rank, before_bytes=before, steady_bytes=after) for rank, before, after in above]


def _is_above(before_bytes: int, steady_bytes: int) -> bool:
    more = before_bytes - steady_bytes
    return steady_bytes > 0 and more >= max(_WORTH_BYTES, _ABOVE_RATIO * steady_bytes)


class ForwardGradients(Struct, frozen=True, kw_only=True):
    """Gradient bytes in each step's forward passes, in order; if not ``in_steps``, one list for all steps."""

    levels: tuple[tuple[int, ...], ...]
    in_steps: bool

    @property
    def first_bytes(self) -> int:
        """Gradient bytes alive in each step's first forward pass: the minimum over steps."""
        return min(levels[0] for levels in self.levels)

    @property
    def max_bytes(self) -> int:
        """Maximum gradient bytes in any forward pass."""
        return max(max(levels) for levels in self.levels)

    @property
    def grows_over_micro_batches(self) -> bool:
        """True if in some step each forward pass, from the third on, holds more than the previous one."""
        return any(
            len(levels) > 2 and all(low < high for low, high in itertools.pairwise(levels[1:]))
            for levels in self.levels
        )


def read_forward_gradients(analysis: RunAnalysis, largest: LargestRank) -> ForwardGradients | None:
    """Return the gradients in the largest rank's forward passes, None if none was identified."""
    timeline = next((t for t in analysis.memory.timelines if t.rank == largest.rank), None)
    steps = _levels_by_step(timeline) if timeline else ()
    if steps:
        return ForwardGradients(levels=steps, in_steps=True)
    held = [
        phase.tenants.get(Tenant.GRADIENTS, 0)
        for phase in largest.phases
        if phase.phase == Phase.FORWARD.value
    ]
    return ForwardGradients(levels=((max(held),),), in_steps=False) if held else None


def _levels_by_step(timeline: MemoryTimeline) -> tuple[tuple[int, ...], ...]:
    begins = [time_ns for time_ns, _ in timeline.steps]
    steps: dict[int, list[int]] = {}
    ends = [time_ns for time_ns, _ in timeline.phases[1:]]
    for (begin_ns, name), end_ns in itertools.zip_longest(timeline.phases, ends):
        step = bisect.bisect_right(begins, begin_ns) - 1
        if name == Phase.FORWARD.value and step >= 0:
            # The minimum of the gradients in [begin, end): the bytes alive throughout.
            gradients = timeline.tenants.get(Tenant.GRADIENTS.value, ())
            first = bisect.bisect_left(timeline.time_ns, begin_ns)
            last = len(timeline.time_ns) if end_ns is None else bisect.bisect_left(timeline.time_ns, end_ns)
            level = min(gradients[first:last], default=None)
            if level is not None:
                steps.setdefault(step, []).append(level)
    return tuple(tuple(levels) for _, levels in sorted(steps.items()))


def are_gradients_kept(analysis: RunAnalysis, largest: LargestRank, forwards: ForwardGradients) -> bool:
    """Return True if each step's first forward pass still holds the previous step's gradients."""
    held = forwards.first_bytes
    # DDP's gradients are views of its buckets, which stay allocated even if ``.grad`` is reset.
    if analysis.training.engine == "ddp" and largest.of(Tenant.COMMUNICATION_BUFFERS) < _HALF_RATIO * held:
        return False
    # DeepSpeed's ZeRO allocates the memory of a rank's gradient shard once.
    if analysis.engine is Engine.DEEPSPEED and analysis.training.stage:
        return False
    states = largest.memory.state_bytes or {}
    if held < max(1, _HALF_RATIO * states.get(Tenant.GRADIENTS, 0)):
        return False
    # otherwise they may be accumulated on purpose
    return forwards.in_steps or analysis.training.micro_batches <= 1


def count_blocks(analysis: RunAnalysis) -> int | None:
    """Return the number of model blocks: the length of the longest outermost series of numbered modules.

    ``blocks.0.expand`` and ``blocks.1.expand`` belong to the series ``blocks``. None if no module is
    numbered.
    """
    rows: dict[str, set[int]] = {}
    for name in _module_names(analysis):
        match = _NUMBERED.search(name)
        if match:
            rows.setdefault(name[: match.start(1)], set()).add(int(match.group(1)))
    return max((len(indexes) for indexes in rows.values()), default=None)


def is_numbered(module: str) -> bool:
    """Return True if the module belongs to a series of equal modules."""
    return _NUMBERED.search(module) is not None


def is_output(module: str) -> bool:
    """Return True if the module is outside the blocks and named like an output layer or a loss."""
    return not is_numbered(module) and any(part in _OUTPUTS for part in module.split("."))


def is_root(module: str) -> bool:
    """Return True if the module is the model itself, or a wrapper around it."""
    return all(part in _WRAPPERS for part in module.split(".")) if module else True


def format_module(module: str) -> str:
    """Return the module's name, escaped and shortened for use in a sentence."""
    return shorten(printable(module), _MAX_SHOWN) if module else "the root module"


def _module_names(analysis: RunAnalysis) -> Iterable[str]:
    yield from (entry.module for entry in analysis.memory.modules)
    yield from (entry.module for entry in analysis.memory.top)


#: First stage that shards a tenant over the ranks (arXiv 1910.02054, section 5).
SHARDED_FROM: Mapping[Tenant, int] = {
    Tenant.OPTIMIZER_STATE: 1,
    Tenant.GRADIENTS: 2,
    Tenant.PARAMETERS: 3,
}


class Sharding(Struct, frozen=True, kw_only=True):
    """ZeRO stage, number of ranks, and the bytes of the model's parameters as stored and as communicated.

    If gathers and reductions use different element sizes (FSDP2 gathering in 16 and reducing in 32 bits), the
    larger one is used, so a unit is over- rather than underestimated. ``unit_bytes``: one block as
    communicated, or the whole model if no blocks are seen.
    """

    stage: int
    ranks: int
    parameters_bytes: int
    wire_bytes: int
    unit_bytes: int
    has_blocks: bool

    @property
    def freed_ratio(self) -> float:
        """Share of a state freed by sharding it: 1 - 1/N."""
        return 1 - 1 / self.ranks


def read_sharding(analysis: RunAnalysis) -> Sharding | None:
    """Return the run's sharding, None if a required fact is unknown."""
    facts = analysis.training
    element = facts.communication_bytes or max(facts.parameter_bytes or 0, facts.gradient_bytes or 0)
    if facts.stage is None or not facts.shard_ranks or not facts.parameters or not element:
        return None
    wire = facts.parameters * element
    blocks = count_blocks(analysis)
    return Sharding(
        stage=facts.stage,
        ranks=facts.shard_ranks,
        parameters_bytes=facts.parameters * (facts.parameter_bytes or element),
        wire_bytes=wire,
        unit_bytes=-(-wire // blocks) if blocks else wire,
        has_blocks=blocks is not None,
    )


def saved_bytes(largest: LargestRank, sharding: Sharding) -> float:
    """Return the bytes saved by the stage: (N - 1) times the measured shard of each sharded state."""
    states = largest.memory.state_bytes or {}
    kept = (states.get(tenant, 0) for tenant, stage in SHARDED_FROM.items() if stage <= sharding.stage)
    return float((sharding.ranks - 1) * sum(kept))


def compute_state_shares(facts: TrainingFacts) -> dict[Tenant, int] | None:
    """Return one rank's share of each sharded state of known size."""
    if not facts.parameters or not facts.shard_ranks or facts.stage is None:
        return None
    sizes = {
        Tenant.OPTIMIZER_STATE: facts.optimizer_state_bytes,
        Tenant.GRADIENTS: facts.gradient_bytes,
        Tenant.PARAMETERS: facts.parameter_bytes,
    }
    elements = facts.parameters + facts.padding_elements
    return {
        tenant: -(-elements * size // facts.shard_ranks)
        for tenant, size in sizes.items()
        if size and SHARDED_FROM[tenant] <= facts.stage
    }


#: Number of units whose buffers a step needs, and that it may have in flight.
_NEEDED_UNITS, _ALLOWED_UNITS = 2, 6
#: A separately gathered module counts as a unit up to this share of the model; above it, as the whole model.
_ALONE_RATIO = 0.5
_GATHERED = "gathered_param"
_BUFFERS = Tenant.COMMUNICATION_BUFFERS


def measure_buffers(largest: LargestRank, sharding: Sharding) -> tuple[int, int, float, float]:
    """Measure the backend's buffer bytes, what a step may need, and the range of the excess.

    The backend's buffers shrink in proportion to the excess; the peak falls as far as its phases allow.
    """
    parts = [part for part in largest.memory.parts if part.tenant == _BUFFERS.value]
    scratch = sum(part.bytes for part in parts if part.sub == BACKEND_SCRATCH)
    own = max(1, largest.of(_BUFFERS) - scratch)
    # The bytes of the largest gathered unit outside the blocks.
    gathered = (
        entry.bytes
        for entry in largest.top
        if entry.sub == _GATHERED and not is_numbered(entry.module)
        if entry.bytes < _ALONE_RATIO * sharding.wire_bytes
    )
    alone = 2 * (max(gathered, default=0) if sharding.has_blocks else 0)
    needed = _ALLOWED_UNITS * sharding.unit_bytes + alone
    most = max(0, own - _NEEDED_UNITS * sharding.unit_bytes - alone) * (1 + scratch / own)
    high = largest.estimate_peak_reduction(lambda _, held: min(most, held.get(_BUFFERS, 0)))
    return scratch, needed, max(0, own - needed), high


#: Minimum share of the peak in logits and their copies, to consider them separately.
LOGITS_RATIO = 0.20
#: Tensors of the root module this many times as large as any other activation may be the logits.
_MIN_SIZE_FACTOR = 4
_LOSS_OPERATORS = frozenset({"_log_softmax", "nll_loss_backward", "_log_softmax_backward_data"})
_LOSS_FUNCTIONS = frozenset({"cross_entropy", "log_softmax", "nll_loss", "cross_entropy_loss"})
_LOGIT_TENANTS = frozenset({Tenant.ACTIVATIONS.value, Tenant.TEMPORARY_BUFFERS.value})


class Logits(Struct, frozen=True, kw_only=True):
    """Logit-sized tensors at the peak; ``named``: a module's name identifies them."""

    rows: tuple[Allocation, ...]
    named: bool

    @property
    def bytes(self) -> int:
        """Total bytes of the tensors."""
        return sum(row.held_bytes for row in self.rows)

    @property
    def activation_bytes(self) -> int:
        """Bytes of those tensors that are activations."""
        return sum(row.held_bytes for row in self.rows if row.tenant == Tenant.ACTIVATIONS.value)


def find_logits(largest: LargestRank) -> Logits | None:
    """Return the logits at a rank's peak, None if they are not a large part of it."""
    rows = [row for row in largest.top if row.tenant in _LOGIT_TENANTS]
    named = [row for row in rows if is_output(row.module)]
    of_loss = [row for row in rows if _is_of_loss(row)]
    if named:
        size = max(row.bytes for row in named)
        found = [
            row
            for row in rows
            if (is_output(row.module) and row.bytes >= size / 4)
            or (is_root(row.module) and size / 2 <= row.bytes <= 2 * size)
        ]
    else:
        found = _select_like_loss(rows, of_loss) if of_loss else _select_far_larger(rows)
    logits = Logits(rows=tuple(found), named=bool(named or of_loss))
    is_large = logits.bytes >= LOGITS_RATIO * largest.peak_bytes and is_worth(logits.bytes, largest)
    return logits if is_large else None


def _is_of_loss(row: Allocation) -> bool:
    """Return True if a loss made the tensor, according to its operator or its stack's functions."""
    names = (frame.replace("\\", "/").rpartition(" ")[2] for frame in row.stack)
    return row.operator in _LOSS_OPERATORS or any(name in _LOSS_FUNCTIONS for name in names)


def _select_like_loss(rows: list[Allocation], of_loss: list[Allocation]) -> list[Allocation]:
    """Select tensors as large as the largest one made by a loss, or half as large (in 16 bit)."""
    size = max(row.bytes for row in of_loss)
    return [row for row in rows if {row.bytes, row.smallest_bytes or row.bytes} <= {size, size // 2}]


def _select_far_larger(rows: list[Allocation]) -> list[Allocation]:
    own = [row for row in rows if is_root(row.module)]
    rest = max((row.bytes for row in rows if not is_root(row.module)), default=0)
    size = max((row.bytes for row in own), default=0)
    found = [row for row in own if row.bytes >= size / 2 and row.bytes >= _MIN_SIZE_FACTOR * max(1, rest)]
    return found if len(found) >= 2 and rest else []
