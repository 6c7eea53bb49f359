"""Leaves of the whole device: from what the tenants hold to what it has, and the allocator's counters."""

from zprof.tui.meanings.meaning import Meaning

_TERMS = {
    "live_bytes": "What was asked for and is live: the tenants and untagged.",
    "rounding_bytes": "What the allocator's blocks are larger than what was asked for.",
    "awaiting_free_bytes": "Blocks that were freed and that a stream still uses.",
    "split_bytes": "Free parts of segments of which another part is in use: fragmentation.",
    "free_segments_bytes": "Segments that are wholly free and were not given back.",
    "private_pools_bytes": "Free memory in pools of CUDA graphs.",
    "reserved_bytes": "All that the allocator took from the device.",
    "collectives_bytes": "Growth of the process outside the allocator at the first collective of each group.",
    "context_bytes": "The rest of the process outside the allocator: context, modules, libraries.",
    "process_bytes": "All that this process has on the device.",
    "other_processes_bytes": "What other processes have, and the driver's own reserve.",
    "device_used_bytes": "All that is in use on the device.",
    "device_total_bytes": "What the device has.",
}
_TERM_SUMS = {
    "reserved_bytes": (
        "reserved = live + rounding + awaiting free + split + free segments + private pools",
        (
            "live_bytes",
            "rounding_bytes",
            "awaiting_free_bytes",
            "split_bytes",
            "free_segments_bytes",
            "private_pools_bytes",
        ),
    ),
    "process_bytes": (
        "process = reserved + collectives + context",
        ("reserved_bytes", "collectives_bytes", "context_bytes"),
    ),
    "device_used_bytes": (
        "used = process + other processes",
        ("process_bytes", "other_processes_bytes"),
    ),
}

_MOMENTS: tuple[Meaning, ...] = tuple(
    Meaning(
        leaf=f"memory.devices[].{leaf}",
        title=leaf.removesuffix("_bytes").replace("_", " "),
        says=says,
        formula=_TERM_SUMS.get(leaf, ("", ()))[0],
        inputs=_TERM_SUMS.get(leaf, ("", ()))[1],
    )
    for leaf, says in _TERMS.items()
)
_COUNTERS: tuple[Meaning, ...] = tuple(
    Meaning(leaf=f"memory.counters[].{leaf}", title=leaf, says=says)
    for leaf, says in (
        ("peak_allocated_bytes", "The highest allocated bytes that the allocator's own counter said."),
        ("peak_reserved_bytes", "The highest reserved bytes that the allocator's own counter said."),
        ("retries", "Allocations in the recorded steps that first had to give cached memory back."),
        ("ooms", "Allocations in the recorded steps that failed for want of memory."),
    )
)

DEVICES: tuple[Meaning, ...] = (*_MOMENTS, *_COUNTERS)
