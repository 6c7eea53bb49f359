"""Track a device's live bytes by slot and at their peak, with the assumption for each slot."""

from collections.abc import Mapping

from msgspec import Struct

from zprof.model.plan import Assumption, Term
from zprof.model.tenants import BACKEND_SCRATCH, DISPLAY_ORDER, Tenant

_ENGINE = "reference engine"
_PAPER = "arXiv 1910.02054"
ASSUMPTIONS: Mapping[str, Assumption] = {
    "walk.parameters": Assumption(
        formula="p x padded; stage 3: p x padded / N; padded: a unit's elements, rounded up to N x alignment",
        source=f"{_PAPER}, section 5 and figure 1",
        deviation="the paper does not pad shards to equal size",
    ),
    "walk.optimizer_state": Assumption(
        formula="K x padded trainable elements (/ N from stage 1), plus 4 bytes per unit (step counter)",
        source=f"{_PAPER}, section 5 and figure 1",
        deviation="plus padding and step counters; if units do not list their frozen parameters, each gets a "
        "proportional share",
    ),
    "walk.gradients": Assumption(
        formula="trainable parameters: g x padded throughout (stages 0, 1); r x padded / N of the units "
        "reduced so far (2, 3)",
        source=f"{_PAPER}, sections 5.1 and 5.2; {_ENGINE}",
        deviation="stages 2 and 3: allocated during the backward, freed before the next step",
    ),
    "walk.unreduced": Assumption(
        formula="p x elements with a gradient that has not been reduced yet: those of one operator (stages "
        "0, 1); those of the unit in its backward, and of the root (2, 3)",
        source=f"{_ENGINE}; autograd",
        deviation="the paper counts reduced gradients only",
    ),
    "walk.saved": Assumption(
        formula="units that have finished their forward: T e (4 h + 12 h/M + 4) + 4 T a/M; Llama blocks: "
        "T e (4 h + (2 q + 2 k + 4 m)/M) + 8 T + 4 T a/M with q, k, m wide queries, keys and MLP, and for "
        "experts A m, 2 A T h e, 4 T E and 12 A T; the root: inputs of its norm and head, log-softmax 4 T V",
        source="autograd; FlashAttention, arXiv 2205.14135; Megatron-LM, arXiv 1909.08053, section 3",
        deviation=f"{_PAPER}, section 3.2, counts 12 T h per block, without norms and residual inputs",
    ),
    "walk.recomputed": Assumption(
        formula="activations one unit saves for its backward, excluding its input",
        source=f"{_PAPER}, section 3.2; {_ENGINE}",
        deviation="the paper counts checkpoints only; here one unit at a time is fully recomputed",
    ),
    "walk.checkpoints": Assumption(
        formula="units x T h e in one chunk, aligned to 256 bytes (MD); with Pa, sharded over the ranks",
        source=f"{_PAPER}, sections 6.1 and 6.3",
        deviation="with Pa the chunk is an all-gather input, so it counts as a communication buffer",
    ),
    "walk.work": Assumption(
        formula="temporary operator outputs: activation gradients, residual sums, fp32 logits",
        source="autograd: the inputs and outputs of each operator",
        deviation="not in the paper; kernel workspaces are not counted",
    ),
    "walk.tied_head": Assumption(
        formula="V h e/M: the gradient of the head, live from its backward until that of the tied embedding",
        source="autograd",
        deviation="not in the paper",
    ),
    "walk.gathered_checkpoint": Assumption(
        formula="Pa: T h e of the unit being recomputed, plus T h e/M of all-gather input (with Pa+cpu only "
        "while the gather runs)",
        source=f"{_PAPER}, section 6.1; {_ENGINE}",
        deviation="",
    ),
    "walk.gradient_copy": Assumption(
        formula="4 bytes x this rank's shard of a unit (with CB, of a buffer)",
        source=f"{_ENGINE}: torch's fused AdamW requires gradients in the dtype of the weights",
        deviation="not included in the paper's 16 bytes per parameter",
    ),
    "walk.gathered_units": Assumption(
        formula="gathered x padded of the root, the current unit and the prefetched ones",
        source=f"{_PAPER}, section 7.2.2; {_ENGINE}",
        deviation="the paper's figure 1 excludes the working set",
    ),
    "walk.reductions": Assumption(
        formula="r x padded for each reduction in flight, up to the engine's limit",
        source=f"{_ENGINE}: a unit's gradients are flattened into one buffer for the reduction",
        deviation="the paper's formulas exclude buffers (section 6.2 describes them)",
    ),
    "walk.kept_buffers": Assumption(
        formula="CB: reductions in flight x buffer; MD: reductions in flight x largest unit, and the root",
        source=f"{_PAPER}, sections 6.2 and 6.3; {_ENGINE}",
        deviation="no size in the paper",
    ),
    "walk.backend_copies": Assumption(
        formula="gloo copies the full tensor: a reduce-scatter copy lives until the wait, an all-gather copy "
        "while the gather runs, two at a time; NCCL makes no copy",
        source="torch ProcessGroupGloo",
        deviation="not in the paper",
    ),
}


