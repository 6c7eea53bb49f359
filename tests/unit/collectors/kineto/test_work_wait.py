"""``Work.wait`` is wrapped in the window and put back after it."""

import pytest
import torch
import torch.distributed as dist

from zprof.collectors.kineto.collector import WAIT_RANGE, KinetoCollector, WaitRanges

Work = torch._C._distributed_c10d.Work


@pytest.fixture
def lone_group(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_removing_puts_the_original_back():
    original = Work.wait
    ranges = WaitRanges()
    ranges.install()
    assert Work.wait is not original
    ranges.remove()
    assert Work.wait is original
    ranges.remove()
    assert Work.wait is original


def test_somebody_elses_wrapper_is_left_alone():
    original = Work.wait
    ranges = WaitRanges()
    ranges.install()
    ours = Work.wait

    def theirs(*arguments, **options):
        return ours(*arguments, **options)

    Work.wait = theirs
    try:
        ranges.remove()
        assert Work.wait is theirs
    finally:
        Work.wait = original


def test_a_wait_leaves_a_range_and_the_window_leaves_nothing_behind(lone_group):
    original = Work.wait
    collector = KinetoCollector()
    collector.start()
    tensor = torch.ones(16)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    dist.all_reduce(tensor)
    collector.stop()
    assert Work.wait is original
    names = collector.tables()["events"]["name"].to_pylist()
    assert names.count(WAIT_RANGE) == 2
    assert names.count("c10d::allreduce_") == 2
    assert list(collector.tables()["collectives"]["kind"]) == ["all_reduce", "all_reduce"]
    assert not collector.gaps()


def test_a_window_that_never_opened_can_be_stopped():
    collector = KinetoCollector()
    collector.stop()
    assert not collector.tables()
