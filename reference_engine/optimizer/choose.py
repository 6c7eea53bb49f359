"""Which kernel runs AdamW on a device."""

import importlib
import warnings
from types import ModuleType

import torch

from zprof.reference_engine.config import AdamKernel, ZeroConfig
from zprof.reference_engine.optimizer.torch_adamw import TorchAdamW
from zprof.reference_engine.optimizer.update import Update

INSTALL = "pip install 'zprof[cuda]'"


def choose_update(config: ZeroConfig, device: torch.device) -> Update:
    """The engine's CUDA kernel where it is asked for, or can be had; else torch's fused AdamW.

    Warns where ``auto`` has to do without the CUDA kernel on a GPU.

    Raises:
        ValueError: the CUDA kernel is asked for and cannot be had; one line says why and what to do.
    """
    on_gpu = device.type == "cuda"
    if config.adam is AdamKernel.CUDA and not on_gpu:
        raise ValueError(f"adam is cuda, parameters are on {device}; move the model to a GPU before zero()")
    if config.adam is AdamKernel.TORCH or not on_gpu:
        return TorchAdamW(config.constant_buffers)
    kernel = _cuda_kernel(device)
    if not isinstance(kernel, str):
        return kernel
    message = f"the CUDA kernel of AdamW cannot be used: {kernel}"
    if config.adam is AdamKernel.CUDA:
        raise ValueError(message)
    warnings.warn(f"{message}; torch's fused AdamW runs instead", stacklevel=2)
    return TorchAdamW(config.constant_buffers)


def _cuda_kernel(device: torch.device) -> Update | str:
    """The kernel, or why there is none."""
    cuda = _cuda()
    reason: str | None = cuda.unavailable()
    if reason is not None:
        return _with_remedy(reason)
    try:
        kernel: Update = cuda.CudaAdamW(device)
    except RuntimeError as error:  # it could not be compiled or loaded here
        return str(error)
    return kernel


def _cuda() -> ModuleType:
    return importlib.import_module("zprof.reference_engine.optimizer.cuda")  # nobody needs it without a GPU


def _with_remedy(reason: str) -> str:
    return reason if INSTALL in reason else f"{reason} ({INSTALL})"
