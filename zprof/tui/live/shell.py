"""What the live app knows: the run that it looks at, and what it has seen of it."""

from zprof.run.live import LiveState
from zprof.tui.live.seen import Seen
from zprof.tui.live.watcher import Watcher
from zprof.tui.theme.looked import Looked


class LiveShell(Looked):
    """One run while it is recorded."""

    def __init__(self, watcher: Watcher, *, ascii_only: bool = False, mono: bool = False) -> None:
        super().__init__(ascii_only=ascii_only, mono=mono)
        self.watcher = watcher
        self.seen = Seen(state=LiveState())
