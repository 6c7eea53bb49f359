"""Tags by which a program names its memory: ``torch.cuda.memory._set_memory_metadata("zprof:activations")``.

    zprof:<tenant>[/<sub>]      zprof:parameters   zprof:communication_buffers/gathered_param

The tenants are the six of ``zprof.model.tenants``; the sub is free.  Any other text is the program's own note
and names no tenant: "forward" says when a block was made, not whose it is.
"""

from zprof.model.tenants import Tenant

PREFIX = "zprof:"
_LONGEST_SUB = 40


def tag_of(text: str) -> tuple[Tenant, str] | None:
    """The tenant and sub that a tag names, or None."""
    if not text.startswith(PREFIX):
        return None
    tenant, _, sub = text[len(PREFIX) :].partition("/")
    try:
        return Tenant(tenant), sub[:_LONGEST_SUB]
    except ValueError:
        return None
