"""Drawings without scripts in a real browser: a stuck job, the layouts of a plan."""

from pathlib import Path

import pytest

from tests.support import plans
from tests.support.axe import find_serious, needs_axe
from tests.support.browser import Tab, executable
from tests.support.hostile_names import NAMES, poisoned
from tests.support.hung_runs import import_hostile_dumps
from zprof.analysis.analysis import analyse
from zprof.diagnosis.diagnose import diagnose
from zprof.reports.html import render_html
from zprof.reports.pages.diagnosis import build_diagnosis_page
from zprof.reports.pages.plan import build_plan_page
from zprof.run.reader import Run

pytestmark = pytest.mark.skipif(executable() is None, reason="no chromium or google-chrome on the PATH")

#: The lanes of a row reach its lower end, where those of the next begin: their heights cover the list.
GAPS = """(() => {
  const rows = [...document.querySelectorAll('.waits li')].map(row => row.getBoundingClientRect());
  return rows.slice(1).map((row, at) => Math.abs(row.top - rows[at].bottom));
})()"""


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a job in which rank 1 does not go on, with hostile names."""
    folder = tmp_path_factory.mktemp("page")
    path = folder / "stuck.html"
    report = diagnose(analyse(Run(import_hostile_dumps(folder))))
    path.write_text(render_html(build_diagnosis_page(report)), encoding="utf-8")
    return path


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_hang(tab: Tab, stuck: Path, scheme: str) -> None:
    tab.prefer(scheme)
    tab.open(stuck)
    assert find_serious(tab) == []
    assert tab.value("document.querySelector('.waits .cause p').textContent") == "rank 1 cause"


def test_hostile_names_in_a_hang_do_nothing(tab: Tab, stuck: Path) -> None:
    tab.size(400, 800)
    tab.open(stuck)
    assert max(tab.value(GAPS)) < 0.1
    assert tab.value("document.querySelectorAll('img,b').length") == 0
    assert tab.complaints() == []
    assert tab.requests() == [stuck.as_uri()]
    assert tab.value("document.documentElement.scrollWidth") <= 400


@needs_axe
def test_axe_finds_nothing_serious_in_a_plan(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    path.write_text(
        render_html(build_plan_page(poisoned(plans.searched(), "".join(NAMES)))), encoding="utf-8"
    )
    tab.open(path)
    assert find_serious(tab) == []
    assert tab.value("document.querySelectorAll('svg.lines circle').length") > 2
    assert tab.complaints() == []
