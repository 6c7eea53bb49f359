"""Which kernel runs AdamW where: by the device, by what was asked for, and by what can be had."""

import sys
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from engine_helpers import engine, tiny_gpt
from fake_comm import FakeComm

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.config import AdamKernel
from zprof.reference_engine.optimizer.adamw import TorchAdamW, choose_update

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Kernel:
    def __init__(self, device: torch.device) -> None:
        self.device = device


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for the CUDA kernel, since the real one needs a GPU; ``reason`` says why it is not there."""
    module: Any = ModuleType("cuda")
    module.reason = None
    module.unavailable = lambda: module.reason
    module.CudaAdamW = Kernel
    monkeypatch.setitem(sys.modules, "zprof.reference_engine.optimizer.cuda", module)
    return module


@pytest.mark.parametrize("adam", [AdamKernel.AUTO, AdamKernel.CUDA])
def test_a_gpu_gets_the_cuda_kernel(cuda, adam):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = choose_update(ZeroConfig(adam=adam), GPU)
    assert isinstance(kernel, Kernel)
    assert kernel.device == GPU


@pytest.mark.parametrize("adam", [AdamKernel.AUTO, AdamKernel.TORCH])
def test_a_cpu_gets_torchs_without_a_word(monkeypatch, adam):
    monkeypatch.setitem(sys.modules, "zprof.reference_engine.optimizer.cuda", None)  # importing it fails
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(choose_update(ZeroConfig(adam=adam), CPU), TorchAdamW)


def test_a_gpu_gets_torchs_where_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "zprof.reference_engine.optimizer.cuda", None)
    assert isinstance(choose_update(ZeroConfig(adam=AdamKernel.TORCH), GPU), TorchAdamW)


def test_auto_on_a_gpu_without_the_extra_warns_once_and_takes_torchs(cuda):
    cuda.reason = "cuda.core is not installed"
    with pytest.warns(UserWarning, match=r"cuda.core is not installed.*pip install 'zprof\[cuda\]'") as seen:
        kernel = choose_update(ZeroConfig(), GPU)
    assert isinstance(kernel, TorchAdamW)
    assert len(seen) == 1


def test_cuda_without_the_extra_is_refused_in_one_line(cuda):
    cuda.reason = "cuda.core is not installed"
    with pytest.raises(ValueError, match=r"cuda.core is not installed.*pip install 'zprof\[cuda\]'") as seen:
        choose_update(ZeroConfig(adam=AdamKernel.CUDA), GPU)
    assert "\n" not in str(seen.value)


def test_the_remedy_is_not_said_twice(cuda):
    cuda.reason = "cuda.core is not installed: pip install 'zprof[cuda]'"
    with pytest.raises(ValueError, match="pip install") as seen:
        choose_update(ZeroConfig(adam=AdamKernel.CUDA), GPU)
    assert str(seen.value).count("pip install") == 1


def test_cuda_for_a_model_on_the_cpu_is_refused_before_the_model_is_changed():
    model = tiny_gpt()
    storage = model.blocks[0].expand.weight.data_ptr()
    with pytest.raises(ValueError, match=r"parameters are on cpu.*before zero\(\)"):
        zero(model, ZeroConfig(adam=AdamKernel.CUDA), FakeComm())
    assert model.blocks[0].expand.weight.data_ptr() == storage


def test_constant_buffers_bound_the_copies_of_torchs():
    _, optimizer, _ = engine(1, dtype=torch.bfloat16, constant_buffers=64)
    assert optimizer._update._piece_elements == 64


def no_kernel(device: torch.device) -> Any:
    raise RuntimeError("NVRTC cannot compile for sm_35")


def test_a_kernel_that_cannot_be_compiled_is_done_without(cuda):
    cuda.CudaAdamW = no_kernel
    with pytest.warns(UserWarning, match="sm_35.*torch's fused AdamW runs instead"):
        assert isinstance(choose_update(ZeroConfig(), GPU), TorchAdamW)
    with pytest.raises(ValueError, match="sm_35"):
        choose_update(ZeroConfig(adam=AdamKernel.CUDA), GPU)
