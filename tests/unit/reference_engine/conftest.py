"""The kernels as C++, built once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.adamw_kernel import shim
from zprof.reference_engine.optimizer.cuda import CudaAdamW


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shim.compiler() is None:
        pytest.skip("no C++ compiler: adamw.cu cannot be run on the CPU")
    return shim.build(tmp_path_factory.mktemp("adamw_shim"))


@pytest.fixture
def make_kernel(shim_library: Path) -> Callable[..., CudaAdamW]:
    """AdamW by ``adamw.cu`` on the CPU; arguments: ``threads`` of a block and ``resident`` blocks."""

    def make(**options: int) -> CudaAdamW:
        return CudaAdamW(torch.device("cpu"), shim.ShimRuntime(shim_library, **options))

    return make


@pytest.fixture
def kernel(make_kernel: Callable[..., CudaAdamW]) -> CudaAdamW:
    return make_kernel()
