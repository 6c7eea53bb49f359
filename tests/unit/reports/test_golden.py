"""One document of each kind in each output, as a person has read it.

``ZPROF_UPDATE_GOLDEN=1 pytest tests/unit/reports/test_golden.py`` writes them anew: read the difference.
"""

import pytest
from msgspec.structs import replace

from tests.support.comments import checked
from tests.support.golden import hold, without_pages
from tests.support.html_pages import without_assets
from tests.support.judged_checks import CHECKS
from tests.support.report_pages import PAGES, RENDERERS
from tests.support.reports import slower
from zprof.reports.formats import CHECKS as CHECK_FORMATS
from zprof.reports.formats import Checked, by_name
from zprof.reports.pages.check_comment import render_check_comment

#: Pages that are only another choice of the blocks that others have.
_TEXT_ONLY = (
    "plan_too_large",
    "hang_log",
    "report_memory",
    "report_time",
    "snapshot_report",
    "snapshot_compare",
)


@pytest.mark.parametrize(
    ("name", "output"),
    [(name, output) for name in PAGES for output in RENDERERS if output == "txt" or name not in _TEXT_ONLY],
)
def test_page(name: str, output: str) -> None:
    document = RENDERERS[output](PAGES[name]())
    hold(f"pages/{name}.{output}", without_assets(document) if output == "html" else document)


@pytest.mark.parametrize(("name", "suffix"), [("junit", "xml"), ("sarif", "sarif")])
def test_report_for_ci(name: str, suffix: str) -> None:
    document = by_name(name).render(replace(slower(), zprof_version="0.0.0"))
    hold(f"ci/report.{suffix}", without_pages(document) if name == "sarif" else document)


@pytest.mark.parametrize(
    ("name", "suffix"), [("junit", "xml"), ("sarif", "sarif"), ("github", "github"), ("json", "json")]
)
def test_check_for_ci(name: str, suffix: str) -> None:
    document = by_name(name, CHECK_FORMATS).render(Checked(check=CHECKS["failed"], report=slower()))
    hold(f"ci/check.{suffix}", without_pages(document) if name == "sarif" else document)


def test_comment_of_a_check() -> None:
    hold("ci/comment.md", render_check_comment(checked()))
