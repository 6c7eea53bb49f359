"""The screens by name."""

from zprof.tui.screens.communication import CommunicationScreen
from zprof.tui.screens.compare import CompareScreen
from zprof.tui.screens.memory import MemoryScreen
from zprof.tui.screens.overview import OverviewScreen
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.screens.ranks import RanksScreen
from zprof.tui.screens.timeline import TimelineScreen

SCREENS: dict[str, type[PageScreen]] = {
    "overview": OverviewScreen,
    "memory": MemoryScreen,
    "communication": CommunicationScreen,
    "timeline": TimelineScreen,
    "ranks": RanksScreen,
    "compare": CompareScreen,
}
