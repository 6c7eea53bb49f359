"""What a walk tells apart."""

from zprof.model.tenants import Tenant
from zprof.planner.memory.walk.ledger import Slot

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
