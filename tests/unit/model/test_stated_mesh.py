"""Roles of groups in a stated mesh; the simulator, which has a layout of its own, knows the true groups."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.base.errors import BadInput
from zprof.model.mesh import GroupRole
from zprof.model.stated_mesh import StatedMesh, check_mesh, list_stated_roles
from zprof.simulator.mesh.layout import (
    CONTEXT,
    DATA,
    EXPERT,
    MODEL,
    PIPELINE,
    REPLICA,
    TENSOR,
    WORLD,
    Degrees,
    list_groups,
)

ROLES = {
    DATA: GroupRole.SHARD,
    REPLICA: GroupRole.REPLICA,
    TENSOR: GroupRole.TENSOR,
    CONTEXT: GroupRole.CONTEXT,
    EXPERT: GroupRole.EXPERT,
    PIPELINE: GroupRole.PIPELINE,
}
SIZES = st.sampled_from([1, 2, 3, 4])
DEGREES = st.builds(
    lambda experts, each, **sizes: Degrees(expert=experts, data=experts * each, **sizes),
    SIZES,
    SIZES,
    pipeline=SIZES,
    replica=SIZES,
    context=st.sampled_from([1, 2]),
    tensor=SIZES,
)


def state(degrees: Degrees) -> StatedMesh:
    """Return the mesh as a user states it."""
    return (
        ("pp", degrees.pipeline),
        ("dp_replicate", degrees.replica),
        ("dp_shard", degrees.data),
        ("cp", degrees.context),
        ("tp", degrees.tensor),
        ("ep", degrees.expert),
    )


@given(DEGREES)
def test_groups_of_a_job_have_their_roles(degrees: Degrees) -> None:
    mesh = state(degrees)
    check_mesh(mesh, degrees.world)
    for comm, role in ROLES.items():
        # The simulator's experts are neighbors in a data group without contexts.
        if comm == EXPERT and degrees.context > 1:
            continue
        for ranks in list_groups(degrees, comm):
            if len(ranks) > 1:
                roles = list_stated_roles(mesh, ranks)
                is_known = comm != DATA or degrees.data > 1  # else a context group
                assert role in roles if is_known else GroupRole.CONTEXT in roles
                assert list_stated_roles(mesh, random.Random(0).sample(ranks, len(ranks))) == roles


@given(DEGREES, st.randoms(use_true_random=False))
def test_only_whole_lines_have_roles(degrees: Degrees, draw: random.Random) -> None:
    """A group without one of its ranks, or with a wrong one, is along no dimension."""
    mesh = tuple((name, size) for name, size in state(degrees) if name != "ep")
    for comm in (WORLD, DATA, TENSOR, PIPELINE, MODEL):
        ranks = draw.choice(list_groups(degrees, comm))
        if len(ranks) > 3 and all(size in (1, 3) for _, size in mesh):  # parts of 4 = 2 x 2 are lines
            assert list_stated_roles(mesh, ranks[1:]) == ()


def test_order_is_outermost_first() -> None:
    assert list_stated_roles((("dp", 2), ("tp", 4)), range(4)) == (GroupRole.TENSOR,)
    assert list_stated_roles((("tp", 4), ("dp", 2)), range(4)) == ()
    assert list_stated_roles((("dp", 2), ("tp", 4)), range(8)) == (GroupRole.OTHER,)


def test_experts_may_divide_the_tensor_ranks() -> None:
    """Ranks 0 to 3: two of four shards with both tensor ranks, torchtitan's etp = 1."""
    assert GroupRole.EXPERT in list_stated_roles((("dp_shard", 4), ("tp", 2), ("ep", 4)), range(4))


@pytest.mark.parametrize(
    "mesh",
    [
        (("dp", 3),),
        (("dp", 4), ("dp", 2)),
        (("dp", 8), ("xp", 1)),
        (("dp", -8), ("tp", -1)),
        (("dp", 0),),
        (("dp", 4), ("dp_shard", 2)),
        (("dp", 8), ("ep", 3)),
        (("ep", 8),),
    ],
)
def test_sizes_that_do_not_fit_are_refused(mesh: StatedMesh) -> None:
    with pytest.raises(BadInput):
        check_mesh(mesh, 8)
