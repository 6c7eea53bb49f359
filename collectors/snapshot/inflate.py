"""Unpacks a compressed snapshot into a file, up to a bound."""

import zlib
from pathlib import Path
from typing import Any, BinaryIO

from zprof.model.errors import BadInput

_CHUNK_BYTES = 1 << 20
_GZIP = 31


def inflate(source: BinaryIO, target: Path, most_bytes: int) -> None:
    """Write what the first gzip member in ``source`` holds to ``target``.

    Raises:
        BadInput: it is damaged, or holds more than ``most_bytes``.
    """
    machine = zlib.decompressobj(wbits=_GZIP)
    written = 0
    with target.open("wb") as sink:
        while not machine.eof:
            chunk = machine.unconsumed_tail or source.read(_CHUNK_BYTES)
            if not chunk:
                raise BadInput("a damaged gzip file (it ends too early)", hint="copy the file again")
            piece = _next(machine, chunk)
            written += len(piece)
            if written > most_bytes:
                raise BadInput(f"it unpacks to more than {most_bytes >> 20} MiB", hint="unpack it yourself")
            sink.write(piece)


def _next(machine: Any, chunk: bytes) -> bytes:
    try:
        return bytes(machine.decompress(chunk, _CHUNK_BYTES))
    except zlib.error as error:
        raise BadInput(f"a damaged gzip file ({error})", hint="copy the file again") from None
