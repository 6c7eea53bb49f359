"""Grids of ranks and modelled links: what they refuse, make and give back."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from zprof.reference_engine.comm.collective import CollectiveType, LaunchedCollective
from zprof.reference_engine.comm.mesh import check_mesh, make_mesh
from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm
from zprof.reference_engine.comm.native import NativeComm


@pytest.fixture
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("world_size", "dp", "mp", "words"),
    [
        (4, 3, 2, ("dp 3", "mp 2", "6 ranks", "4")),
        (4, 2, 1, ("dp 2", "mp 1", "2 ranks", "4")),
        (4, 0, 4, ("dp is 0",)),
        (4, -2, -2, ("dp is -2", "mp is -2")),
    ],
)
def test_a_grid_that_does_not_hold_all_ranks_is_refused(world_size, dp, mp, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        check_mesh(world_size=world_size, dp=dp, mp=mp)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.usefixtures("_one_rank")
def test_nothing_split_is_the_default_group_and_no_other():
    asked: list[object] = []

    def transport(group: dist.ProcessGroup | None) -> NativeComm:
        asked.append(group)
        return NativeComm(group)

    mesh = make_mesh(transport, dp=1)
    assert asked == [None]
    assert mesh.mp is None
    assert (mesh.dp_index, mesh.mp_index, mesh.dp_size, mesh.mp_size) == (0, 0, 1, 1)
    mesh.close()
    with pytest.raises(ValueError, match="mp 2"):
        make_mesh(transport, dp=1, mp=2)


@pytest.mark.parametrize(("kind", "moved"), zip(CollectiveType, (750, 750, 1500, 1000), strict=True))
def test_a_link_takes_its_latency_and_the_ring_volume(kind, moved):
    link = LinkModel(bandwidth_bytes_per_s=1000, latency_s=2, rank_factors={3: 2.0})
    collective = LaunchedCollective(kind=kind, group="0", sequence=0, unit="u", bytes=1000, dtype="float32")
    assert link.seconds(collective, 4) == pytest.approx((2 + moved / 1000) * 2)
    assert link.seconds(collective, 1) == 0


@pytest.mark.usefixtures("_one_rank")
def test_a_modelled_link_carries_cpu_tensors_alone() -> None:
    comm = ModelledComm(LinkModel(bandwidth_bytes_per_s=1e9))
    try:
        with pytest.raises(ValueError, match=r"blocks\.0.*meta"):
            comm.all_reduce(torch.empty(4, device="meta"), "blocks.0")
        assert not comm.moved
    finally:
        comm.close()


@pytest.mark.parametrize("rank", range(6))
def test_a_grid_of_unequal_sides_has_the_right_neighbours(monkeypatch, rank: int):
    monkeypatch.setattr(dist, "get_world_size", lambda: 6)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "new_group", tuple)
    mesh = make_mesh(lambda group: group, dp=2, mp=3)
    row, column = divmod(rank, 3)
    assert (mesh.dp_index, mesh.mp_index, mesh.dp_size, mesh.mp_size) == (row, column, 2, 3)
    assert mesh.mp == (3 * row, 3 * row + 1, 3 * row + 2)
    assert mesh.dp == (column, column + 3)
