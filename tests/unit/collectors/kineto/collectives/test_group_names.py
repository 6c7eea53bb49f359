"""Names of process groups: alike on all ranks, apart where several span the same ones."""

from zprof.collectors.kineto.process_groups import GroupNames
from zprof.collectors.kineto.trace import Group


def group(name, ranks, description="undefined"):
    return Group(name=name, description=description, ranks=ranks)


WORLD = group("0", (), "default_pg")


def test_ranks_that_are_left_out_are_all():
    assert GroupNames([WORLD], 4).resolve("0") == ("0,1,2,3", 4)


def test_groups_over_the_same_ranks_are_told_apart_by_what_they_are():
    names = GroupNames([group("3", (0, 1), "mesh_fsdp"), WORLD, group("7", (1, 0)), group("12", (0, 1))], 2)
    assert names.resolve("0") == ("0,1", 2)
    assert names.resolve("3") == ("0,1#mesh_fsdp", 2)
    assert names.resolve("7") == ("0,1#7", 2)
    assert names.resolve("12") == ("0,1#12", 2)


def test_the_default_group_keeps_the_bare_ranks_whatever_it_is_called():
    names = GroupNames(
        [group("3", (0, 1), "dp"), Group(name="9", description="default_pg", ranks=(0, 1))], None
    )
    assert names.resolve("9") == ("0,1", 2)
    assert names.resolve("3") == ("0,1#dp", 2)


def test_a_description_that_two_share_tells_nothing_apart():
    names = GroupNames([WORLD, group("3", (0, 1), "dp"), group("4", (0, 1), "dp")], 2)
    assert {names.resolve("3")[0], names.resolve("4")[0]} == {"0,1#dp:3", "0,1#dp:4"}


def test_members_agree_though_each_lists_its_own_groups():
    """Ranks 0 and 2 are of different tensor groups, and both of the same pipeline group."""
    tp, pp = [group("1", (0, 1), "tp"), group("2", (2, 3), "tp")], group("4", (0, 2), "pp")
    first, second = GroupNames([WORLD, tp[0], pp], 4, 0), GroupNames([WORLD, tp[1], pp], 4, 2)
    assert first.resolve("4") == second.resolve("4") == ("0,2", 2)
    assert first.resolve("1") == ("0,1", 2)
    assert second.resolve("2") == ("2,3", 2)


def test_a_group_that_only_kernels_name_counts_among_those_of_its_ranks():
    names = GroupNames([WORLD], 2, seen=[group("9", (0, 1), "late"), group("9", (0, 1), "late")])
    assert names.shown("9", (1, 0)) == "0,1#late"
    assert names.shown("8", (5, 4)) == "4,5"


def test_without_a_name_only_one_group_can_be_meant():
    assert GroupNames([WORLD], 2).resolve(None) == ("0,1", 2)
    assert GroupNames([WORLD, group("1", (0,))], 2).resolve(None) == ("unknown", 0)
    assert GroupNames([], 2).resolve(None) == ("0,1", 2)
    assert GroupNames([], 2).listed() is None, "the trace lists none: there may be others"
    assert GroupNames([WORLD], None).resolve("0") == ("0", 0)


def test_the_size_tells_the_group_of_this_rank():
    names = GroupNames([WORLD, group("1", (0, 1)), group("2", (2, 3)), group("3", (0, 2, 4))], 8, rank=0)
    assert names.of_size(2) == ("0,1", 2)
    assert names.of_size(3) == ("0,2,4", 3)
    assert names.of_size(5) == ("unknown", 0)
    assert names.of_size(None) == ("unknown", 0)


def test_a_world_of_any_size_is_bounded():
    assert GroupNames([WORLD], 1 << 40).resolve("0") == ("0", 0)
    assert GroupNames([WORLD], -3).resolve("0") == ("0", 0)
