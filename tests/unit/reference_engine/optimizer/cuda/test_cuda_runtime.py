"""The kernels on a device, with a stand-in for cuda.core: right device, torch's stream, loaded once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from zprof.reference_engine.optimizer.cuda import CudaAdamW, KernelError
from zprof.reference_engine.optimizer.cuda import launch as runtime

GPU = torch.device("cuda", 1)


class Core:
    """What was done, in order, as tuples; ``fail`` names the call that raises."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.fail = ""

    def note(self, name: str, *what: Any) -> None:
        if self.fail == name:
            raise SystemError(f"CUDA_ERROR of {name}\nand more")
        self.done.append((name, *what))

    def names(self) -> list[str]:
        return [entry[0] for entry in self.done]

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.note("enter", device)
        yield
        self.note("leave", device)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    core = Core()
    module: Any = ModuleType("cuda.core")

    def kernel(name: str) -> Any:
        core.note("get_kernel", name)
        return SimpleNamespace(
            name=name,
            occupancy=SimpleNamespace(max_active_blocks_per_multiprocessor=lambda block, shared: 3),
        )

    def from_cubin(code: bytes, name: str) -> Any:
        core.note("from_cubin", code)
        return SimpleNamespace(get_kernel=kernel)

    def launch(stream: Any, config: Any, kernel: Any, *arguments: Any) -> None:
        core.note("launch", stream.__cuda_stream__(), config, kernel.name, arguments)

    module.Device = lambda index: SimpleNamespace(set_current=lambda: core.note("set_current", index))
    module.ObjectCode = SimpleNamespace(from_cubin=from_cubin)
    module.LaunchConfig = lambda grid, block: (grid, block)
    module.launch = launch
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", module)
    monkeypatch.setattr(runtime, "load_cubin", lambda arch, folder: arch.encode())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, device.index))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132)
    )
    monkeypatch.setattr(torch.cuda, "device", core.device)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=4000 + device.index)
    )
    return core


def test_it_loads_its_code_once_and_launches_on_torchs_stream_with_its_device_current(core):
    made = runtime.CudaRuntime(GPU)
    assert (made.stream(), made.resident_blocks("kernel")) == (4001, 3 * 132)
    assert core.done.count(("from_cubin", b"sm_91")) == 1
    core.done.clear()
    for _ in range(2):
        made.launch("kernel", 7, 11, 0.5)
    assert "from_cubin" not in core.names()
    assert core.names().count("get_kernel") <= 1
    assert core.names()[-4:] == ["enter", "set_current", "launch", "leave"]
    assert core.done[-4] == ("enter", GPU)
    assert core.done[-3] == ("set_current", 1)
    assert core.done[-2] == ("launch", (0, 4001), (7, runtime.THREADS), "kernel", (11, 0.5))


@pytest.mark.parametrize("fail", ["from_cubin", "get_kernel"])
def test_code_that_cannot_be_loaded_is_one_line(core, fail):
    core.fail = fail
    with pytest.raises(KernelError, match=f"^[^\n]*cuda:1[^\n]*{fail}$"):
        runtime.CudaRuntime(GPU).launch("kernel", 1)


def test_a_device_without_a_number_is_the_current_one(core, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    CudaAdamW(torch.device("cuda"))
    assert ("enter", GPU) in core.done
