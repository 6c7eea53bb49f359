"""Define a failed allocation: what was requested, what filled the device, and if free memory would have done.

Sizes are integer bytes. ``None`` is unknown.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """One allocation that failed with an out-of-memory error, and the allocator at that moment.

      reserved = live + rounding + awaiting_free + split + free_segments + private_pools
      live     = tenants + untagged            allocated = live + rounding

    ``time_ns`` counts from the start of the history. ``requested_bytes`` is the request as torch records it,
    rounded up to 512 bytes; ``driver_bytes`` is the most that the allocator then asks the driver for: a whole
    segment. ``device_free_bytes`` is what the driver reported as free. ``split_bytes`` are the free parts of
    segments in use, ``free_segments_bytes`` segments that are entirely free, ``private_pools_bytes`` free
    memory of graph pools, of which the request could use only that of its own ``pool`` (empty: the common
    one). ``largest_free_bytes`` is the largest contiguous free piece in its pool, of any stream.

    ``would_fit_defragmented``: True if the free bytes of its pool and of the device together are at least
    the request; ``short_bytes`` is what is missing, 0 if it would fit. ``is_limited``: the device had room
    for the segment, so that a limit of the process failed the request (set_per_process_memory_fraction).
    ``expandable``: segments of this device are expandable. ``outside_allocator_bytes``: device memory in use
    outside of this allocator.

    ``inferred_tenants``: some of their bytes are known by sizes alone. ``unknown_tenants``: no block was
    attributed to them at any time, and no tag could have said so. ``confidence_bytes``: the bytes attributed
    without a tag. ``step`` and ``phase``: of a recording, if known.
    """

    rank: int
    device: str
    time_ns: int
    requested_bytes: int
    driver_bytes: int
    device_free_bytes: int | None
    live_bytes: int
    allocated_bytes: int
    awaiting_free_bytes: int
    reserved_bytes: int | None
    split_bytes: int | None
    free_segments_bytes: int | None
    private_pools_bytes: int | None
    largest_free_bytes: int | None
    tenants: Mapping[Tenant, int]
    untagged_bytes: int
    would_fit_defragmented: bool | None
    short_bytes: int | None
    is_limited: bool = False
    expandable: bool = False
    outside_allocator_bytes: int | None = None
    pool: str = ""
    inferred_tenants: tuple[Tenant, ...] = ()
    unknown_tenants: tuple[Tenant, ...] = ()
    confidence_bytes: Mapping[Confidence, int] = field(default_factory=dict)
    stack: tuple[str, ...] = ()
    step: int | None = None
    phase: str = ""
