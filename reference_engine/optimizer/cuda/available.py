"""Whether the CUDA kernel can run here, and if not, why."""

from typing import Any

import torch

from zprof.reference_engine.optimizer.cuda.program import KernelError, first_line, nvrtc_version

INSTALL = "pip install 'zprof[cuda]'"
INSTALL_CUDA_12 = "pip install 'zprof[cuda12]'"


def unavailable() -> str | None:
    """Why the kernel cannot be used here, with the remedy, in one line; None: it can."""
    if torch.version.hip is not None:
        return "torch is built for ROCm; the kernel is for CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        import cuda.core  # noqa: F401
        from cuda.bindings import driver, nvrtc

        compiler = nvrtc_version()
    except ImportError as error:
        return f"cuda.core cannot be imported ({first_line(error)}): {INSTALL}"
    except KernelError as error:
        return f"{error}: {INSTALL}"
    return _driver_too_old(driver, compiler) or _arch_unknown(nvrtc, compiler)


def _driver_too_old(driver: Any, compiler: tuple[int, int]) -> str | None:
    """Machine code of one CUDA major version runs on that version's drivers and on later ones."""
    result, version = driver.cuDriverGetVersion()
    if int(result) != 0:
        return f"the driver does not say its version: {result.name}"
    if version // 1000 >= compiler[0]:
        return None
    spoken = f"the driver speaks CUDA {version // 1000}.{version % 1000 // 10}, NVRTC is {_dotted(compiler)}"
    return f"{spoken}: {INSTALL_CUDA_12}" if version // 1000 == 12 else f"{spoken}: update the driver"


def _arch_unknown(nvrtc: Any, compiler: tuple[int, int]) -> str | None:
    major, minor = torch.cuda.get_device_capability()
    result, known = nvrtc.nvrtcGetSupportedArchs()
    if int(result) != 0 or major * 10 + minor in known:
        return None
    return f"NVRTC {_dotted(compiler)} does not compile for sm_{major}{minor}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
