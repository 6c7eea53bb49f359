"""The files that a cached import was made of: beside the run, never in it, and only from a cache of ours."""

import os
from pathlib import Path

import pytest

from zprof.integrations.imports.file_ranks import RankedFile
from zprof.integrations.imports.origin import ORIGIN_NAME, read_origin, write_origin


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / ".traces.zprof-cache"
    (folder / "traces.zprof").mkdir(parents=True)
    files = [RankedFile(rank=rank, path=tmp_path / f"r\udcff {rank}.json") for rank in (0, 7)]
    write_origin(folder, files)
    return folder


def test_files_come_back_by_rank_whatever_their_names(cache):
    found = read_origin(cache / "traces.zprof")
    assert found == {rank: cache.parent / f"r\udcff {rank}.json" for rank in (0, 7)}


def test_the_run_itself_names_no_path(cache):
    assert not list((cache / "traces.zprof").iterdir())


def test_nothing_is_taken_from_elsewhere(cache, tmp_path, monkeypatch):
    plain = tmp_path / "plain"
    (plain / "run.zprof").mkdir(parents=True)
    (plain / ORIGIN_NAME).write_bytes((cache / ORIGIN_NAME).read_bytes())
    assert read_origin(plain / "run.zprof") is None
    assert read_origin(tmp_path / "nowhere" / "run.zprof") is None
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    assert read_origin(cache / "traces.zprof") is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": "b"}', b'{"0": 3}', b"\xff\xfe"])
def test_what_is_damaged_says_nothing(cache, content):
    (cache / ORIGIN_NAME).write_bytes(content)
    assert read_origin(cache / "traces.zprof") is None


def test_a_link_is_not_followed(cache, tmp_path):
    target = tmp_path / "other.json"
    (cache / ORIGIN_NAME).rename(target)
    (cache / ORIGIN_NAME).symlink_to(target)
    assert read_origin(cache / "traces.zprof") is None
