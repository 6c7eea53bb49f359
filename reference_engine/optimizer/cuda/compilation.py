"""Compile adamw.cu with NVRTC for the local GPU, cache the machine code, and explain an explain_unavailable kernel.

Division and square root in single precision are the hardware's approximations (2 ulp): the source says why.
Subnormal numbers are kept, since 16-bit gradients and second moments reach them.

A cache file is one line, ``zprof-cubin/1 KEY SHA256-OF-THE-REST``, followed by the machine code.  KEY is the
SHA-256 of source, options, architecture and NVRTC version; the first 32 digits name the file.  The kernel is
compiled again if the file is not a regular file owned by this user, is writable by others, is incomplete, or
has another key.
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
    """Compiling, loading or launching the kernel failed; the one-line message says which and why."""


def read_source() -> str:
    """Return the text of ``adamw.cu``."""
    return resources.files(__package__).joinpath(SOURCE_NAME).read_text(encoding="utf-8")


def get_nvrtc_version() -> tuple[int, int]:
    """Return the (major, minor) version of the NVRTC that compiles here.

    Raises:
        KernelError: NVRTC cannot be loaded.
    """
    try:
        from cuda.bindings import nvrtc

        result, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise KernelError(f"NVRTC cannot be loaded: {read_first_line(error)}") from error
    if int(result) != 0:
        raise KernelError(f"NVRTC does not say its version: {result.name}")
    return major, minor


def compile_cubin(text: str, arch: str) -> bytes:
    """Compile a CUDA source text to machine code for ``arch`` (``sm_90``).

    Raises:
        KernelError: with the first error of NVRTC's log.
    """
    from cuda.core import Program, ProgramOptions

    try:
        program = Program(text, "c++", ProgramOptions(name=SOURCE_NAME, arch=arch, **OPTIONS))
        return bytes(program.compile("cubin").code)
    except Exception as error:  # cuda.core's own types; importing this module must not need them
        raise KernelError(
            f"{SOURCE_NAME} cannot be compiled for {arch}: {find_first_error(str(error))}"
        ) from error


def find_first_error(log: str) -> str:
    """Return the first line of NVRTC's log that mentions an error, else its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "error :" in line]
    return (errors or lines or ["NVRTC gives no reason"])[0]


def read_first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or its type if it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


CACHE_MAGIC: Final = "zprof-cubin/1"


def get_cache_folder() -> Path | None:
    """Return ``$XDG_CACHE_HOME/zprof/cuda`` (default: ``~/.cache``), or None without a home directory."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(root):  # the XDG specification says to ignore relative paths
        return Path(root) / "zprof" / "cuda"
    try:
        return Path.home() / ".cache" / "zprof" / "cuda"
    except RuntimeError:
        return None


def load_cubin(arch: str, folder: Path | None) -> bytes:
    """Return the machine code of ``adamw.cu`` for ``arch``, from ``folder`` or from NVRTC.

    With ``folder`` None the code is not cached.

    Raises:
        KernelError: it has to be compiled and cannot be.
    """
    text = read_source()
    if folder is None:
        return compile_cubin(text, arch)
    key = compute_cache_key(text, arch, get_nvrtc_version())
    return load_or_compile(folder / f"adamw-{key[:32]}.cubin", key, lambda: compile_cubin(text, arch))


def compute_cache_key(text: str, arch: str, nvrtc: tuple[int, int]) -> str:
    """Return a hash of everything that the machine code depends on."""
    parts = (text, arch, repr(nvrtc), repr(sorted(OPTIONS.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_or_compile(path: Path, key: str, compile_kernel: Callable[[], bytes]) -> bytes:
    """Return what ``path`` holds under ``key``, else what ``compile_kernel`` returns, cached if possible."""
    found = _read_cached(path, key)
    if found is not None:
        return found
    code = compile_kernel()
    _write_cached(path, key, code)
    return code


def _read_cached(path: Path, key: str) -> bytes | None:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
                return None  # writable by others
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


def explain_unavailable() -> str | None:
    """Return why the kernel cannot be used here, with the remedy, in one line; None if it can."""
    if torch.version.hip is not None:
        return "torch is built for ROCm; the kernel is for CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
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
    """Return why the driver is too old for machine code of NVRTC's CUDA major version, or None."""
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
