"""How the memory pages name tenants, ranks and sizes."""

from collections.abc import Sequence

from zprof.model.memory import Allocation, Basis, MemoryPart, RankMemory
from zprof.model.tenants import Tenant
from zprof.model.units import format_bytes, format_percent
from zprof.reports.shown.memory_presenter import largest_rank

#: Stands before a size that rests on a rule, not on what was seen.
BY_RULE = "~"
#: Stands where rules found nothing of a tenant, which does not mean that there is none.
UNKNOWN = "-"
#: Terms of the identity, from what the tenants hold to what the device has.
DEVICE_TERMS = (
    ("live_bytes", "tenants and untagged"),
    ("rounding_bytes", "rounding to blocks"),
    ("awaiting_free_bytes", "freed, a stream still uses it"),
    ("split_bytes", "free parts of used segments"),
    ("free_segments_bytes", "free segments"),
    ("private_pools_bytes", "free in private pools"),
    ("reserved_bytes", "= reserved by the allocator"),
    ("collectives_bytes", "communicators (by growth)"),
    ("context_bytes", "context and the rest"),
    ("process_bytes", "= this process on the device"),
    ("other_processes_bytes", "other processes"),
    ("device_used_bytes", "= in use on the device"),
    ("device_total_bytes", "the device has"),
)


def tenant_name(tenant: str) -> str:
    """``optimizer_state`` as ``optimizer state``."""
    return tenant.replace("_", " ")


def peak_text(rank: RankMemory) -> str:
    """A rank's peak, marked where it is a bound; one that is both is neither, and the gaps say why."""
    return f"{peak_mark(rank)}{format_bytes(rank.peak_bytes)}"


def largest_peak(ranks: Sequence[RankMemory]) -> str:
    """The peak of the rank that has the largest, with its mark; empty without ranks."""
    rank = largest_rank(ranks)
    return peak_text(rank) if rank else ""


def sized(entry: MemoryPart | Allocation) -> str:
    """The bytes of a part or an allocation, marked where a rule gave it its tenant."""
    return f"{BY_RULE if entry.basis == Basis.RULE else ''}{format_bytes(entry.bytes)}"


#: What stands outside the allocator's live bytes, where a rank knows it (else the gaps say why): leaf, name.
BESIDE = (("reserved_unused_bytes", "reserved, unused"), ("non_pytorch_bytes", "outside PyTorch"))


def beside_words(rank: RankMemory) -> str:
    """What is known to stand beside a rank's peak; empty where nothing is."""
    known = ((getattr(rank, leaf), name) for leaf, name in BESIDE)
    return ", ".join(f"{format_bytes(size)} {name}" for size, name in known if size is not None)


def peak_mark(rank: RankMemory) -> str:
    """What stands before a peak that is a bound; empty before one that is exact."""
    if rank.upper_bound and rank.lower_bound:
        return "≈ "
    return "≤ " if rank.upper_bound else "≥ " if rank.lower_bound else ""


def signed_bytes(count_bytes: int) -> str:
    """A change: with its sign."""
    return f"+{format_bytes(count_bytes)}" if count_bytes > 0 else format_bytes(count_bytes)


def tenant_bytes(rank: RankMemory, tenant: Tenant) -> str:
    """A tenant's bytes, marked where a rule gave any of them to it; a dash where nothing could have told."""
    basis = rank.basis_bytes
    if basis and not basis.get(Basis.TAGGED) and not rank.tenants.get(tenant):
        return UNKNOWN
    ruled = any(part.tenant == tenant.value and part.basis is not Basis.TAGGED for part in rank.parts)
    return f"{BY_RULE if ruled else ''}{format_bytes(rank.tenants.get(tenant, 0))}"


def basis_note(rank: RankMemory) -> str:
    """What the tenants of a rank rest on, where that is not what hooks or tags saw; else empty."""
    basis = rank.basis_bytes or {}
    if not basis.get(Basis.RULE) or not rank.peak_bytes:
        return ""
    parts = [
        f"{format_percent(basis.get(kind, 0) / rank.peak_bytes)} {what}"
        for kind, what in (
            (Basis.TAGGED, "tagged"),
            (Basis.RULE, f"by rules on stacks ({BY_RULE})"),
            (Basis.UNKNOWN, "unknown"),
        )
    ]
    return f"tenants of rank {rank.rank} rest on: {', '.join(parts)}"
