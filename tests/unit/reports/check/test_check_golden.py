"""Each kind of check in each format, as a person has read it."""

import json

import pytest

from tests.support.checks_by_hand import CHECKS
from tests.support.golden import hold, without_pages
from tests.support.reports import slower
from zprof.reports.check.registry import CHECK_FORMATS, CheckFormat

#: Long: one or two are enough to read.
_LONG = {"sarif": {"failed"}, "json": {"failed", "first"}, "junit": {"failed", "first"}}
PAIRS = [
    (name, entry) for name in CHECKS for entry in CHECK_FORMATS if name in _LONG.get(entry.name, set(CHECKS))
]


@pytest.mark.parametrize(("name", "entry"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_golden(name: str, entry: CheckFormat) -> None:
    suffix = entry.suffixes[0] if entry.suffixes else ".github"
    document = entry.render(CHECKS[name], slower())
    hold(f"check/{name}{suffix}", without_pages(document) if entry.name == "sarif" else document)


def test_json_is_the_check_itself() -> None:
    (entry,) = [entry for entry in CHECK_FORMATS if entry.name == "json"]
    tree = json.loads(entry.render(CHECKS["failed"], slower()))
    assert tree["schema"] == "zprof.check/1"
    assert tree["results"][2]["value"] == CHECKS["failed"].results[2].value
