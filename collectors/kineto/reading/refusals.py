"""Says what a file is that is no trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zprof.collectors.kineto.reading.window import Window
from zprof.model.errors import BadInput

_KNOWN = (
    (b"\x80", "it is a pickle", "a CUDA memory snapshot is given as it is to: zprof import"),
    (b"<", "it is an HTML or XML page", "download the file itself"),
    (b"PK\x03\x04", "it is a zip archive", "unpack it"),
    (b"PAR1", "it is a Parquet file", "give the folder of the run"),
    (b"version https://git-lfs", "it is a pointer of Git LFS", "run: git lfs pull"),
)
_EXPORT = "give what torch.profiler exports with export_chrome_trace"


def no_trace(window: Window) -> BadInput:
    """Judged by how the text goes on where the window stands."""
    rest = window.data[window.start : window.end]
    if not rest:
        return BadInput("it is empty or cut short", hint=_EXPORT)
    for begin, what, hint in _KNOWN:
        if rest.startswith(begin):
            return BadInput(what, hint=hint)
    if rest.startswith(b"[") and window.data[1 : window.start].strip() == b"[":
        hint = "it may be a memory timeline: zprof reads memory from a snapshot"
        return BadInput("it is a list of lists, not of events", hint=hint)
    return BadInput("it is not a JSON object or a list of events", hint=_EXPORT)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Puts the name of the file into what goes wrong with it.

    Raises:
        BadInput: instead of OSError, and of BadInput without the name.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{path}: cannot be read ({reason})", hint="give a trace file") from None
    except BadInput as error:
        hint = error.hint or "export the trace again"
        raise BadInput(f"{path}: not a Kineto trace ({error.message})", hint=hint) from None
