"""Grids that are refused, and what a mesh makes and gives back; real groups are in the tests of ranks."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from fake_comm import FakeComm

from zprof.reference_engine.comm.mesh import Mesh, check_mesh, make_mesh
from zprof.reference_engine.comm.native import NativeComm


@pytest.fixture
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("world_size", "dp", "mp", "message"),
    [
        (4, 3, 2, "dp 3 x mp 2 is 6 ranks, but there are 4"),
        (4, 2, 1, "dp 2 x mp 1 is 2 ranks, but there are 4"),
        (4, 0, 4, "dp is 0 and mp is 4; both must be 1 or more"),
        (4, -2, -2, "dp is -2 and mp is -2; both must be 1 or more"),
    ],
)
def test_a_grid_that_does_not_hold_all_ranks_is_refused(world_size: int, dp: int, mp: int, message: str):
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_mesh(world_size=world_size, dp=dp, mp=mp)


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
    with pytest.raises(ValueError, match="dp 1 x mp 2 is 2 ranks, but there are 1"):
        make_mesh(transport, dp=1, mp=2)


class Closing(FakeComm):
    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.closed = 0
        self.error = error

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


def mesh_of(dp: Closing, mp: Closing) -> Mesh:
    return Mesh(dp=dp, mp=mp, dp_index=0, mp_index=0, dp_size=1, mp_size=1)


def test_both_transports_are_closed_also_if_the_first_fails():
    dp, mp = Closing(RuntimeError("gone")), Closing()
    with pytest.raises(RuntimeError, match="gone"):
        mesh_of(dp, mp).close()
    assert (dp.closed, mp.closed) == (1, 1)
