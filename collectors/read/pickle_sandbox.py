"""Load strangers' pickles as plain data, and unpack gzip files up to a size.

A pickle's power is in the opcodes that fetch a callable by name (GLOBAL, STACK_GLOBAL, INST, EXT, and REDUCE,
OBJ, NEWOBJ, BUILD on top of them) and in persistent ids. All of them go through two methods that reject them.
The process that loads a pickle limits its memory and time.
"""

import pickle
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten

_MAX_NAME = 4096
_CHUNK_BYTES = 1 << 20
_GZIP = 31


def load_plain_data(file: BinaryIO, kind: str = "snapshot") -> Any:
    """Return the data in ``file``; ``kind`` names the expected format in errors.

    Raises:
        BadInput: it is damaged, or contains more than plain data.
        MemoryError: it does not fit into the memory limit of this process.
    """
    try:
        return _DataUnpickler(file, kind).load()
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        lines = str(error).splitlines()
        reason = format_name(lines[0]) if lines else type(error).__name__
        raise BadInput(f"a damaged pickle ({reason})", hint="copy the file again, or dump it again") from None


def format_name(text: str) -> str:
    """Format a name from a stranger's file for a one-line message."""
    return shorten(printable(text[:_MAX_NAME]), 40)


class ForbiddenPickle(BadInput):
    """The pickle contains more than plain data."""


class _DataUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, kind: str) -> None:
        super().__init__(file, fix_imports=False, buffers=None)
        self._kind = kind

    def find_class(self, module: str, name: str) -> NoReturn:
        """Reject every global."""
        raise ForbiddenPickle(
            f"it names the Python object {format_name(module)}.{format_name(name)}, and a {self._kind} names "
            "none: it is another kind of file, and nothing of it was loaded",
            hint=f"pass a {self._kind} as torch wrote it, or dump it again",
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        """Reject every persistent id."""
        raise ForbiddenPickle(
            f"it refers to objects outside the file; a {self._kind} never does",
            hint=f"dump the {self._kind} again",
        )


def inflate(source: BinaryIO, target: Path, max_bytes: int) -> None:
    """Decompress the first gzip member of ``source`` into ``target``.

    Raises:
        BadInput: it is damaged, or decompresses to more than ``max_bytes``.
    """
    decompressor = zlib.decompressobj(wbits=_GZIP)
    written = 0
    with target.open("wb") as sink:
        while not decompressor.eof:
            chunk = decompressor.unconsumed_tail or source.read(_CHUNK_BYTES)
            if not chunk:
                raise BadInput("a damaged gzip file (it ends too early)", hint="copy the file again")
            try:
                piece = bytes(decompressor.decompress(chunk, _CHUNK_BYTES))
            except zlib.error as error:
                raise BadInput(f"a damaged gzip file ({error})", hint="copy the file again") from None
            written += len(piece)
            if written > max_bytes:
                raise BadInput(f"it unpacks to more than {max_bytes >> 20} MiB", hint="unpack it yourself")
            sink.write(piece)
