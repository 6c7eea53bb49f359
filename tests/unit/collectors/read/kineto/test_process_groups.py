"""Names of process groups: alike on all ranks, apart where several span the same ones."""

import pytest

from zprof.collectors.read.kineto.process_groups import GroupResolver
from zprof.collectors.read.kineto.trace import TraceProcessGroup


def group(name, ranks, description="undefined"):
    return TraceProcessGroup(name=name, description=description, ranks=ranks)


WORLD = group("0", (), "default_pg")
FSDP, DP, TWIN = group("3", (0, 1), "fsdp"), group("3", (0, 1), "dp"), group("4", (0, 1), "dp")


@pytest.mark.parametrize(
    ("groups", "world_size", "name", "want"),
    [
        ([WORLD], 4, "0", ("0,1,2,3", 4)),
        ([FSDP, WORLD, group("7", (1, 0)), group("12", (0, 1))], 2, "0", ("0,1", 2)),
        ([FSDP, WORLD, group("7", (1, 0)), group("12", (0, 1))], 2, "3", ("0,1#fsdp", 2)),
        ([FSDP, WORLD, group("7", (1, 0)), group("12", (0, 1))], 2, "7", ("0,1#7", 2)),
        # the default group has the bare ranks, whatever its name is
        ([DP, group("9", (0, 1), "default_pg")], None, "9", ("0,1", 2)),
        ([DP, group("9", (0, 1), "default_pg")], None, "3", ("0,1#dp", 2)),
        # a description that two groups share does not tell them apart
        ([WORLD, DP, TWIN], 2, "3", ("0,1#dp:3", 2)),
        ([WORLD, DP, TWIN], 2, "4", ("0,1#dp:4", 2)),
        # without a name only one group can be meant
        ([WORLD], 2, None, ("0,1", 2)),
        ([], 2, None, ("0,1", 2)),
        ([WORLD, group("1", (0,))], 2, None, ("unknown", 0)),
        # a world of unknown or impossible size
        ([WORLD], None, "0", ("0", 0)),
        ([WORLD], 1 << 40, "0", ("0", 0)),
        ([WORLD], -3, "0", ("0", 0)),
    ],
)
def test_the_name_and_size_of_a_group(groups, world_size, name, want):
    assert GroupResolver(groups, world_size).resolve(name) == want


def test_members_agree_though_each_lists_its_own_groups():
    pipeline = group("4", (0, 2), "pp")
    first = GroupResolver([WORLD, group("1", (0, 1), "tp"), pipeline], 4, 0)
    second = GroupResolver([WORLD, group("2", (2, 3), "tp"), pipeline], 4, 2)
    assert first.resolve("4") == second.resolve("4") == ("0,2", 2)
    assert (first.resolve("1"), second.resolve("2")) == (("0,1", 2), ("2,3", 2))


@pytest.mark.parametrize(
    ("size", "want"), [(2, ("0,1", 2)), (3, ("0,2,4", 3)), (5, ("unknown", 0)), (None, ("unknown", 0))]
)
def test_the_size_identifies_the_group_of_this_rank(size, want):
    names = GroupResolver([WORLD, group("1", (0, 1)), group("2", (2, 3)), group("3", (0, 2, 4))], 8, rank=0)
    assert names.resolve_by_size(size) == want
