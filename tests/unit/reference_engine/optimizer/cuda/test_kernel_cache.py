"""Compiled kernels on disk: found again, and never believed when they are damaged or not ours."""

import os
from pathlib import Path

import pytest

from zprof.reference_engine.optimizer.cuda import compilation

KEY = "a" * 64


class Compiler:
    """Counts what it is asked for."""

    def __init__(self, code: bytes = b"\x7fELF machine\ncode") -> None:
        self.calls = 0
        self.code = code

    def __call__(self) -> bytes:
        self.calls += 1
        return self.code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache" / "adamw-key.cubin"


def test_a_second_process_finds_what_the_first_one_compiled(path):
    first, second = Compiler(), Compiler(b"other")
    assert compilation.load_or_compile(path, KEY, first) == first.code
    assert compilation.load_or_compile(path, KEY, second) == first.code
    assert (first.calls, second.calls) == (1, 0)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def damaged(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(damaged(lambda whole: whole[:-1]), id="cut"),
        pytest.param(damaged(lambda whole: b""), id="empty"),
        pytest.param(damaged(lambda whole: whole[:-3] + b"X" + whole[-2:]), id="one byte"),
        pytest.param(damaged(lambda whole: whole.partition(b"\n")[2]), id="no head"),
        pytest.param(damaged(lambda whole: whole.replace(b"/1 ", b"/2 ", 1)), id="another format"),
        pytest.param(damaged(lambda whole: whole.replace(b"aaaa", b"bbbb", 1)), id="another key"),
        pytest.param(lambda path: path.chmod(0o666), id="writable by others"),
    ],
)
def test_a_damaged_or_foreign_entry_is_compiled_again_and_replaced(path, damage):
    compiler = Compiler()
    compilation.load_or_compile(path, KEY, compiler)
    whole = path.read_bytes()
    damage(path)
    assert compilation.load_or_compile(path, KEY, compiler) == compiler.code
    assert compiler.calls == 2
    assert path.read_bytes() == whole
    assert path.stat().st_mode & 0o077 == 0


def test_an_entry_of_another_user_is_not_believed(path, monkeypatch):
    compiler = Compiler()
    compilation.load_or_compile(path, KEY, compiler)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    compilation.load_or_compile(path, KEY, compiler)
    assert compiler.calls == 2


@pytest.mark.parametrize("kind", ["folder", "file", "full disk"])
def test_without_a_place_to_write_it_compiles_each_time(path, monkeypatch, kind):
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    if kind == "folder":
        path.mkdir(parents=True)
    elif kind == "file":
        path.parent.parent.mkdir()
        path.parent.write_text("")
    else:
        monkeypatch.setattr(os, "fsync", full)
    compiler = Compiler()
    for _ in range(2):
        assert compilation.load_or_compile(path, KEY, compiler) == compiler.code
    assert compiler.calls == 2
    assert not [file for file in path.parent.parent.rglob("*") if file.is_file() and file != path.parent]


def test_the_key_knows_source_architecture_options_and_compiler(monkeypatch):
    base = compilation.compute_cache_key("source", "sm_90", (13, 0))
    others = {
        compilation.compute_cache_key("source ", "sm_90", (13, 0)),
        compilation.compute_cache_key("source", "sm_80", (13, 0)),
        compilation.compute_cache_key("source", "sm_90", (13, 1)),
    }
    monkeypatch.setitem(compilation.OPTIONS, "fma", True)
    others.add(compilation.compute_cache_key("source", "sm_90", (13, 0)))
    assert len(others | {base}) == 5


def test_the_folder_follows_the_xdg_specification(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation.get_cache_folder() == tmp_path / "zprof" / "cuda"
    monkeypatch.setenv("HOME", "/home/somebody")
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert compilation.get_cache_folder() == Path("/home/somebody/.cache/zprof/cuda")
