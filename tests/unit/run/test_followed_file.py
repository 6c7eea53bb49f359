"""A file that grows gives each line once and whole, wherever it is cut."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.run.live import FollowedFile

LONGEST = 8


def followed(path: Path, restarts: list[int] | None = None) -> FollowedFile:
    told = restarts if restarts is not None else []
    return FollowedFile(path, LONGEST, lambda: told.append(1))


@settings(max_examples=60)
@given(
    content=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"x")), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    most=st.integers(1, 30),
)
def test_each_line_comes_once_wherever_it_is_cut(content: list[bytes], cuts: list[int], most: int) -> None:
    whole = b"".join(line + b"\n" for line in content)
    ends = [*sorted({min(cut, len(whole)) for cut in cuts}), len(whole)]
    seen: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        path, done = Path(folder) / "log", 0
        file = followed(path)
        for end in ends:
            with path.open("ab") as log:
                log.write(whole[done:end])
            done = end
            seen += file.lines(most)
        while file.read_bytes < len(whole):
            seen += file.lines(most)
    assert seen == [line for line in content if len(line) <= LONGEST]
    assert file.too_long == sum(len(line) > LONGEST for line in content)


def test_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = followed(path)
    assert file.lines(99) == []  # not there yet
    path.write_bytes(b"ab")
    assert file.lines(99) == []
    path.write_bytes(b"abc\nd")
    assert file.lines(99) == [b"abc"]
    assert file.lines(99) == []


def test_a_line_without_end_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 10_000)
    file = followed(path)
    for _ in range(10):
        assert file.lines(1000) == []
    assert len(file._half) <= LONGEST
    assert file.too_long == 1


def test_another_file_in_its_place_begins_anew(tmp_path: Path) -> None:
    path, told = tmp_path / "log", list[int]()
    path.write_bytes(b"a\nb\n")
    file = followed(path, told)
    assert file.lines(99) == [b"a", b"b"]
    (tmp_path / "new").write_bytes(b"c\nd\ne\n")
    (tmp_path / "new").rename(path)
    assert file.lines(99) == [b"c", b"d", b"e"]
    assert len(told) == 1
    path.write_bytes(b"f\n")  # the same file, cut
    assert file.lines(99) == [b"f"]
    assert len(told) == 2
