"""Activations that go to host memory stand in rows of their own device, and in no sum of the other one.

Without a GPU the device of rows is changed afterwards: what the program's pack hook made is the host's.
"""

import pandas as pd
import torch
from memory_window import Window, record
from torch import nn

from zprof.analysis.memory.live_bytes import RankLives, list_devices, read_rank_lives
from zprof.model.tenants import Tenant

BATCH, WIDTH = 64, 64
SAVED = 3 * BATCH * WIDTH * 4


def offloaded() -> tuple[Window, pd.DataFrame]:
    """A window whose saved tensors were copied, and its rows as a GPU would have given them."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    own = {parameter.data_ptr() for parameter in model.parameters()}
    copies: set[int] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() in own:
            return tensor.detach()
        copy = tensor.detach().clone()
        copies.add(copy.data_ptr())
        return copy

    def body() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            loss = model(torch.randn(BATCH, WIDTH)).square().mean()
        loss.backward()

    window = record(body, model)
    cloned = window.alloc["address"].isin(copies) & window.alloc["operator"].isin(["aten.clone.default"])
    begins = window.alloc.loc[cloned, ["address", "allocated_ns"]].to_numpy().tolist()
    alloc = window.alloc.copy()
    alloc["device"] = "cuda:0"
    for address, noted_ns in begins:
        same = (alloc["address"] == address) & (alloc["allocated_ns"] <= noted_ns)
        alloc.loc[alloc.index[same][-1:], "device"] = "cpu"  # the allocator's row
        alloc.loc[(alloc["address"] == address) & (alloc["allocated_ns"] == noted_ns), "device"] = "cpu"
    return window, alloc


def lives_on(device: str, window: Window, alloc: pd.DataFrame) -> RankLives:
    return read_rank_lives(alloc, window.role, window.lives.timeline, device)


def test_rows_of_the_host_stay_out_of_the_device() -> None:
    window, alloc = offloaded()
    assert list_devices(alloc) == ["cuda:0", "cpu"]
    device, host = (lives_on(name, window, alloc) for name in ("cuda:0", "cpu"))
    assert host.peak().tenants[Tenant.ACTIVATIONS] == host.peak().bytes == SAVED
    assert len(device.blocks) + len(host.blocks) == len(window.lives.blocks)
    assert device.blocks.bytes.sum() + host.blocks.bytes.sum() == window.lives.blocks.bytes.sum()


def test_the_device_holds_no_copy_of_them() -> None:
    window, alloc = offloaded()
    kept = lives_on("cuda:0", window, alloc).segments
    assert SAVED not in kept.bytes[kept.sub == "saved"]
    everything = window.lives.peak().untagged_bytes  # of tests that ran before
    assert lives_on("cuda:0", window, alloc).peak().untagged_bytes == everything
