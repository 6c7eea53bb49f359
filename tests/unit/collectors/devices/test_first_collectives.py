"""The watch on the first collective of each NCCL group: once a group, nothing after, the methods go back."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from zprof.collectors.devices.sampler import SampleReason
from zprof.collectors.devices.watch import GroupWatch

Row = tuple[int, str, str]


class CudaTensor(torch.Tensor):
    """A tensor that says it is on cuda:2."""

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def device(self) -> torch.device:
        return torch.device("cuda:2")


ON_GPU = torch.ones(2).as_subclass(CudaTensor)
ON_HOST = torch.ones(2)


def make_groups() -> type:
    """A fresh ``ProcessGroup`` to patch; each call is noted in ``log``."""

    class Groups:
        def __init__(self, name: str, ranks: list[int], log: list[Any], config: str = "cuda:nccl") -> None:
            self.group_name, self.ranks, self.log, self.config = name, ranks, log, config

        def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> str:
            self.log.append(f"allreduce {self.group_name}")
            if options == "fail":
                raise ValueError("of the program")
            return "work"

        def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> str:
            self.log.append(f"allgather {self.group_name}")
            return "work"

    return Groups


@pytest.fixture(autouse=True)
def _names_of_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: group.config)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: group.ranks)


def watched(log: list[Any], works: Callable[[], bool] = lambda: True) -> tuple[GroupWatch, Any]:
    home = make_groups()

    def read(index: int, reason: SampleReason, name: str) -> bool:
        log.append((index, str(reason), name))
        return works()

    watch = GroupWatch(read, home)
    watch.install()
    return watch, home


def test_a_groups_first_collective_has_a_row_before_and_one_after() -> None:
    log: list[Any] = []
    _, home = watched(log)
    group = home("0", [1, 0], log)
    assert group.allreduce([ON_GPU]) == "work"
    assert group.allreduce([ON_GPU]) == "work"
    assert group.allgather([[ON_GPU]], [ON_GPU]) == "work"
    assert log == [
        (2, "before_group", "0,1"),
        "allreduce 0",
        (2, "after_group", "0,1"),
        "allreduce 0",
        "allgather 0",
    ]


def test_two_groups_of_the_same_ranks_have_two_names() -> None:
    log: list[Any] = []
    _, home = watched(log)
    home("0", [0, 1], log).allgather([[ON_GPU]], [ON_GPU])
    home("7", [0, 1], log).allgather([[ON_GPU]], [ON_GPU])
    assert [row[2] for row in log if isinstance(row, tuple)] == ["0,1", "0,1", "0,1#7", "0,1#7"]


def test_a_collective_on_the_host_does_not_count_as_the_first() -> None:
    log: list[Any] = []
    _, home = watched(log)
    group = home("0", [0], log, "cpu:gloo,cuda:nccl")
    group.allreduce([ON_HOST])
    assert log == ["allreduce 0"]
    group.allreduce([ON_GPU])
    assert log[1] == (2, "before_group", "0")


def test_other_backends_have_no_rows() -> None:
    log: list[Any] = []
    _, home = watched(log)
    home("0", [0], log, "cuda:gloo").allreduce([ON_GPU])
    assert log == ["allreduce 0"]


def test_the_methods_are_given_back_after_a_step_without_a_new_group() -> None:
    log: list[Any] = []
    watch, home = watched(log)
    original = home.__dict__["allreduce"].__wrapped__
    home("0", [0], log).allreduce([ON_GPU])
    watch.step()
    home("1", [1], log).allreduce([ON_GPU])
    watch.step()
    assert home.__dict__["allreduce"] is not original, "a group came within that step"
    watch.step()
    assert home.__dict__["allreduce"] is original
    home("2", [2], log).allreduce([ON_GPU])
    assert log[-2:] == [(2, "after_group", "1"), "allreduce 2"]


def test_a_method_that_somebody_else_wrapped_is_given_back_after_them() -> None:
    log: list[Any] = []
    watch, home = watched(log)
    ours = home.__dict__["allreduce"]
    home.allreduce = theirs = lambda group, tensors: ours(group, tensors)
    watch.remove()
    assert home.__dict__["allreduce"] is theirs
    home("0", [0], log).allreduce([ON_GPU])
    assert log == ["allreduce 0"], "and does nothing meanwhile"
    home.allreduce = ours
    watch.remove()
    assert home.__dict__["allreduce"] is ours.__wrapped__


def test_without_nvml_the_watch_ends() -> None:
    log: list[Any] = []
    watch, home = watched(log, works=lambda: False)
    home("0", [0], log).allreduce([ON_GPU])
    home("1", [0], log).allreduce([ON_GPU])
    assert log == [(2, "before_group", "0"), "allreduce 0", "allreduce 1"]
    watch.step()
    assert not hasattr(home.__dict__["allreduce"], "__wrapped__")


def test_a_fault_of_the_watch_does_not_reach_the_program() -> None:
    def broken() -> bool:
        raise RuntimeError("planted")

    log: list[Any] = []
    _, home = watched(log, works=broken)
    assert home("0", [0], log).allreduce([ON_GPU]) == "work"


def test_an_error_of_the_program_passes() -> None:
    log: list[Any] = []
    _, home = watched(log)
    with pytest.raises(ValueError, match="of the program"):
        home("0", [0], log).allreduce([ON_GPU], "fail")
    assert log == [(2, "before_group", "0"), "allreduce 0"]


def test_a_forked_child_takes_no_samples() -> None:
    log: list[Any] = []
    _, home = watched(log)
    child = os.fork()
    if child == 0:
        home("0", [0], log).allreduce([ON_GPU])
        os._exit(0 if log == ["allreduce 0"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_torchs_own_methods_are_wrapped_and_given_back() -> None:
    home = torch._C._distributed_c10d.ProcessGroup
    before = dict(home.__dict__)
    watch = GroupWatch(lambda index, reason, name: True)
    watch.install()
    changed = {name for name in before if home.__dict__[name] is not before[name]}
    watch.remove()
    assert {"allreduce", "_allgather_base", "_reduce_scatter_base", "broadcast", "barrier"} <= changed
    assert dict(home.__dict__) == before
