"""Read the model's structure from module names and training facts: blocks, units, sharding, logits.

Names come from the program and are untrusted: they are compared, and escaped before they are shown.
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.memory.largest_rank import LargestRank, is_worth
from zprof.base.formatting import printable, shorten
from zprof.model.memory import Allocation
from zprof.model.tenants import BACKEND_SCRATCH, Tenant
from zprof.model.training import TrainingFacts

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


def count_blocks(analysis: RunAnalysis) -> int | None:
    """Return the number of blocks: the length of the longest outermost series of numbered modules.

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
    """Return True if the module belongs to a series of equal ones."""
    return _NUMBERED.search(module) is not None


def is_output(module: str) -> bool:
    """Return True if the module is outside of the blocks and named like an output layer or a loss."""
    return not is_numbered(module) and any(part in _OUTPUTS for part in module.split("."))


def is_root(module: str) -> bool:
    """Return True if the module is the model itself, or a wrapper around it."""
    return all(part in _WRAPPERS for part in module.split(".")) if module else True


def format_module(module: str) -> str:
    """Return the module's name, escaped and shortened for a sentence."""
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
    """Stage and ranks, and the bytes of the model's parameters as stored and as communicated.

    If the wire's bytes per element are not one number (FSDP2 that gathers in 16 bit and reduces in 32), the
    larger of a parameter's and a gradient's are used, so a unit is over- rather than underestimated.
    ``unit_bytes`` is one block on the wire, or the whole model if no blocks are seen.
    """

    stage: int
    ranks: int
    parameters_bytes: int
    wire_bytes: int
    unit_bytes: int
    has_blocks: bool

    @property
    def freed_ratio(self) -> float:
        """Share of an unsharded state that sharding removes: 1 - 1/N."""
        return 1 - 1 / self.ranks


def read_sharding(analysis: RunAnalysis) -> Sharding | None:
    """Return the run's sharding, None if a fact that it needs is unknown."""
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
    """Return the bytes that the stage saves: (N - 1) times the measured shard of each sharded state."""
    states = largest.memory.state_bytes or {}
    kept = (states.get(tenant, 0) for tenant, stage in SHARDED_FROM.items() if stage <= sharding.stage)
    return float((sharding.ranks - 1) * sum(kept))


def compute_state_shares(facts: TrainingFacts) -> dict[Tenant, int] | None:
    """Return one rank's share of each state of known size that the stage shards."""
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


#: Units whose buffers a step needs, and that it may have in flight.
_NEEDED_UNITS, _ALLOWED_UNITS = 2, 6
#: A module gathered separately counts as a unit up to this share of the model; above it, it is the model.
_ALONE_RATIO = 0.5
_GATHERED = "gathered_param"
_BUFFERS = Tenant.COMMUNICATION_BUFFERS


def measure_buffers(largest: LargestRank, sharding: Sharding) -> tuple[int, int, float, float]:
    """Measure the bytes of buffers in the backend, what a step may need, and the range of the excess.

    With the excess go the backend's buffers in proportion; the peak falls as far as its phases allow.
    """
    parts = [part for part in largest.memory.parts if part.tenant == _BUFFERS.value]
    scratch = sum(part.bytes for part in parts if part.sub == BACKEND_SCRATCH)
    own = max(1, largest.of(_BUFFERS) - scratch)
    # The bytes of the largest gathered unit outside of the blocks.
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


#: Minimum share of the peak that logits and their copies are, to be looked at by themselves.
LOGITS_RATIO = 0.20
#: Tensors of the root module that are so many times as large as any other activation may be the logits.
_MIN_SIZE_FACTOR = 4
_LOSS_OPERATORS = frozenset({"_log_softmax", "nll_loss_backward", "_log_softmax_backward_data"})
_LOSS_FUNCTIONS = frozenset({"cross_entropy", "log_softmax", "nll_loss", "cross_entropy_loss"})
_LOGIT_TENANTS = frozenset({Tenant.ACTIVATIONS.value, Tenant.TEMPORARY_BUFFERS.value})


class Logits(Struct, frozen=True, kw_only=True):
    """Tensors at the peak that are as large as the logits; ``named`` if a module's name identifies them."""

    rows: tuple[Allocation, ...]
    named: bool

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(row.held_bytes for row in self.rows)

    @property
    def activation_bytes(self) -> int:
        """Bytes of the activations among the tensors."""
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
    """Return True if a loss made the tensor, by the operator or the functions of its stack."""
    names = (frame.replace("\\", "/").rpartition(" ")[2] for frame in row.stack)
    return row.operator in _LOSS_OPERATORS or any(name in _LOSS_FUNCTIONS for name in names)


def _select_like_loss(rows: list[Allocation], of_loss: list[Allocation]) -> list[Allocation]:
    """Select tensors of the size of the largest that a loss made, or of half of it (in 16 bit)."""
    size = max(row.bytes for row in of_loss)
    return [row for row in rows if {row.bytes, row.smallest_bytes or row.bytes} <= {size, size // 2}]


def _select_far_larger(rows: list[Allocation]) -> list[Allocation]:
    own = [row for row in rows if is_root(row.module)]
    rest = max((row.bytes for row in rows if not is_root(row.module)), default=0)
    size = max((row.bytes for row in own), default=0)
    found = [row for row in own if row.bytes >= size / 2 and row.bytes >= _MIN_SIZE_FACTOR * max(1, rest)]
    return found if len(found) >= 2 and rest else []
