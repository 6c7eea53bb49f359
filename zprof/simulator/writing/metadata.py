"""What PyTorch says about a collective: on its operator, and copied to its kernel."""

from zprof.model.collectives import CollectiveKind
from zprof.simulator.engine.schedule import Line
from zprof.simulator.program.instructions import Collective
from zprof.simulator.program.mesh import Groups
from zprof.simulator.writing.names import COLLECTIVES, TYPES


def elements_in_out(collective: Collective, group_size: int) -> tuple[int, int]:
    """Elements that a rank puts in, and that it gets out."""
    full = collective.elements
    shard = max(1, full // group_size)
    if collective.kind is CollectiveKind.ALL_GATHER:
        return shard, full
    return full, shard if collective.kind is CollectiveKind.REDUCE_SCATTER else full


def group_ranks(line: Line, rank: int) -> list[int]:
    """The ranks of this rank's group."""
    assert line.groups is not None
    return ranks_of(line.groups, rank)


def ranks_of(groups: Groups, rank: int) -> list[int]:
    """The ranks of a rank's group along an axis."""
    row = groups.members[(groups.members == rank).any(axis=1)][0]
    return [int(member) for member in sorted(row)]


def metadata_arguments(line: Line, ranks: list[int], sequence: bool) -> list[str]:
    """Arguments on the kernel; with ``sequence`` the last one is a value of the template."""
    collective, groups = line.instruction, line.groups
    assert isinstance(collective, Collective)
    assert groups is not None
    put_in, got_out = elements_in_out(collective, groups.size)
    return [
        f'"Collective name": "{COLLECTIVES[collective.kind].metadata}"',
        f'"In msg nelems": {put_in}',
        f'"Out msg nelems": {got_out}',
        f'"Group size": {groups.size}',
        f'"dtype": "{TYPES[collective.dtype].metadata}"',
        '"In split size": "[]"',
        '"Out split size": "[]"',
        f'"Process Group Name": "{groups.name}"',
        f'"Process Group Description": "{groups.description}"',
        f'"Process Group Ranks": "{shown_ranks(ranks)}"',
        *(['"Seq": %s'] if sequence else []),
    ]


def shown_ranks(ranks: list[int]) -> str:
    """As PyTorch writes them: long lists are cut short."""
    most = 30
    if len(ranks) <= most:
        return "[" + ", ".join(map(str, ranks)) + "]"
    return "[" + ", ".join(map(str, ranks[:most])) + ", ...]"
