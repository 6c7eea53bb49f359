"""Track live bytes of a device by slot, their highest moment, and the assumption behind each slot."""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.plan import Term
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.model.whatif import Assumption


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A kind of bytes: its tenant, its name within the tenant, and the assumption behind it."""

    tenant: Tenant
    sub: str
    assumption: str


class Ledger:
    """Live bytes by slot; remembers the slots and the name of the highest moment."""

    def __init__(self) -> None:
        self._held: dict[Slot, int] = {}
        self._total = 0
        self._highest: Mapping[Slot, int] = {}
        self._highest_total = -1
        self._where = ""
        self.now = ""

    @property
    def where(self) -> str:
        """Name of the highest moment."""
        return self._where

    @property
    def peak_bytes(self) -> int:
        """Live bytes at the highest moment."""
        return max(self._highest_total, 0)

    def add(self, slot: Slot, size_bytes: int) -> None:
        """Add bytes to a slot, or remove them, and record the moment."""
        self.put({slot: self._held.get(slot, 0) + size_bytes})

    def put(self, sizes: Mapping[Slot, int]) -> None:
        """Set the bytes of several slots at once and record the moment."""
        for slot, size in sizes.items():
            self._total += size - self._held.get(slot, 0)
            self._held[slot] = size
        if self._total > self._highest_total:
            self._highest, self._highest_total = dict(self._held), self._total
            self._where = self.now

    def terms(self) -> tuple[Term, ...]:
        """Return the live bytes at the highest moment as terms, in display order of tenants."""
        return tuple(
            Term(tenant=slot.tenant, sub=slot.sub, bytes=size, assumption=slot.assumption)
            for slot, size in sorted(
                self._highest.items(), key=lambda held: DISPLAY_ORDER.index(held[0].tenant)
            )
            if size
        )


PARAMETERS = Slot(tenant=Tenant.PARAMETERS, sub="weight", assumption="walk.parameters")
OPTIMIZER_STATE = Slot(tenant=Tenant.OPTIMIZER_STATE, sub="state", assumption="walk.optimizer_state")
GRADIENTS = Slot(tenant=Tenant.GRADIENTS, sub="grad", assumption="walk.gradients")
UNREDUCED = Slot(tenant=Tenant.GRADIENTS, sub="unreduced", assumption="walk.unreduced")
SAVED = Slot(tenant=Tenant.ACTIVATIONS, sub="saved", assumption="walk.saved")
RECOMPUTED = Slot(tenant=Tenant.ACTIVATIONS, sub="recomputed", assumption="walk.recomputed")
CHECKPOINTS = Slot(tenant=Tenant.ACTIVATIONS, sub="checkpoint", assumption="walk.checkpoints")
WORK = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="op_output", assumption="walk.work")
HELD = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="act_grad", assumption="walk.tied_head")
GRADIENT_COPY = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="optimizer", assumption="walk.gradient_copy")
GATHERED = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="gathered_param", assumption="walk.gathered_units")
GATHERED_CHECKPOINT = Slot(
    tenant=Tenant.COMMUNICATION_BUFFERS, sub="allgather_base", assumption="walk.gathered_checkpoint"
)
GATHERED_CHUNK = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="checkpoint", assumption="walk.checkpoints")
REDUCED = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="reduce_scatter_base", assumption="walk.reductions")
KEPT_BUFFERS = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="kept_buffers", assumption="walk.kept_buffers")
SCRATCH = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="backend_scratch", assumption="walk.backend_copies")


_ENGINE = "reference engine"
_PAPER = "arXiv 1910.02054"

ASSUMPTIONS: Mapping[str, Assumption] = {
    "walk.parameters": Assumption(
        formula="p x padded; stage 3: p x padded / N; padded: a unit's elements, rounded up to N x alignment",
        source=f"{_PAPER}, section 5 and figure 1",
        deviation="the paper does not pad shards to equal size",
    ),
    "walk.optimizer_state": Assumption(
        formula="K x padded of what is trained, from stage 1 on / N, and 4 bytes a unit for its step count",
        source=f"{_PAPER}, section 5 and figure 1",
        deviation="padding and step counts come on top; where units do not say what of them is frozen, each "
        "has its share",
    ),
    "walk.gradients": Assumption(
        formula="trained: stages 0 and 1: g x padded, always there; 2 and 3: r x padded / N of units "
        "reduced so far",
        source=f"{_PAPER}, sections 5.1 and 5.2; {_ENGINE}",
        deviation="stages 2 and 3: allocated as the backward goes, and dropped before the next step",
    ),
    "walk.unreduced": Assumption(
        formula="p x elements whose gradient autograd has made and nobody has taken: stages 0 and 1: of one "
        "operator; 2 and 3: of the unit whose backward runs, and of the root",
        source=f"{_ENGINE}; autograd",
        deviation="the paper counts reduced gradients only",
    ),
    "walk.saved": Assumption(
        formula="units behind their forward: T e (4 h + 12 h/M + 4) + 4 T a/M; the root: inputs of its norm "
        "and head, log-softmax 4 T V",
        source="autograd; FlashAttention, arXiv 2205.14135; Megatron-LM, arXiv 1909.08053, section 3",
        deviation=f"{_PAPER}, section 3.2, counts 12 T h a block: without norms and residual inputs",
    ),
    "walk.recomputed": Assumption(
        formula="what one unit keeps for its backward, without its input",
        source=f"{_PAPER}, section 3.2; {_ENGINE}",
        deviation="the paper counts checkpoints only; one unit at a time comes back whole",
    ),
    "walk.checkpoints": Assumption(
        formula="units x T h e in one chunk, in places of 256 bytes (MD); Pa: a part of it on each rank",
        source=f"{_PAPER}, sections 6.1 and 6.3",
        deviation="with Pa all-gathers read from the chunk: it is a communication buffer then",
    ),
    "walk.work": Assumption(
        formula="what operators make and nobody keeps: gradients of activations, residual sums, fp32 logits",
        source="autograd: the inputs and outputs of each operator",
        deviation="not in the paper; workspaces inside of kernels are left out",
    ),
    "walk.tied_head": Assumption(
        formula="V h e/M: the gradient of the head, from its backward to that of the embedding it is tied to",
        source="autograd",
        deviation="not in the paper",
    ),
    "walk.gathered_checkpoint": Assumption(
        formula="Pa: T h e of the unit that is computed again, and T h e/M that the all-gather read; Pa+cpu: "
        "that only while it runs",
        source=f"{_PAPER}, section 6.1; {_ENGINE}",
        deviation="",
    ),
    "walk.gradient_copy": Assumption(
        formula="4 bytes x this rank's part of a unit; CB: of a buffer",
        source=f"{_ENGINE}: torch's fused AdamW wants gradients of its weights' type",
        deviation="the paper's 16 bytes a parameter leave it out",
    ),
    "walk.gathered_units": Assumption(
        formula="gathered x padded of the root, the unit at work and those fetched ahead",
        source=f"{_PAPER}, section 7.2.2; {_ENGINE}",
        deviation="the paper's figure 1 leaves the working set out",
    ),
    "walk.reductions": Assumption(
        formula="r x padded for each reduction in flight, as many as the engine allows",
        source=f"{_ENGINE}: a unit's gradients lie side by side in a buffer while they are reduced",
        deviation="the paper leaves buffers out of its formulas (section 6.2 names them)",
    ),
    "walk.kept_buffers": Assumption(
        formula="CB: reductions in flight x buffer; MD: reductions in flight x largest unit, and the root",
        source=f"{_PAPER}, sections 6.2 and 6.3; {_ENGINE}",
        deviation="the paper gives no size",
    ),
    "walk.backend_copies": Assumption(
        formula="gloo copies the whole tensor: in a reduce-scatter until that is waited for, in an "
        "all-gather while it runs, two at a time; NCCL does not",
        source="torch ProcessGroupGloo",
        deviation="not in the paper",
    ),
}
