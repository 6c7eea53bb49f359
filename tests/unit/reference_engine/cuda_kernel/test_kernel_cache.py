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


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda whole: whole[:-1], id="cut"),
        pytest.param(lambda whole: whole + b"\0", id="longer"),
        pytest.param(lambda whole: b"", id="empty"),
        pytest.param(lambda whole: whole[:-3] + b"X" + whole[-2:], id="one byte"),
        pytest.param(lambda whole: whole.partition(b"\n")[2], id="no head"),
        pytest.param(lambda whole: whole.replace(b"/1 ", b"/2 ", 1), id="another format"),
        pytest.param(lambda whole: whole.replace(b"aaaa", b"bbbb", 1), id="another key"),
        pytest.param(lambda whole: os.urandom(len(whole)), id="noise"),
    ],
)
def test_a_damaged_or_foreign_entry_is_compiled_again_and_replaced(path, damage):
    compiler = Compiler()
    compilation.load_or_compile(path, KEY, compiler)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert compilation.load_or_compile(path, KEY, compiler) == compiler.code
    assert compiler.calls == 2
    assert path.read_bytes() == whole


def test_an_entry_that_others_may_write_is_not_believed(path):
    compiler = Compiler()
    compilation.load_or_compile(path, KEY, compiler)
    path.chmod(0o666)
    compilation.load_or_compile(path, KEY, compiler)
    assert compiler.calls == 2
    assert path.stat().st_mode & 0o077 == 0


def test_an_entry_of_another_user_is_not_believed(path, monkeypatch):
    compiler = Compiler()
    compilation.load_or_compile(path, KEY, compiler)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    compilation.load_or_compile(path, KEY, compiler)
    assert compiler.calls == 2


@pytest.mark.parametrize("kind", ["folder in the place of the entry", "file in the place of the folder"])
def test_without_a_place_to_write_it_compiles_each_time(path, kind):
    if kind.startswith("folder"):
        path.mkdir(parents=True)
    else:
        path.parent.parent.mkdir()
        path.parent.write_text("")
    compiler = Compiler()
    for _ in range(2):
        assert compilation.load_or_compile(path, KEY, compiler) == compiler.code
    assert compiler.calls == 2
    assert not list(path.parent.parent.rglob(".adamw-*"))


def test_a_write_that_fails_leaves_nothing_behind(path, monkeypatch):
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    compiler = Compiler()
    assert compilation.load_or_compile(path, KEY, compiler) == compiler.code
    assert list(path.parent.iterdir()) == []


def test_a_failing_compiler_is_not_kept(path):
    def fail() -> bytes:
        raise compilation.KernelError("no")

    with pytest.raises(compilation.KernelError):
        compilation.load_or_compile(path, KEY, fail)
    assert not path.exists()


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


def test_without_a_home_nothing_is_kept(monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(compilation, "compile_cubin", lambda text, arch: f"{arch} {len(text)}".encode())
    assert compilation.get_cache_folder() is None
    assert compilation.load_cubin("sm_90", None).startswith(b"sm_90 ")


def test_a_cubin_is_kept_by_its_architecture(monkeypatch, tmp_path):
    compiled: list[str] = []
    monkeypatch.setattr(compilation, "get_nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(
        compilation, "compile_cubin", lambda text, arch: compiled.append(arch) or arch.encode()
    )
    for arch in ("sm_80", "sm_90", "sm_80", "sm_90"):
        assert compilation.load_cubin(arch, tmp_path) == arch.encode()
    assert compiled == ["sm_80", "sm_90"]
