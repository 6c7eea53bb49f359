"""The screens by name."""

from zprof.tui.screens.compare import CompareScreen
from zprof.tui.screens.overview import OverviewScreen
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.screens.ranks import RanksScreen

SCREENS: dict[str, type[PageScreen]] = {
    "overview": OverviewScreen,
    "ranks": RanksScreen,
    "compare": CompareScreen,
}
