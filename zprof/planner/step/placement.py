"""Which ranks talk to each other along each axis, and over which link.

Model-parallel ranks lie next to each other, data-parallel ones as far apart as there are model-parallel ones,
stages of a pipeline farthest: the order of Megatron-LM (arXiv 2104.04473, section 3), which keeps what cannot
be hidden within a node.
"""

from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Degrees
from zprof.planner.step.collectives import Group, group_of


def data_group(hardware: Hardware, degrees: Degrees) -> Group:
    """Ranks with the same part of the model."""
    return group_of(hardware, degrees.dp, stride=degrees.mp)


def model_group(hardware: Hardware, degrees: Degrees) -> Group:
    """Ranks that share the matrices of every block."""
    return group_of(hardware, degrees.mp)


def boundary(hardware: Hardware, degrees: Degrees) -> Group:
    """Two neighbours of a pipeline: the slowest pair, which is on two nodes where the job is."""
    spans = degrees.devices > hardware.devices_per_node
    return group_of(hardware, 2, stride=hardware.devices_per_node if spans else 1)


def link(group: Group) -> str:
    """``intra``: within a node; ``inter``: through network cards."""
    return "intra" if group.nodes == 1 else "inter"
