"""A headless Chromium that a test talks to over pipes (DevTools protocol); no other package is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: The first of these that is installed.
NAMES = ("chromium", "chromium-browser", "google-chrome")
#: No answer after so long is a failure; on a busy machine a page of 5 MB may take some seconds.
_PATIENCE_S = 90.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def executable() -> str | None:
    """Where the browser is; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


#: Becomes the browser, with its ends of the pipes where it looks for them: at 3 and 4.
_START = """
import os, sys
from fcntl import F_DUPFD, fcntl
reading, writing = (fcntl(int(end), F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Tab:
    """An empty page: what it logs and what it asks a network for is kept."""

    def __init__(self, pipe: "_Pipe", session: str) -> None:
        self._pipe, self._session = pipe, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result."""
        return self._pipe.call(method, parameters, self._session)

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there, its scripts run."""
        self._pipe.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self._pipe.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What an expression is in the page, as plain data."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings that the page logged, and exceptions that nothing caught."""
        found = []
        for event in self._pipe.events:
            details = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(details["exceptionDetails"].get("exception", details)))
            elif event["method"] == "Runtime.consoleAPICalled" and details["type"] in {"error", "warning"}:
                found.append(str(details["args"]))
            elif event["method"] == "Log.entryAdded" and details["entry"]["level"] in {"error", "warning"}:
                found.append(details["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Addresses that it asked for."""
        events = [event for event in self._pipe.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in events]

    def size(self, width: int, height: int) -> None:
        """The window's size in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str, media: str = "screen") -> None:
        """The system's colour scheme, light or dark, and what the page is for: screen or print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def print(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])


class _Pipe:
    """Commands out, answers and events in; each message ends with a zero byte."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._rest = b""
        self._count = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE_S
        while number not in self._answers:
            self._take(deadline)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def wait_for(self, method: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not any(event["method"] == method for event in self.events):
            self._take(deadline)

    def _take(self, deadline: float) -> None:
        ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError("the browser does not answer")
        data = os.read(self._reading, 1 << 20)
        if not data:
            raise ConnectionError("the browser ended")
        *whole, self._rest = (self._rest + data).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self.events.append(message)


@contextmanager
def browser(home: Path, *flags: str) -> Iterator[Tab]:
    """A browser with an empty profile in ``home``, ended with the block."""
    found = executable()
    assert found is not None
    to_read, make_export = os.pipe()
    from_read, from_write = os.pipe()
    arguments = [found, *_FLAGS, f"--user-data-dir={home}", *flags]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(to_read), str(from_write), *arguments],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    pipe = _Pipe(from_read, make_export)
    try:
        target = pipe.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = pipe.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        yield Tab(pipe, session)
    finally:
        try:
            pipe.call("Browser.close", {})
        except (OSError, AssertionError):  # it is gone already
            process.kill()
        process.wait(timeout=_PATIENCE_S)
        os.close(make_export)
        os.close(from_read)
