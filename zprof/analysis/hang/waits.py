"""Find the root causes of a hang: the nodes that wait for nobody in the graph of who waits for whom.

Ranks point to the operations they are in, operations to the members that keep them from finishing. A rank
that waits in a tensor group because its peer waits in an expert group is a victim; the node that all paths
lead to, and that leads nowhere itself, is the cause.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from zprof.analysis.hang.operations import Job, OperationKey, PendingOperation

Node = int | OperationKey


class Root(Struct, frozen=True, kw_only=True):
    """A cause that others wait for and that waits for nobody else: ranks, operations, or a cycle of both.

    ``held_up``: the operations that wait for this root's ranks.
    """

    ranks: tuple[int, ...]
    operations: tuple[PendingOperation, ...]
    held_up: tuple[PendingOperation, ...]


def find_roots(job: Job, stopped: frozenset[int]) -> tuple[Root, ...]:
    """Return all roots of the waits; ``stopped`` ranks finish nothing at all, so they wait for nobody.

    A rank may have passed an operation without waiting for it (a receive posted early). Whether it waits for
    it later is unknown: such an edge counts only if nothing else explains what the rank does, and if it
    closes no cycle.
    """
    operations = {operation.key: operation for operation in job.operations}
    edges = _list_edges(job, operations, stopped)
    component = _find_components(edges)
    size = Counter(component.values())
    early = [rank for rank in job.flights if _has_only_passed(edges, operations, rank)]
    for rank in early:
        if size[component[rank]] > 1:
            edges[rank] = set()
    component = _find_components(edges)
    while _add_passed(job, operations, edges, component):
        component = _find_components(edges)
    return _list_sinks(edges, component, operations, stopped)


def _add_passed(
    job: Job,
    operations: Mapping[OperationKey, PendingOperation],
    edges: dict[Node, set[Node]],
    component: Mapping[Node, int],
) -> bool:
    """Add edges from operations without late members to members that passed something unfinished.

    A device finishes passed operations before those that its host entered after waiting for them.
    """
    passed: dict[int, set[Node]] = {}
    for key, operation in operations.items():
        for rank, entry in operation.entries.items():
            if entry.is_passed:
                passed.setdefault(rank, set()).add(key)
    has_added = False
    for key, operation in operations.items():
        if edges[key]:
            continue
        for rank in operation.entries.keys() & passed.keys():
            new = passed[rank] - edges[rank]
            if new and all(component[target] != component[key] for target in new):
                edges[key].add(rank)
                edges[rank] |= new
                has_added = True
    return has_added


def _list_sinks(
    edges: Mapping[Node, set[Node]],
    component: Mapping[Node, int],
    operations: Mapping[OperationKey, PendingOperation],
    stopped: frozenset[int],
) -> tuple[Root, ...]:
    members: dict[int, list[Node]] = {}
    for node, number in component.items():
        members.setdefault(number, []).append(node)
    leads_on = {
        component[node]
        for node, targets in edges.items()
        for target in targets
        if component[target] != component[node]
    }
    roots = []
    for number, nodes in members.items():
        if number in leads_on:
            continue
        ranks = tuple(sorted(node for node in nodes if isinstance(node, int)))
        inside = tuple(operations[key] for key in sorted(node for node in nodes if not isinstance(node, int)))
        held_up = tuple(
            operation
            for key, operation in operations.items()
            if component[key] != number and not edges[key].isdisjoint(ranks)
        )
        if held_up or inside or stopped.intersection(ranks):
            roots.append(Root(ranks=ranks, operations=inside, held_up=held_up or inside))
    return tuple(sorted(roots, key=lambda root: (root.ranks, [each.key for each in root.operations])))


def _list_edges(
    job: Job, operations: Mapping[OperationKey, PendingOperation], stopped: frozenset[int]
) -> dict[Node, set[Node]]:
    edges: dict[Node, set[Node]] = {rank: set() for rank in (*job.flights, *job.missing)}
    passed: dict[int, set[Node]] = {}
    for key, operation in operations.items():
        holding = operation.late | operation.behind | (stopped.intersection(operation.members))
        # A missing rank is suspected only if nobody else holds the operation up.
        edges[key] = set(holding - operation.finished or operation.unknown)
        for rank in operation.members:
            edges.setdefault(rank, set())
        for rank, entry in operation.entries.items():
            if rank in stopped:
                continue
            if entry.is_passed:
                passed.setdefault(rank, set()).add(key)
            elif entry.order <= job.standing[rank]:
                edges[rank].add(key)
    for rank, keys in passed.items():
        edges[rank] = edges[rank] or keys
    return edges


def _has_only_passed(
    edges: Mapping[Node, set[Node]], operations: Mapping[OperationKey, PendingOperation], rank: int
) -> bool:
    """Return True if a rank has passed all of its unfinished operations."""
    keys = [key for key in edges[rank] if not isinstance(key, int)]
    return bool(keys) and all(operations[key].entries[rank].is_passed for key in keys)


def _find_components(edges: Mapping[Node, set[Node]]) -> dict[Node, int]:
    """Return the number of the strongly connected component of each node (Tarjan, without recursion)."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    component: dict[Node, int] = {}
    path: list[Node] = []
    on_path: set[Node] = set()
    for start in edges:
        if start in index:
            continue
        work = [(start, iter(edges[start]))]
        index[start] = low[start] = len(index)
        path.append(start)
        on_path.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    path.append(target)
                    on_path.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_path:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    number = len(component)
                    while True:
                        member = path.pop()
                        on_path.discard(member)
                        component[member] = number
                        if member == node:
                            break
    return component
