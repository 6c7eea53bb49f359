"""What gloo executes for each c10d operator, and which tensors it shows.

Seen in traces of torch 2.13: a reduce-scatter runs as ``gloo:all_reduce`` over the full input, so its
kind is only known from the launch.
"""

from dataclasses import dataclass

from zprof.model.collectives import CollectiveKind

#: What a launch and its execution have in common: the operator that gloo runs, and its elements.
GlooKey = tuple[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooOperator:
    """One c10d operator.

    ``executed`` is the name behind ``gloo:``.  The execution shows the elements of ``argument`` of the
    launch; None where it shows none that all ranks have.  ``repeats``: it executes once for each rank of
    the group.  ``gathers``: the full tensor is as many times larger as the group has ranks.  ``shards``: the
    arguments that hold the full tensor and this rank's part, which tell how many ranks there are.
    ``root``: the argument of one-sided operators that names the root by its place in the group.
    """

    kind: CollectiveKind
    executed: str
    argument: int | None
    repeats: bool = False
    gathers: bool = False
    shards: tuple[int, int] | None = None
    root: int | None = None


OPERATORS: dict[str, GlooOperator] = {
    "c10d::_allgather_base_": GlooOperator(
        kind=CollectiveKind.ALL_GATHER, executed="all_gather", argument=1, gathers=True, shards=(0, 1)
    ),
    "c10d::allgather_": GlooOperator(
        kind=CollectiveKind.ALL_GATHER, executed="all_gather", argument=1, gathers=True, shards=(0, 1)
    ),
    "c10d::_reduce_scatter_base_": GlooOperator(
        kind=CollectiveKind.REDUCE_SCATTER, executed="all_reduce", argument=1, shards=(1, 0)
    ),
    "c10d::reduce_scatter_": GlooOperator(
        kind=CollectiveKind.REDUCE_SCATTER, executed="all_reduce", argument=0, repeats=True
    ),
    "c10d::allreduce_": GlooOperator(kind=CollectiveKind.ALL_REDUCE, executed="all_reduce", argument=0),
    "c10d::broadcast_": GlooOperator(kind=CollectiveKind.BROADCAST, executed="broadcast", argument=0, root=2),
    "c10d::alltoall_base_": GlooOperator(kind=CollectiveKind.ALL_TO_ALL, executed="all_to_all", argument=1),
    "c10d::alltoall_": GlooOperator(kind=CollectiveKind.ALL_TO_ALL, executed="all_to_all", argument=1),
    "c10d::reduce_": GlooOperator(kind=CollectiveKind.REDUCE, executed="reduce", argument=0, root=3),
    "c10d::gather_": GlooOperator(
        kind=CollectiveKind.GATHER, executed="gather", argument=1, gathers=True, root=3
    ),
    "c10d::scatter_": GlooOperator(kind=CollectiveKind.SCATTER, executed="scatter", argument=None, root=3),
    "c10d::barrier": GlooOperator(kind=CollectiveKind.BARRIER, executed="barrier", argument=None),
}

#: Executions that show no tensor which a launch on every rank has.
WITHOUT_TENSOR = frozenset(o.executed for o in OPERATORS.values() if o.argument is None)

#: Executions of point-to-point messages: the caller's thread carries them (see ``messages``).
MESSAGES = {
    "gloo:send": CollectiveKind.SEND,
    "gloo:recv": CollectiveKind.RECV,
    "gloo:recvAnySource": CollectiveKind.RECV,
}
