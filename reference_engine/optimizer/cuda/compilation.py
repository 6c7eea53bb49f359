"""Compile adamw.cu with NVRTC for the local GPU, cache the machine code, and report why it is unavailable.

Division and square root in single precision use the hardware approximations (2 ulp); see the comment in
adamw.cu.  Subnormal numbers are not flushed, because 16-bit gradients and second moments can be subnormal.

A cache file is one line, ``zprof-cubin/1 KEY SHA256-OF-THE-REST``, followed by the machine code.  KEY is the
SHA-256 of source, options, architecture and NVRTC version; its first 32 digits are in the file name.  The
kernel is compiled again if the cache file is not a regular file owned by this user, is writable by others, is
incomplete, or has another key.
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

CACHE_MAGIC: Final = "zprof-cubin/1"

INSTALL = "pip install 'zprof[cuda]'"
INSTALL_CUDA_12 = "pip install 'zprof[cuda12]'"


class KernelError(RuntimeError):
    """Compiling, loading or launching the kernel failed; the one-line message has the step and the reason."""


def read_source() -> str:
    """Return the source of ``adamw.cu``."""
    return resources.files(__package__).joinpath(SOURCE_NAME).read_text(encoding="utf-8")


def get_nvrtc_version() -> tuple[int, int]:
    """Return the (major, minor) version of the installed NVRTC.

    Raises:
        KernelError: NVRTC cannot be loaded.
    """
    try:
        from cuda.bindings import nvrtc

        result, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise KernelError(f"NVRTC cannot be loaded: {read_first_line(error)}") from error
    if int(result) != 0:
        raise KernelError(f"cannot query the NVRTC version: {result.name}")
    return major, minor


def compile_cubin(source: str, arch: str) -> bytes:
    """Compile CUDA source code to machine code for ``arch``, such as ``sm_90``.

    Raises:
        KernelError: compilation failed; the message has the first error of NVRTC's log.
    """
    from cuda.core import Program, ProgramOptions

    try:
        program = Program(source, "c++", ProgramOptions(name=SOURCE_NAME, arch=arch, **OPTIONS))
        return bytes(program.compile("cubin").code)
    except Exception as error:  # cuda.core's error types, which this module must not import
        raise KernelError(
            f"{SOURCE_NAME} cannot be compiled for {arch}: {find_first_error(str(error))}"
        ) from error


def find_first_error(log: str) -> str:
    """Find the first line of NVRTC's log that mentions an error; default to its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "error :" in line]
    return (errors or lines or ["NVRTC reported no error message"])[0]


def read_first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type if it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def get_cache_folder() -> Path | None:
    """Return ``$XDG_CACHE_HOME/zprof/cuda`` (default: ``~/.cache``), or None without a home directory."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(root):  # the XDG specification ignores relative paths
        return Path(root) / "zprof" / "cuda"
    try:
        return Path.home() / ".cache" / "zprof" / "cuda"
    except RuntimeError:
        return None


def load_cubin(arch: str, folder: Path | None) -> bytes:
    """Return the machine code of ``adamw.cu`` for ``arch``, from the cache in ``folder`` or from NVRTC.

    If ``folder`` is None, nothing is cached.

    Raises:
        KernelError: the kernel is not cached and cannot be compiled.
    """
    source = read_source()
    if folder is None:
        return compile_cubin(source, arch)
    key = compute_cache_key(source, arch, get_nvrtc_version())
    return load_or_compile(folder / f"adamw-{key[:32]}.cubin", key, lambda: compile_cubin(source, arch))


def compute_cache_key(source: str, arch: str, nvrtc: tuple[int, int]) -> str:
    """Compute a hash of everything that the machine code depends on."""
    parts = (source, arch, repr(nvrtc), repr(sorted(OPTIONS.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_or_compile(path: Path, key: str, compile_kernel: Callable[[], bytes]) -> bytes:
    """Return the machine code cached in ``path`` for ``key``; compile and cache it if it is missing."""
    cached = _read_cached(path, key)
    if cached is not None:
        return cached
    code = compile_kernel()
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
        pass  # read-only or full disk: the next process compiles again
    return code


def _read_cached(path: Path, key: str) -> bytes | None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None  # not a file of this user, or writable by others
            head, _, code = file.read().partition(b"\n")
    except OSError:
        return None
    return code if head == _format_header(key, code) else None


def _format_header(key: str, code: bytes) -> bytes:
    return f"{CACHE_MAGIC} {key} {hashlib.sha256(code).hexdigest()}".encode()


def explain_unavailable() -> str | None:
    """Return one line with the reason and the fix if the kernel cannot be used, else None."""
    if torch.version.hip is not None:
        return "torch is built for ROCm; the kernel requires CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        import cuda.core  # noqa: F401
        from cuda.bindings import driver, nvrtc

        compiler = get_nvrtc_version()
    except ImportError as error:
        return f"cuda.core cannot be imported ({read_first_line(error)}): {INSTALL}"
    except KernelError as error:
        return f"{error}: {INSTALL}"
    return _check_driver(driver, compiler) or _check_arch(nvrtc, compiler)


def _check_driver(driver: Any, compiler: tuple[int, int]) -> str | None:
    """Return a message if the driver is too old for NVRTC's CUDA major version, else None."""
    result, version = driver.cuDriverGetVersion()
    if int(result) != 0:
        return f"cannot query the driver version: {result.name}"
    if version // 1000 >= compiler[0]:
        return None
    mismatch = (
        f"the driver supports CUDA {version // 1000}.{version % 1000 // 10}, but NVRTC is "
        f"{_format_version(compiler)}"
    )
    return f"{mismatch}: {INSTALL_CUDA_12}" if version // 1000 == 12 else f"{mismatch}: update the driver"


def _check_arch(nvrtc: Any, compiler: tuple[int, int]) -> str | None:
    major, minor = torch.cuda.get_device_capability()
    result, supported_archs = nvrtc.nvrtcGetSupportedArchs()
    if int(result) != 0 or major * 10 + minor in supported_archs:
        return None
    return f"NVRTC {_format_version(compiler)} does not support sm_{major}{minor}"


def _format_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
