"""Process groups of gloo's collectives by the thread that ran them.

Gloo's events name no group, but each group has worker threads of its own.  Where shapes tell the group of
some collectives (a gather over four ranks is four times its input), their threads tell it of the others.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from zprof.collectors.kineto.collectives.groups import UNKNOWN_GROUP
from zprof.collectors.kineto.gloo.executions import Execution
from zprof.collectors.kineto.gloo.launches import Launch
from zprof.collectors.kineto.gloo.operators import GlooKey

_Group = tuple[str, int]
_UNKNOWN: _Group = (UNKNOWN_GROUP, 0)


def with_groups_of_threads(launches: Sequence[Launch], executions: Sequence[Execution]) -> list[Launch]:
    """The launches, with the group of those whose executions all ran on threads of one group."""
    launched: dict[GlooKey, set[_Group]] = defaultdict(set)
    for launch in launches:
        launched[launch.key].add((launch.group, launch.group_size))
    ran_on: dict[GlooKey, set[int]] = defaultdict(set)
    for execution in executions:
        ran_on[execution.key].add(execution.thread)
    owners = _owners(launched, ran_on)
    return [_with_group(launch, ran_on[launch.key], owners) for launch in launches]


def _owners(
    launched: Mapping[GlooKey, set[_Group]], ran_on: Mapping[GlooKey, set[int]]
) -> Mapping[int, set[_Group]]:
    """Groups of each thread, from operators that one known group alone launched."""
    owners: dict[int, set[_Group]] = defaultdict(set)
    for key, groups in launched.items():
        if len(groups) == 1 and _UNKNOWN not in groups:
            for thread in ran_on.get(key, ()):
                owners[thread] |= groups
    return owners


def _with_group(launch: Launch, threads: set[int], owners: Mapping[int, set[_Group]]) -> Launch:
    if launch.group != UNKNOWN_GROUP or not threads or not threads <= owners.keys():
        return launch
    groups = set().union(*(owners[thread] for thread in threads))
    if len(groups) != 1:
        return launch
    group, size = groups.pop()
    return replace(launch, group=group, group_size=size)
