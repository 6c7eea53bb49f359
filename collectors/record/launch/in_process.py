"""Run a script or a module as ``__main__`` of this process, like ``python script.py`` or ``python -m``.

Output, exceptions and exit code are unchanged; tracebacks start with the first line of the program.
"""

import builtins
import io
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from zprof.base.errors import BadInput, suggest_path


def is_python_program(command: Sequence[str]) -> bool:
    """Return True if a command is a script or a module for this interpreter, not an executable."""
    return command[0].endswith(".py") or command[0] == "-m"


def check_program(command: Sequence[str]) -> None:
    """Check that a program can be run.

    Raises:
        BadInput: the script does not exist, or no module is given.
    """
    if command[0] != "-m":
        if not Path(command[0]).is_file():
            hint = suggest_path(Path(command[0])) or "pass the training script after --"
            raise BadInput(f"{command[0]}: no such file", hint=hint)
    elif len(command) < 2:
        raise BadInput("-m: no module given", hint="for example: zprof record -o RUN -- -m package.train")


def run_program(command: Sequence[str]) -> None:
    """Run a program; its exceptions propagate without zprof's frames in their traceback."""
    # A reference to the old main module keeps its globals from being cleared while zprof is running.
    previous_main = sys.modules["__main__"]
    try:
        if command[0] == "-m":
            _replace_main()
            sys.argv = list(command[1:])
            if not sys.flags.safe_path:
                sys.path[0] = os.getcwd()
            runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]  # the function that python -m calls
        else:
            path = os.path.abspath(command[0])
            main = _replace_main()
            main.__file__ = path
            main.__loader__ = SourceFileLoader("__main__", path)
            main.__dict__["__cached__"] = None
            sys.argv = list(command)
            if not sys.flags.safe_path:
                sys.path[0] = os.path.dirname(os.path.realpath(path))
            with io.open_code(path) as file:
                source = file.read()
            exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except BaseException as error:
        _hide_own_frames(error)
        raise
    finally:
        del previous_main


def _replace_main() -> ModuleType:
    """Install a new main module for good, because threads, atexit and pickles use it after the program."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def _hide_own_frames(error: BaseException) -> None:
    """Remove zprof's frames from the traceback that Python prints, and keep the program's own hook."""
    original_hook = sys.excepthook

    def show_without_own_frames(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        if value is error:
            main = sys.modules["__main__"].__dict__
            while trace is not None and trace.tb_frame.f_globals is not main:
                trace = trace.tb_next
            value = value.with_traceback(trace)
        original_hook(kind, value, trace)

    sys.excepthook = show_without_own_frames
