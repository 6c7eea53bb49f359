"""A Ctrl-C ends what runs at any moment, and where the command line starts it is caught first."""

import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from zprof.process.interrupts import accept_interrupt, keep_interrupts

WAIT_LIMIT_S = 60


class Target:
    """Something that can be referred to weakly."""


@pytest.fixture(autouse=True)
def _python_interrupts() -> Iterator[None]:
    """Start with Python's own handler, which a background job does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_in_a_callback_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    """Python prints what is raised there, and goes on."""
    target = Target()
    reference = weakref.ref(target, lambda _: signal.raise_signal(signal.SIGINT))

    def interrupt_callback() -> None:
        nonlocal target
        with keep_interrupts():
            del target
            signal.sigtimedwait([], WAIT_LIMIT_S)

    with pytest.raises(KeyboardInterrupt):
        interrupt_callback()
    assert reference() is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("count", [1, 2])
def test_an_import_is_finished_first(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C code that calls Python while a module is imported may crash, or discard the interrupt."""
    (tmp_path / f"interrupted_import_{count}.py").write_text(
        "import signal\n"
        f"for _ in range({count}): signal.raise_signal(signal.SIGINT)\n"
        "import sys\n"
        "sys.finished_import = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "finished_import", False, raising=False)

    def interrupt_import() -> None:
        with keep_interrupts():
            import_module(f"interrupted_import_{count}")
            signal.sigtimedwait([], WAIT_LIMIT_S)

    with pytest.raises(KeyboardInterrupt):
        interrupt_import()
    assert sys.finished_import is (count == 1)  # the second one is raised at once


def test_an_interrupt_at_the_end_of_an_import_is_raised_even_if_nothing_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "last_import.py").write_text("import signal; signal.raise_signal(signal.SIGINT)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt), keep_interrupts():
        import_module("last_import")


@pytest.mark.parametrize("is_handled", [False, True])
def test_an_interrupt_that_is_discarded_comes_again(*, is_handled: bool) -> None:
    """As by C code that clears all errors, or by ``except BaseException``."""

    def interrupt() -> None:
        with keep_interrupts():
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                if is_handled:
                    accept_interrupt()
            signal.sigtimedwait([], 0.5 if is_handled else WAIT_LIMIT_S)

    if is_handled:
        interrupt()
    else:
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_other_errors_of_a_callback_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_type))
    target = Target()
    reference = weakref.ref(target, lambda _: 1 // 0)
    with keep_interrupts():
        del target
    assert reference() is None
    assert told == [ZeroDivisionError]


def test_the_command_line_catches_interrupts_before_it_imports_anything() -> None:
    """The traceback of a Ctrl-C before main() is Python's, so it must come to main() at once."""
    probe = (
        "import json, sys; before = set(sys.modules); from zprof.cli import main; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == {"__future__", "zprof", "zprof.cli", "zprof.version"}


def test_an_interrupt_during_the_first_import_is_one_line() -> None:
    """The import of the command line's own code is interrupted."""
    program = (
        "import os, signal, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'zprof.cli.entry': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from zprof.cli import main\n"
        "sys.exit(main(['--version']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "zprof: interrupted\n")
