"""Start the recorder in a Python child of ``zprof record``, then run the hidden ``sitecustomize``.

Every interpreter that a command starts imports this file, whatever its version and with or without zprof
installed. It therefore does very little, and its failures stay silent.
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
    path = os.path.join(os.path.dirname(HERE), "program", "torch_watch.py")
    spec: Any = importlib.util.spec_from_file_location("_zprof_torch_watch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.watch(_begin)


def _begin() -> None:
    try:
        _import_zprof()
    except Exception as error:  # an environment without zprof
        _say(f"{sys.executable} imported torch, and zprof cannot be imported there ({error})")
        return
    try:
        from zprof.integrations.program.session import start_in_child

        start_in_child()
    except Exception as error:
        _say(f"{sys.executable}: the recorder did not start ({type(error).__name__}: {error})")


def _import_zprof() -> None:
    try:
        import zprof
    except ImportError:
        # A checkout is found through the folder that it was started in, which a child may not share.
        home = _settings()["home"]
        sys.path.append(home)
        try:
            import zprof  # noqa: F401
        finally:
            sys.path.remove(home)


def _settings() -> Any:
    import json

    return json.loads(os.environ["ZPROF_RECORD"])


def _say(note: str) -> None:
    with suppress(Exception), open(os.path.join(_settings()["session"], f"note.{os.getpid()}"), "w") as file:
        file.write(note)


def _run_hidden() -> None:
    """Run the user's own sitecustomize as Python would; Python reports the errors that it raises."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":
    with suppress(Exception):
        _watch()
    _run_hidden()
