"""Start the recorder in a Python child of ``zprof record``, then run the hidden ``sitecustomize``.

Every interpreter that a command starts imports this file, with any version and with or without zprof
installed. It therefore does very little, and its failures are silent.
"""

import importlib.util
import os
import sys
from contextlib import suppress
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def _watch() -> None:
    if os.environ.get("ZPROF") == "0" or "ZPROF_RECORD" not in os.environ:
        return
    path = os.path.join(os.path.dirname(HERE), "torch_watch.py")
    spec: Any = importlib.util.spec_from_file_location("_zprof_torch_watch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.call_after_import(_start)


def _start() -> None:
    try:
        try:
            import zprof
        except ImportError:
            # A checkout is importable only from its own folder; the child may have been started elsewhere.
            package_parent = _read_settings()["home"]
            sys.path.append(package_parent)
            try:
                import zprof  # noqa: F401
            finally:
                sys.path.remove(package_parent)
    except Exception as error:  # an environment without zprof
        _write_note(f"{sys.executable} imported torch, but cannot import zprof ({error})")
        return
    try:
        from zprof.collectors.record.launch.session import start_in_child

        start_in_child()
    except Exception as error:
        _write_note(f"{sys.executable}: the recorder did not start ({type(error).__name__}: {error})")


def _read_settings() -> Any:
    import json

    return json.loads(os.environ["ZPROF_RECORD"])


def _write_note(note: str) -> None:
    with suppress(Exception):
        path = os.path.join(_read_settings()["session"], f"note.{os.getpid()}")
        with open(path, "w") as file:
            file.write(note)


def _run_hidden() -> None:
    """Run the user's own sitecustomize as Python would; Python reports its errors."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != HERE]
    own_module = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own_module


if __name__ == "sitecustomize":
    with suppress(Exception):
        _watch()
    _run_hidden()
