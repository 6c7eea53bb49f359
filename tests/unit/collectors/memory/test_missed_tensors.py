"""What the memory collector cannot read is a gap of the run, said once."""

from typing import Any

import torch

from zprof.collectors.devices.watch import GroupWatch
from zprof.collectors.memory.log import MemoryLog
from zprof.collectors.memory.saved_tensors import SavedOriginals
from zprof.collectors.memory.storages import find_live_tensors


class Refusing(torch.Tensor):
    def __tensor_flatten__(self) -> Any:
        raise RuntimeError("not to be asked")


def test_a_tensor_that_cannot_be_asked_is_one_gap() -> None:
    kept = [torch.ones(2).as_subclass(Refusing) for _ in range(3)]
    log = MemoryLog()
    for _ in find_live_tensors(lambda error: log.miss("tensors from before the window", error)):
        pass
    assert len(kept) == 3
    assert [(gap.what, gap.reason) for gap in log.gaps] == [
        ("memory: tensors from before the window", "not to be asked")
    ]


def test_a_context_that_does_not_say_what_it_keeps_is_missed() -> None:
    missed: list[Exception] = []
    originals = SavedOriginals(lambda packed: packed, missed.append)
    found = (torch.ones(1),)
    assert originals._originals(object(), found) is found
    assert [type(error) for error in missed] == [AttributeError]


def test_a_group_that_cannot_be_read_is_a_gap() -> None:
    class Groups:
        @property
        def group_name(self) -> str:
            raise RuntimeError("gone")

        def allreduce(self, tensors: object) -> str:
            return "work"

    watch = GroupWatch(lambda index, reason, name: True, Groups)
    watch.install()
    try:
        assert Groups().allreduce([torch.ones(1)]) == "work"
    finally:
        watch.remove()
    (gap,) = watch.gaps()
    assert gap.reason.endswith("gone")
