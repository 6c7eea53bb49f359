"""The screens by name.

All but the first are imported when they are first gone to: some need the analysis, which takes longer to
import than a first screen may.
"""

from collections.abc import Callable, Mapping

from zprof.tui.screens.overview import OverviewScreen
from zprof.tui.screens.page_screen import PageScreen


def _memory() -> PageScreen:
    from zprof.tui.screens.memory import MemoryScreen

    return MemoryScreen()


def _communication() -> PageScreen:
    from zprof.tui.screens.communication import CommunicationScreen

    return CommunicationScreen()


def _timeline() -> PageScreen:
    from zprof.tui.screens.timeline import TimelineScreen

    return TimelineScreen()


def _ranks() -> PageScreen:
    from zprof.tui.screens.ranks import RanksScreen

    return RanksScreen()


def _compare() -> PageScreen:
    from zprof.tui.screens.compare import CompareScreen

    return CompareScreen()


def _plan() -> PageScreen:
    from zprof.tui.screens.plan import PlanScreen

    return PlanScreen()


SCREENS: Mapping[str, Callable[[], PageScreen]] = {
    "overview": OverviewScreen,
    "memory": _memory,
    "communication": _communication,
    "timeline": _timeline,
    "ranks": _ranks,
    "compare": _compare,
    "plan": _plan,
}
