"""The watch on the first collective of each NCCL group: once a group, then its methods are restored."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from zprof.collectors.record.devices.watch import GroupWatch, SampleReason

BEFORE, AFTER = "before_group", "after_group"


class CudaTensor(torch.Tensor):
    """A tensor that says it is on cuda:2."""

    is_cuda = True
    device = torch.device("cuda:2")


ON_GPU = torch.ones(2).as_subclass(CudaTensor)


class Watched:
    """A fresh class of process groups under watch, and the log of samples and collectives."""

    def __init__(self, works: Callable[[], bool] = lambda: True) -> None:
        self.log: list[Any] = []
        log = self.log

        class Groups:
            def __init__(self, name: str, ranks: list[int], config: str = "cuda:nccl") -> None:
                self.group_name, self.ranks, self.config = name, ranks, config

            def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> str:
                log.append(f"allreduce {self.group_name}")
                if options == "fail":
                    raise ValueError("of the program")
                return "work"

            def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> str:
                log.append(f"allgather {self.group_name}")
                return "work"

        def read(index: int, reason: SampleReason, name: str) -> bool:
            log.append((index, str(reason), name))
            return works()

        self.group: Any = Groups
        self.original = Groups.allreduce
        self.watch = GroupWatch(read, Groups)
        self.watch.install()


@pytest.fixture(autouse=True)
def _names_of_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: group.config)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: group.ranks)


def test_a_groups_first_collective_has_a_row_before_and_one_after() -> None:
    watched = Watched()
    group = watched.group("0", [1, 0])
    assert group.allreduce([ON_GPU]) == "work"
    assert group.allgather([[ON_GPU]], [ON_GPU]) == "work"
    watched.group("7", [0, 1]).allgather([[ON_GPU]], [ON_GPU])
    first = [(2, BEFORE, "0,1"), "allreduce 0", (2, AFTER, "0,1")]
    assert watched.log == [*first, "allgather 0", (2, BEFORE, "0,1#7"), "allgather 7", (2, AFTER, "0,1#7")]


def test_the_methods_are_restored_after_a_step_without_a_new_group() -> None:
    watched = Watched()
    for name in ("0", "1"):
        watched.group(name, [int(name)]).allreduce([ON_GPU])
        watched.watch.step()
        assert watched.group.allreduce is not watched.original
    watched.watch.step()
    assert watched.group.allreduce is watched.original


def test_errors_of_the_program_pass_and_those_of_the_watch_do_not() -> None:
    def broken() -> bool:
        raise RuntimeError("planted")

    watched = Watched(works=broken)
    assert watched.group("0", [0]).allreduce([ON_GPU]) == "work"
    assert "planted" in watched.watch.gaps()[0].reason
    with pytest.raises(ValueError, match="of the program"):
        Watched().group("0", [0]).allreduce([ON_GPU], "fail")


def test_torchs_own_methods_are_wrapped_and_restored() -> None:
    home = torch._C._distributed_c10d.ProcessGroup
    before = dict(home.__dict__)
    watch = GroupWatch(lambda index, reason, name: True)
    watch.install()
    changed = {name for name in before if home.__dict__[name] is not before[name]}
    watch.remove()
    assert {"allreduce", "_allgather_base", "_reduce_scatter_base", "broadcast", "barrier"} <= changed
    assert dict(home.__dict__) == before
