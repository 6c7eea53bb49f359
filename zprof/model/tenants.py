"""Define the six tenants that can own a byte of memory, in order of precedence.

A live byte has exactly one tenant at any time. If several roles claim it, the first in ``PRECEDENCE`` wins; a
byte without a role is *untagged* and never counted in a tenant.
"""

from enum import StrEnum


class Tenant(StrEnum):
    """Owner of a live allocation."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    TEMPORARY_BUFFERS = "temporary_buffers"
    COMMUNICATION_BUFFERS = "communication_buffers"


#: Strongest claim first. A gathered parameter counts as a communication buffer: collectors give it no
#: parameter role, so ``parameters`` follows the ZeRO formula of the stage exactly.
PRECEDENCE: tuple[Tenant, ...] = (
    Tenant.PARAMETERS,
    Tenant.OPTIMIZER_STATE,
    Tenant.GRADIENTS,
    Tenant.COMMUNICATION_BUFFERS,
    Tenant.ACTIVATIONS,
    Tenant.TEMPORARY_BUFFERS,
)

#: Order in which tenants are displayed.
DISPLAY_ORDER: tuple[Tenant, ...] = tuple(Tenant)

#: Name of the bytes without a tenant.
UNTAGGED_NAME = "untagged"
#: Kind of communication buffers: copies that the collective backend (gloo) makes for itself.
BACKEND_SCRATCH = "backend_scratch"
#: Kind of temporary buffers: memory that an operator allocates and does not return.
OPERATOR_WORKSPACE = "op_workspace"
#: Kind of activations and temporary buffers: copies of weights in another type, made by autocast.
WEIGHT_COPY = "weight_copy"
