"""The CUDA kernels on the CPU: ``adamw.cu`` itself, compiled as C++, behind the seam that a GPU has."""

import ctypes
import shutil
import subprocess
from pathlib import Path

from zprof.reference_engine.optimizer.cuda import compilation

SHIM = Path(__file__).with_name("shim.cpp")
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-strict-aliasing"]
#: Not for the linker, which would add the sanitizer's library: the shim answers instead.
CHECKS = ["-fsanitize=alignment"]
POINTER, COUNT, DOUBLE, INT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_double, ctypes.c_int
RUN = {
    "adamw": ("run_adamw", [POINTER, POINTER, COUNT, *[DOUBLE] * 5, POINTER, POINTER]),
    "sum_of_squares": ("run_squares", [POINTER, POINTER, COUNT, POINTER]),
    "sum_partials": ("run_partials", [POINTER, COUNT, POINTER]),
}


def compiler() -> str | None:
    """A C++ compiler, if this machine has one."""
    return shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")


def build(folder: Path) -> Path:
    """Compile the kernels and the shim into ``folder``."""
    found = compiler()
    assert found is not None, "no C++ compiler"
    (folder / compilation.SOURCE_NAME).write_text(compilation.read_source(), encoding="utf-8")
    library, part = folder / "libadamw_shim.so", folder / "shim.o"
    subprocess.run([found, *FLAGS, *CHECKS, f"-I{folder}", "-c", "-o", str(part), str(SHIM)], check=True)
    subprocess.run([found, *FLAGS, "-shared", "-o", str(library), str(part)], check=True)
    return library


class ShimRuntime:
    """A GPU of ``resident`` blocks of ``threads`` threads, whose memory is the host's."""

    def __init__(self, library: Path, *, threads: int = 16, resident: int = 2) -> None:
        self._library = ctypes.CDLL(str(library))
        self.threads = threads
        self._resident = resident
        self.launched: list[tuple[str, int]] = []

    def stream(self) -> int:
        return 0

    def resident_blocks(self, kernel: str) -> int:
        getattr(self._library, kernel)
        return self._resident

    def launch(self, kernel: str, blocks: int, *arguments: int | float) -> None:
        self.launched.append((kernel, blocks))
        name, types = next(RUN[start] for start in RUN if kernel.startswith(start))
        assert len(arguments) == len(types)
        for argument, kind in zip(arguments, types, strict=True):
            assert isinstance(argument, float) == (kind is DOUBLE)
        function = getattr(self._library, name)
        function.argtypes = [POINTER, INT, INT, *types]
        function.restype = None
        address = ctypes.cast(getattr(self._library, kernel), POINTER)
        function(address, blocks, self.threads, *arguments)
        assert self._library.misaligned_accesses() == 0, f"{kernel}: an access that a GPU would refuse"
