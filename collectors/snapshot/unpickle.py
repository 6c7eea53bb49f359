"""Loads a pickle of plain data and nothing else: no name in it is ever looked up.

A pickle is a program; its power is in the opcodes that fetch a callable by name (GLOBAL, STACK_GLOBAL,
INST, EXT, and what builds on them: REDUCE, OBJ, NEWOBJ, BUILD) and in persistent ids.  All fetch through
the two methods below.  What data alone can do, take memory and time, is bounded from outside
(``zprof.collectors.snapshot.limits``).
"""

import pickle
from typing import Any, BinaryIO, NoReturn

from zprof.collectors.snapshot.fields import HINT, shown
from zprof.model.errors import BadInput


class Forbidden(BadInput):
    """The pickle wants to run code."""


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every global."""
        raise Forbidden(
            f"it asks Python to load {shown(module)}.{shown(name)}: no snapshot does, this may be an attack",
            hint="do not open it with anything else",
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse every persistent id."""
        raise Forbidden("it refers to objects outside the file: this is no snapshot", hint=HINT)


def load(file: BinaryIO) -> Any:
    """The data in ``file``.

    Raises:
        BadInput: it is damaged, or more than data.
        MemoryError: it does not fit into what this process may take.
    """
    try:
        return _DataUnpickler(file, fix_imports=False, buffers=None).load()
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        lines = str(error).splitlines()
        reason = shown(lines[0]) if lines else type(error).__name__
        raise BadInput(f"a damaged pickle ({reason})", hint="copy the file again, or dump it again") from None
