"""Which kernel runs AdamW: by the device, by what was asked for, and by what is installed."""

import sys
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch

from zprof.reference_engine import ZeroConfig
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
    module.explain_unavailable = lambda: module.reason
    module.CudaAdamW = Kernel
    monkeypatch.setitem(sys.modules, "zprof.reference_engine.optimizer.cuda", module)
    return module


@pytest.mark.parametrize("adam", [AdamKernel.AUTO, AdamKernel.CUDA])
def test_a_gpu_gets_the_cuda_kernel(cuda, adam):
    kernel = choose_update(ZeroConfig(adam=adam), GPU)
    assert isinstance(kernel, Kernel)
    assert kernel.device == GPU


@pytest.mark.parametrize(
    ("adam", "device"), [(AdamKernel.AUTO, CPU), (AdamKernel.TORCH, CPU), (AdamKernel.TORCH, GPU)]
)
def test_without_need_the_cuda_kernel_is_not_imported(monkeypatch, adam, device):
    monkeypatch.setitem(sys.modules, "zprof.reference_engine.optimizer.cuda", None)  # importing it fails
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(choose_update(ZeroConfig(adam=adam), device), TorchAdamW)


def not_compiled(device: torch.device) -> Any:
    raise RuntimeError("NVRTC cannot compile for sm_35")


@pytest.mark.parametrize("reason", ["missing", "missing: pip install 'zprof[cuda]'", None])
def test_a_kernel_that_cannot_be_used_is_a_warning_or_an_error_with_the_remedy(cuda, reason):
    cuda.reason, cuda.CudaAdamW = reason, not_compiled
    with pytest.warns(UserWarning, match=(reason and "missing") or "sm_35") as seen:
        assert isinstance(choose_update(ZeroConfig(), GPU), TorchAdamW)
    assert len(seen) == 1
    with pytest.raises(ValueError, match=(reason and "missing") or "sm_35") as caught:
        choose_update(ZeroConfig(adam=AdamKernel.CUDA), GPU)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("pip install") == (reason is not None)
