"""Progress of a training run in the live view; as a bar once the user has left that."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from zprof.cli.terminal.live_view import LiveView
from zprof.cli.terminal.progress import steps_progress
from zprof.model.errors import ZprofError


@contextmanager
def live_progress(run: Path, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields what is to be called with the number of finished steps, often: it also minds the view.

    Raises:
        KeyboardInterrupt: out of what is yielded, where the user ends the job in the view.
    """
    with ExitStack() as stack:
        bar: list[Callable[[int], None]] = []
        view = LiveView(run, left=lambda: bar.append(stack.enter_context(steps_progress(title, total))))
        stack.callback(view.close)
        view.start()

        def on_step(steps: int) -> None:
            view.look()
            for each in bar:
                each(steps)

        try:
            yield on_step
        except ZprofError as error:
            view.job_over(error.exit_code)
            raise
        view.job_over(0)
