"""Where the public traces are that some tests read: beside the checkout, or where ZPROF_TEST_DATA says.

They are not part of the project; tests that need one are skipped where they are absent.
"""

import os
from pathlib import Path

_BESIDE = Path(__file__).parents[3] / "shared/data"
TRACES = Path(os.environ.get("ZPROF_TEST_DATA") or _BESIDE) / "traces"
DUMPS = Path(os.environ.get("ZPROF_TEST_DATA") or _BESIDE) / "flight_recorder"
LOGS = Path(os.environ.get("ZPROF_TEST_DATA") or _BESIDE) / "watchdog_logs"
PIPELINES = Path(os.environ.get("ZPROF_TEST_DATA") or _BESIDE) / "pipelines"
