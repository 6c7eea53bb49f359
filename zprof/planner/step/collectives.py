"""Time of one collective on a group, and which ranks form the groups of each parallelism.

With S bytes of the full (gathered) tensor, N ranks on n nodes, beta bus bandwidth, a_i and a_e the latency
of a hop within a node and between nodes:

    ring all-gather = reduce-scatter = lat(N) + S (N-1) / (N beta)      ring all-reduce = twice that
    lat(N) = n a_e + (N - n) a_i, in one node (N-1) a_i
    tree all-reduce = 2 ceil(log2 N) a + 2 S / beta

Source: ring volume (N-1)/N from arXiv 1910.02054, section 7 (and Patarasuk and Yuan, 2009); hops and the
tree as NCCL documents them (nccl-tests, doc/PERFORMANCE.md).  NCCL has no tree for all-gather and
reduce-scatter.

Placement. Model-parallel ranks lie next to each other, data-parallel ones as far apart as there are
model-parallel ones, stages of a pipeline farthest: the order of Megatron-LM (arXiv 2104.04473, section 3),
which keeps what cannot be hidden within a node.
"""

import math
from dataclasses import dataclass

from zprof.model.job import Degrees, Hardware
from zprof.planner.rounding import ceil_div

_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate, as a ring sees them.

    ``per_node``: of them on each node.  ``bytes_per_s``: bus bandwidth.  ``latency_ns``: of a ring, once
    around; ``hop_ns``: of its slowest hop.
    """

    ranks: int
    per_node: int
    bytes_per_s: float
    latency_ns: int
    hop_ns: int

    @property
    def nodes(self) -> int:
        """Nodes that it spans."""
        return ceil_div(self.ranks, self.per_node)


def make_group(hardware: Hardware, ranks: int, stride: int = 1) -> Group:
    """The group of every ``stride``-th rank, where ranks fill one node after the other.

    It has g = devices_per_node / stride ranks on a node (at least 1), and gets
    min(intra, node g / devices_per_node): with every g-th of the cards.  The usual mistake is to give a flat
    group over whole nodes (g = devices_per_node) a single device's share of the cards, node /
    devices_per_node: a ring enters and leaves each node once, through all cards, so that is too slow by as
    many times as a node has devices.  A group with one rank a node does get only that share, because as many
    such groups run side by side.
    """
    per_node = min(ranks, max(1, hardware.devices_per_node // stride))
    nodes = ceil_div(ranks, per_node)
    if nodes == 1:
        return Group(
            ranks=ranks,
            per_node=per_node,
            bytes_per_s=hardware.intra_bytes_per_s,
            latency_ns=(ranks - 1) * hardware.intra_latency_ns,
            hop_ns=hardware.intra_latency_ns,
        )
    share = hardware.node_bytes_per_s * per_node / hardware.devices_per_node
    return Group(
        ranks=ranks,
        per_node=per_node,
        bytes_per_s=min(hardware.intra_bytes_per_s, share),
        latency_ns=nodes * hardware.inter_latency_ns + (ranks - nodes) * hardware.intra_latency_ns,
        hop_ns=hardware.inter_latency_ns,
    )


def gather_ns(group: Group, size_bytes: float, messages: int = 1) -> float:
    """All-gather or reduce-scatter of so many bytes of full tensors, in so many messages."""
    if group.ranks == 1:
        return 0.0
    return messages * group.latency_ns + ring_bytes(group.ranks, size_bytes) / group.bytes_per_s * _NS_PER_S


def all_reduce_ns(group: Group, size_bytes: float, messages: int = 1) -> float:
    """All-reduce by the faster of ring and tree."""
    ring = 2 * gather_ns(group, size_bytes, messages)
    return min(ring, tree_all_reduce_ns(group, size_bytes, messages))


def tree_all_reduce_ns(group: Group, size_bytes: float, messages: int = 1) -> float:
    """All-reduce up and down a binary tree, pipelined."""
    if group.ranks == 1:
        return 0.0
    hops = 2 * math.ceil(math.log2(group.ranks)) * group.hop_ns
    return messages * hops + 2 * size_bytes / group.bytes_per_s * _NS_PER_S


def ring_bytes(ranks: int, size_bytes: float) -> float:
    """What of a tensor passes one link of a ring: (N-1)/N of it."""
    return size_bytes * (ranks - 1) / ranks


def data_group(hardware: Hardware, degrees: Degrees) -> Group:
    """Ranks with the same part of the model."""
    return make_group(hardware, degrees.dp, stride=degrees.mp)


def model_group(hardware: Hardware, degrees: Degrees) -> Group:
    """Ranks that share the matrices of every block."""
    return make_group(hardware, degrees.mp)


def boundary_group(hardware: Hardware, degrees: Degrees) -> Group:
    """Two neighbours of a pipeline: the slowest pair, which is on two nodes where the job is."""
    spans = degrees.devices > hardware.devices_per_node
    return make_group(hardware, 2, stride=hardware.devices_per_node if spans else 1)


def link_name(group: Group) -> str:
    """``intra``: within a node; ``inter``: through network cards."""
    return "intra" if group.nodes == 1 else "inter"
