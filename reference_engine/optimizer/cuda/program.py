"""``adamw.cu`` compiled by NVRTC for one GPU architecture.

Division and square root in single precision are the hardware's approximations (2 ulp): the source says why.
Subnormal numbers are kept, since 16-bit gradients and second moments reach them.
"""

from importlib import resources
from typing import Any, Final

SOURCE_NAME: Final = "adamw.cu"
OPTIONS: Final[dict[str, Any]] = {
    "std": "c++17",
    "fma": False,
    "ftz": False,
    "prec_div": False,
    "prec_sqrt": False,
}


class KernelError(RuntimeError):
    """The kernel cannot be compiled, loaded or launched: one line says what and why."""


def source() -> str:
    """The text of ``adamw.cu``."""
    return resources.files(__package__).joinpath(SOURCE_NAME).read_text(encoding="utf-8")


def nvrtc_version() -> tuple[int, int]:
    """Of the NVRTC that compiles here.

    Raises:
        KernelError: there is none.
    """
    try:
        from cuda.bindings import nvrtc

        result, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise KernelError(f"NVRTC cannot be loaded: {first_line(error)}") from error
    if int(result) != 0:
        raise KernelError(f"NVRTC does not say its version: {result.name}")
    return major, minor


def compile_cubin(text: str, arch: str) -> bytes:
    """Machine code for ``arch`` (``sm_90``) of a CUDA source text.

    Raises:
        KernelError: with the first error of NVRTC's log.
    """
    from cuda.core import Program, ProgramOptions

    try:
        program = Program(text, "c++", ProgramOptions(name=SOURCE_NAME, arch=arch, **OPTIONS))
        return bytes(program.compile("cubin").code)
    except Exception as error:  # cuda.core's own types, which importing this file must not need
        raise KernelError(
            f"{SOURCE_NAME} cannot be compiled for {arch}: {first_error(str(error))}"
        ) from error


def first_error(log: str) -> str:
    """The first line of NVRTC's log that speaks of an error; else its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "error :" in line]
    return (errors or lines or ["NVRTC gives no reason"])[0]


def first_line(error: BaseException) -> str:
    """Of an exception's text; its type where it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)
