"""A kind of machine, as far as a plan needs it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Devices in nodes.

    ``memory_bytes``: of one device.  ``flops_per_s``: dense peak in the type of the matrices;
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
