"""What a modelled link refuses; its times are held on real ranks."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm


@pytest.fixture
def comm() -> Iterator[ModelledComm]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    link = ModelledComm(LinkModel(bandwidth_bytes_per_s=1e9))
    try:
        yield link
    finally:
        link.close()
        dist.destroy_process_group()


def test_a_tensor_that_is_not_on_the_cpu_is_refused_in_one_line(comm: ModelledComm) -> None:
    with pytest.raises(ValueError, match=r"unit blocks.0 is on meta; .* CPU tensors only") as caught:
        comm.all_reduce(torch.empty(4, device="meta"), "blocks.0")
    assert "\n" not in str(caught.value)
    assert not comm.moved
