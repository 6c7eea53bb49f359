"""Who owns a byte of memory: the six tenants, in the order of their precedence.

A live byte has exactly one tenant at an instant.  Where several roles claim it, the first in
``PRECEDENCE`` wins; what no role claims is *untagged* and is never hidden in a tenant.
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


#: Strongest claim first.  A gathered parameter is a communication buffer, because collectors give it
#: no parameter role: then ``parameters`` obeys the law of the sharding stage exactly.
PRECEDENCE: tuple[Tenant, ...] = (
    Tenant.PARAMETERS,
    Tenant.OPTIMIZER_STATE,
    Tenant.GRADIENTS,
    Tenant.COMMUNICATION_BUFFERS,
    Tenant.ACTIVATIONS,
    Tenant.TEMPORARY_BUFFERS,
)

#: The order in which tenants are shown.
DISPLAY_ORDER: tuple[Tenant, ...] = tuple(Tenant)
