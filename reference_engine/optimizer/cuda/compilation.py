"""Compile adamw.cu with NVRTC for the GPU at hand, keep the machine code in the user's cache, and say why
the kernel cannot be used where it cannot.

Division and square root in single precision are the hardware's approximations (2 ulp): the source says why.
Subnormal numbers are kept, since 16-bit gradients and second moments reach them.

A file is one line, ``zprof-cubin/1 KEY SHA256-OF-THE-REST``, and then the machine code.  KEY is the SHA-256
of source, options, architecture and NVRTC version, and names the file.  A file that is not ours, not whole or
not of its key is compiled again.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, Final

import torch

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


def read_source() -> str:
    """The text of ``adamw.cu``."""
    return resources.files(__package__).joinpath(SOURCE_NAME).read_text(encoding="utf-8")


def get_nvrtc_version() -> tuple[int, int]:
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


CACHE_MAGIC: Final = "zprof-cubin/1"


def get_cache_folder() -> Path | None:
    """``$XDG_CACHE_HOME/zprof/cuda`` (by default under ``~/.cache``); None where there is no home."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(root):  # the XDG specification: a relative path is to be ignored
        return Path(root) / "zprof" / "cuda"
    try:
        return Path.home() / ".cache" / "zprof" / "cuda"
    except RuntimeError:
        return None


def load_cubin(arch: str, folder: Path | None) -> bytes:
    """Machine code of ``adamw.cu`` for ``arch``, from ``folder`` or from NVRTC; None: do not keep it.

    Raises:
        KernelError: it has to be compiled and cannot be.
    """
    text = read_source()
    if folder is None:
        return compile_cubin(text, arch)
    key = compute_cache_key(text, arch, get_nvrtc_version())
    return load_or_compile(folder / f"adamw-{key[:32]}.cubin", key, lambda: compile_cubin(text, arch))


def compute_cache_key(text: str, arch: str, nvrtc: tuple[int, int]) -> str:
    """What the machine code depends on, in one hash."""
    parts = (text, arch, repr(nvrtc), repr(sorted(OPTIONS.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_or_compile(path: Path, key: str, compile_it: Callable[[], bytes]) -> bytes:
    """What ``path`` holds under ``key``; else what ``compile_it`` returns, kept there if it can be."""
    found = _read_cached(path, key)
    if found is not None:
        return found
    code = compile_it()
    _write_cached(path, key, code)
    return code


def _read_cached(path: Path, key: str) -> bytes | None:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
                return None  # others may write it
            head, _, code = file.read().partition(b"\n")
    except OSError:
        return None
    return code if head == _format_header(key, code) else None


def _write_cached(path: Path, key: str, code: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".adamw-", delete=False) as file:
            try:
                file.write(_format_header(key, code) + b"\n" + code)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
    except OSError:
        pass  # read-only or full: the next process compiles again


def _format_header(key: str, code: bytes) -> bytes:
    return f"{CACHE_MAGIC} {key} {hashlib.sha256(code).hexdigest()}".encode()


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

        compiler = get_nvrtc_version()
    except ImportError as error:
        return f"cuda.core cannot be imported ({first_line(error)}): {INSTALL}"
    except KernelError as error:
        return f"{error}: {INSTALL}"
    return _check_driver(driver, compiler) or _check_arch(nvrtc, compiler)


def _check_driver(driver: Any, compiler: tuple[int, int]) -> str | None:
    """Machine code of one CUDA major version runs on that version's drivers and on later ones."""
    result, version = driver.cuDriverGetVersion()
    if int(result) != 0:
        return f"the driver does not say its version: {result.name}"
    if version // 1000 >= compiler[0]:
        return None
    spoken = (
        f"the driver speaks CUDA {version // 1000}.{version % 1000 // 10}, NVRTC is "
        f"{_format_version(compiler)}"
    )
    return f"{spoken}: {INSTALL_CUDA_12}" if version // 1000 == 12 else f"{spoken}: update the driver"


def _check_arch(nvrtc: Any, compiler: tuple[int, int]) -> str | None:
    major, minor = torch.cuda.get_device_capability()
    result, known = nvrtc.nvrtcGetSupportedArchs()
    if int(result) != 0 or major * 10 + minor in known:
        return None
    return f"NVRTC {_format_version(compiler)} does not compile for sm_{major}{minor}"


def _format_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
