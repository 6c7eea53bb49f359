"""Read one file of strangers in a child process: what the parent and the child of each such reader share.

The child gets the file as its standard input, and writes tables, or ``error.json`` with one line, into a
private folder. The parent starts it under limits, and gets the folder.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
from msgspec import Struct, to_builtins

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.process.sandbox import Limits, Sandbox, apply_limits, make_program
from zprof.run.files import open_plain

_ERROR = "error.json"
_MAX_ANSWER_BYTES = 1 << 16
_RESERVE_BYTES = 1 << 20


class _Answer(Struct, frozen=True, kw_only=True):
    error: str
    hint: str


class FileReader(Struct, frozen=True, kw_only=True):
    """How files of a format are read.

    ``module``: the child's module, whose ``start`` calls :func:`run_child`. ``make_limits`` takes the size of
    the file in bytes. ``max_bytes``: largest file, with what to do about a larger one. ``hint``: what to do
    about a file that cannot be read.
    """

    module: str
    make_limits: Callable[[int], Limits]
    max_bytes: int
    too_large_hint: str
    hint: str

    @contextmanager
    def read(self, path: Path) -> Iterator[Path]:
        """Yield the folder with the child's tables of a file, valid until the context ends.

        Raises:
            BadInput: The file is damaged or malicious, exceeds the limits, or cannot be opened.
        """
        with tempfile.TemporaryDirectory(prefix="zprof-read-") as name:
            folder = Path(name)
            try:
                with open_plain(path) as file:
                    size = os.fstat(file.fileno()).st_size
                    if size > self.max_bytes:
                        limit = f"{self.max_bytes >> 30} GiB"
                        raise BadInput(f"{path}: larger than {limit}", hint=self.too_large_hint)
                    limits = self.make_limits(size)
                    arguments = [str(folder), json.dumps(to_builtins(limits))]
                    program = make_program(self.module)
                    with Sandbox(program, arguments, limits, folder=folder, stdin=file) as child:
                        failure = child.wait()
            except OSError as error:
                raise BadInput(
                    f"{path}: cannot be read ({error.strerror})", hint="pass a readable file"
                ) from None
            if failure is not None:
                message = f"{path}: the process that reads it failed: {failure.message}"
                raise BadInput(message, hint=self.hint)
            self._raise_error(path, folder)
            yield folder

    def _raise_error(self, path: Path, folder: Path) -> None:
        try:
            with open_plain(folder / _ERROR) as file:
                answer = msgspec.json.decode(file.read(_MAX_ANSWER_BYTES), type=_Answer)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            answer = _Answer(error="its reader wrote no valid result", hint=self.hint)
        raise BadInput(f"{path}: {printable(answer.error)}", hint=printable(answer.hint))


def run_child(arguments: list[str], write_tables: Callable[[Path], None], hint: str) -> None:
    """Let the child write its tables under its limits, or the error; exit without deallocating.

    Args:
        arguments: The private folder, and the limits as JSON.
        write_tables: Reads standard input, and writes into a folder.
        hint: What to do about a file that cannot be read.
    """
    folder, limits = Path(arguments[0]), Limits(**json.loads(arguments[1]))
    reserve = bytearray(_RESERVE_BYTES)
    answer = None
    try:
        apply_limits(limits)
        write_tables(folder)
    except BadInput as error:
        answer = {"error": error.message, "hint": error.hint}
    except (MemoryError, pa.ArrowMemoryError):
        del reserve
        answer = {"error": f"reading it takes more than {limits.memory_bytes >> 20} MiB", "hint": hint}
    except Exception as error:
        answer = {"error": f"it cannot be read ({type(error).__name__})", "hint": hint}
    if answer is not None:
        (folder / _ERROR).write_text(json.dumps(answer), encoding="utf-8")
    os._exit(0)