class Slot(Struct, frozen=True, kw_only=True):
    """A category of memory: tenant, sub-category, and the key of its assumption."""

    tenant: Tenant
    sub: str
    assumption: str


class LiveBytes:
    """Live bytes by slot; records the breakdown and the location of the peak."""

    def __init__(self) -> None:
        self._bytes: dict[Slot, int] = {}
        self._total = 0
        self._peak: Mapping[Slot, int] = {}
        self._peak_total = -1
        self._peak_location = ""
        self.current_location = ""

    @property
    def peak_location(self) -> str:
        """Location of the peak within the step."""
        return self._peak_location

    @property
    def peak_bytes(self) -> int:
        """Live bytes at the peak."""
        return max(self._peak_total, 0)

    def add(self, slot: Slot, size_bytes: int) -> None:
        """Add bytes to a slot, or remove them, and update the peak."""
        self.set_bytes({slot: self._bytes.get(slot, 0) + size_bytes})

    def set_bytes(self, sizes: Mapping[Slot, int]) -> None:
        """Set the bytes of several slots at once and update the peak."""
        for slot, size in sizes.items():
            self._total += size - self._bytes.get(slot, 0)
            self._bytes[slot] = size
        if self._total > self._peak_total:
            self._peak, self._peak_total = dict(self._bytes), self._total
            self._peak_location = self.current_location

    def terms(self) -> tuple[Term, ...]:
        """Return the live bytes at the peak as terms, in display order of tenants."""
        return tuple(
            Term(tenant=slot.tenant, sub=slot.sub, bytes=size, assumption=slot.assumption)
            for slot, size in sorted(self._peak.items(), key=lambda item: DISPLAY_ORDER.index(item[0].tenant))
            if size
        )


PARAMETERS = Slot(tenant=Tenant.PARAMETERS, sub="weight", assumption="walk.parameters")
OPTIMIZER_STATE = Slot(tenant=Tenant.OPTIMIZER_STATE, sub="state", assumption="walk.optimizer_state")
GRADIENTS = Slot(tenant=Tenant.GRADIENTS, sub="grad", assumption="walk.gradients")
UNREDUCED = Slot(tenant=Tenant.GRADIENTS, sub="unreduced", assumption="walk.unreduced")
SAVED = Slot(tenant=Tenant.ACTIVATIONS, sub="saved", assumption="walk.saved")
RECOMPUTED = Slot(tenant=Tenant.ACTIVATIONS, sub="recomputed", assumption="walk.recomputed")
CHECKPOINTS = Slot(tenant=Tenant.ACTIVATIONS, sub="checkpoint", assumption="walk.checkpoints")
OPERATOR_OUTPUTS = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="op_output", assumption="walk.work")
TIED_HEAD_GRADIENT = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="act_grad", assumption="walk.tied_head")
GRADIENT_COPY = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="optimizer", assumption="walk.gradient_copy")
GATHERED = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="gathered_param", assumption="walk.gathered_units")
GATHERED_CHECKPOINT = Slot(
    tenant=Tenant.COMMUNICATION_BUFFERS, sub="allgather_base", assumption="walk.gathered_checkpoint"
)
GATHERED_CHUNK = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="checkpoint", assumption="walk.checkpoints")
REDUCED = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="reduce_scatter_base", assumption="walk.reductions")
KEPT_BUFFERS = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="kept_buffers", assumption="walk.kept_buffers")
SCRATCH = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub=BACKEND_SCRATCH, assumption="walk.backend_copies")
