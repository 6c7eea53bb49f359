"""Compiled kernels on disk, so that only the first process on a machine waits for NVRTC.

A file is one line, ``zprof-cubin/1 KEY SHA256-OF-THE-REST``, and then the machine code.  KEY is the SHA-256
of source, options, architecture and NVRTC version, and names the file.  A file that is not ours, not whole or
not of its key is compiled again.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from zprof.reference_engine.optimizer.cuda import program

MAGIC: Final = "zprof-cubin/1"


def default_folder() -> Path | None:
    """``$XDG_CACHE_HOME/zprof/cuda`` (by default under ``~/.cache``); None where there is no home."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(root):  # the XDG specification: a relative path is to be ignored
        return Path(root) / "zprof" / "cuda"
    try:
        return Path.home() / ".cache" / "zprof" / "cuda"
    except RuntimeError:
        return None


def cubin(arch: str, folder: Path | None) -> bytes:
    """Machine code of ``adamw.cu`` for ``arch``, from ``folder`` or from NVRTC; None: do not keep it.

    Raises:
        KernelError: it has to be compiled and cannot be.
    """
    text = program.source()
    if folder is None:
        return program.compile_cubin(text, arch)
    key = key_of(text, arch, program.nvrtc_version())
    return kept(folder / f"adamw-{key[:32]}.cubin", key, lambda: program.compile_cubin(text, arch))


def key_of(text: str, arch: str, nvrtc: tuple[int, int]) -> str:
    """What the machine code depends on, in one hash."""
    parts = (text, arch, repr(nvrtc), repr(sorted(program.OPTIONS.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def kept(path: Path, key: str, compile_it: Callable[[], bytes]) -> bytes:
    """What ``path`` holds under ``key``; else what ``compile_it`` returns, kept there if it can be."""
    found = _read(path, key)
    if found is not None:
        return found
    code = compile_it()
    _write(path, key, code)
    return code


def _read(path: Path, key: str) -> bytes | None:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
                return None  # others may write it
            head, _, code = file.read().partition(b"\n")
    except OSError:
        return None
    return code if head == _head(key, code) else None


def _write(path: Path, key: str, code: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".adamw-", delete=False) as file:
            try:
                file.write(_head(key, code) + b"\n" + code)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
    except OSError:
        pass  # read-only or full: the next process compiles again


def _head(key: str, code: bytes) -> bytes:
    return f"{MAGIC} {key} {hashlib.sha256(code).hexdigest()}".encode()
