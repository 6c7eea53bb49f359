"""What each gate asks, for who sees it fail and did not write it."""

_HELP = {
    "peak_memory": "Highest live bytes in the allocator, of the rank with the highest peak.",
    "untagged_ratio": "Share of the peak that no tenant claims: of the rank where it is largest.",
    "exposed_ratio": "Share of the step during which a collective runs and this rank computes nothing.",
    "overlap_ratio": "Share of the collectives' time that is hidden under compute.",
    "collective_bytes": "Bytes that the collectives of a step move, of the full tensors.",
    "collective_count": "Collectives of a step.",
    "collective_bytes_law": "Bytes a rank moves in a step, as a multiple of the model's parameter bytes.",
    "step_time": "Mean wall time of a step; the interval of its change is held against the limit.",
    "exposed_wait": "Exposed time in which collectives wait for their last rank.",
}
_TENANT = "Bytes of this tenant at the peak of the rank with the highest peak."


def gate_help(gate: str) -> str:
    """One sentence; the gate's name where it is none of zprof's."""
    name, _, part = gate.partition(".")
    if part and name == "peak_memory":
        return _TENANT
    return _HELP.get(name, gate)
