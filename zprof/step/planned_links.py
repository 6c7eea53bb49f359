"""Compute the time of one collective on a group, and map the groups of each kind of parallelism to nodes.

With S bytes of the full (gathered) tensor, N ranks on n nodes, bus bandwidth beta, and hop latencies a_i
within a node and a_e between nodes:

    ring all-gather = reduce-scatter = lat(N) + S (N-1) / (N beta)      ring all-reduce = twice that
    lat(N) = n a_e + (N - n) a_i, or (N-1) a_i in one node
    tree all-reduce = 2 ceil(log2 N) a + 2 S / beta

Source: ring volume (N-1)/N from arXiv 1910.02054, section 7 (and Patarasuk and Yuan, 2009); hops and the tree
as documented by NCCL (nccl-tests, doc/PERFORMANCE.md). NCCL has no tree for all-gather and reduce-scatter.

Placement. Model-parallel ranks are adjacent, data-parallel ranks are mp apart, and pipeline stages are
farthest apart. This is the order of Megatron-LM (arXiv 2104.04473, section 3), which keeps the collectives
that cannot be hidden within a node.
"""

import math

from msgspec import Struct

from zprof.model.job import Degrees, Hardware

_NS_PER_S = 1e9


class RankRing(Struct, frozen=True, kw_only=True):
    """Ranks that communicate, described as a ring.

    ``per_node``: ranks on each node. ``bytes_per_s``: bus bandwidth. ``latency_ns``: once around the ring.
    ``hop_ns``: its slowest hop.
    """

    ranks: int
    per_node: int
    bytes_per_s: float
    latency_ns: int
    hop_ns: int

    @property
    def nodes(self) -> int:
        """Nodes that the group spans."""
        return -(-self.ranks // self.per_node)


def make_group(hardware: Hardware, ranks: int, stride: int = 1) -> RankRing:
    """Return the group of every ``stride``-th rank; ranks fill one node after the other.

    The group has g = devices_per_node / stride ranks per node (at least 1) and a bus bandwidth of min(intra,
    node g / devices_per_node). A common mistake is to give a flat group over full nodes (g =
    devices_per_node) one device's share of the NICs, node / devices_per_node. A ring enters and leaves each
    node once and uses all NICs there, so that estimate is too slow by a factor of devices_per_node. A group
    with one rank per node does get only that share, because devices_per_node such groups run concurrently.
    """
    per_node = min(ranks, max(1, hardware.devices_per_node // stride))
    nodes = -(-ranks // per_node)
    if nodes == 1:
        return RankRing(
            ranks=ranks,
            per_node=per_node,
            bytes_per_s=hardware.intra_bytes_per_s,
            latency_ns=(ranks - 1) * hardware.intra_latency_ns,
            hop_ns=hardware.intra_latency_ns,
        )
    share = hardware.node_bytes_per_s * per_node / hardware.devices_per_node
    return RankRing(
        ranks=ranks,
        per_node=per_node,
        bytes_per_s=min(hardware.intra_bytes_per_s, share),
        latency_ns=nodes * hardware.inter_latency_ns + (ranks - nodes) * hardware.intra_latency_ns,
        hop_ns=hardware.inter_latency_ns,
    )


def gather_ns(group: RankRing, size_bytes: float, messages: int = 1) -> float:
    """Return the time in ns of an all-gather or reduce-scatter; ``size_bytes`` counts full tensors."""
    if group.ranks == 1:
        return 0.0
    return messages * group.latency_ns + ring_bytes(group.ranks, size_bytes) / group.bytes_per_s * _NS_PER_S


def all_reduce_ns(group: RankRing, size_bytes: float, messages: int = 1) -> float:
    """Return the time of an all-reduce by ring or tree, whichever is faster."""
    ring = 2 * gather_ns(group, size_bytes, messages)
    return min(ring, tree_all_reduce_ns(group, size_bytes, messages))


def tree_all_reduce_ns(group: RankRing, size_bytes: float, messages: int = 1) -> float:
    """Return the time of an all-reduce up and down a pipelined binary tree."""
    if group.ranks == 1:
        return 0.0
    hops = 2 * math.ceil(math.log2(group.ranks)) * group.hop_ns
    return messages * hops + 2 * size_bytes / group.bytes_per_s * _NS_PER_S


def ring_bytes(ranks: int, size_bytes: float) -> float:
    """Return the bytes of a tensor that cross one link of a ring: (N-1)/N of it."""
    return size_bytes * (ranks - 1) / ranks


def make_data_group(hardware: Hardware, degrees: Degrees) -> RankRing:
    """Return the group of ranks with the same part of the model."""
    return make_group(hardware, degrees.dp, stride=degrees.mp)


def make_model_group(hardware: Hardware, degrees: Degrees) -> RankRing:
    """Return the group of ranks that share the matrices of every block."""
    return make_group(hardware, degrees.mp)


def make_boundary_group(hardware: Hardware, degrees: Degrees) -> RankRing:
    """Return the slowest pair of neighbouring pipeline stages; it spans two nodes if the job does."""
    spans = degrees.devices > hardware.devices_per_node
    return make_group(hardware, 2, stride=hardware.devices_per_node if spans else 1)


def get_link_name(group: RankRing) -> str:
    """Return ``intra`` for a group within a node, ``inter`` for one that uses NICs."""
    return "intra" if group.nodes == 1 else "inter"
