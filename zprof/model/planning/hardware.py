"""A kind of machine, as far as a plan needs it."""

from dataclasses import dataclass

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Devices in nodes.

    ``memory_bytes``: of one device.  ``flops_per_s``: dense peak of 16-bit matrices;
    ``fp32_flops_per_s``: of 32-bit ones, without TF32; None: not known, and so is the time of fp32 jobs.
    ``efficiency_ratio``: the share of it that compute reaches when nothing is waited for.
    ``node_bytes_per_s``: all network cards of a node together, one direction.  ``intra_bytes_per_s``: bus
    bandwidth of collectives within a node.  Latencies are of one hop of a ring.  ``host_bytes_per_s``:
    between a device and the memory of its host.
    """

    name: str
    memory_bytes: int
    flops_per_s: float
    efficiency_ratio: float
    devices_per_node: int
    node_bytes_per_s: float
    intra_bytes_per_s: float
    intra_latency_ns: int = 2_000
    inter_latency_ns: int = 10_000
    host_bytes_per_s: float = 25e9
    fp32_flops_per_s: float | None = None

    def peak_flops_per_s(self, element_bytes: int) -> float | None:
        """Of matrices whose elements have so many bytes; None where that is not known."""
        return self.fp32_flops_per_s if element_bytes == _FP32_BYTES else self.flops_per_s
