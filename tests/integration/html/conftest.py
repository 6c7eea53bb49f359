"""A browser for the pages, the same for all of a file."""

from collections.abc import Iterator

import pytest

from tests.support.browser import Tab, browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def usual(request: pytest.FixtureRequest) -> None:
    """Each test begins with a light system, scripts on, a window of usual size."""
    tab: Tab = request.getfixturevalue("tab")
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    tab.prefer("light")
    tab.size(1280, 900)
