"""The stacks in the text that faulthandler writes, of this Python and of others."""

import faulthandler
import tempfile
import threading

import pytest

from zprof.collectors.record.watch.silent_ranks import make_thread_tables, parse_thread_text

TEXT = """Timeout (0:00:03)!
Thread 0x00007f3c5d7fa6c0 [zprof-watch] (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 359 in wait
  File "/job/my file, line 3 in x.py", line 12 in <lambda>

Current thread 0x00007f3c91c2b740 (most recent call first):
  File "/job/train.py", line 40 in hold
  File "/job/train.py", line 55 in <module>
"""


def test_the_last_thread_is_the_main_one() -> None:
    threads = parse_thread_text(TEXT)
    assert [each.is_main for each in threads] == [False, True]
    assert threads[0].name == "zprof-watch"
    main = threads[1]
    assert main.thread == 0x7F3C91C2B740
    assert [(frame.file, frame.line, frame.function) for frame in main.frames] == [
        ("/job/train.py", 40, "hold"),
        ("/job/train.py", 55, "<module>"),
    ]
    assert threads[0].frames[1].file == "/job/my file, line 3 in x.py"


def test_the_text_of_this_python_is_read() -> None:
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        threads = parse_thread_text(file.read())
    ended.set()
    other.join()
    assert len(threads) >= 2
    assert threads[-1].frames[0].function == "test_the_text_of_this_python_is_read"
    assert threads[-1].is_main


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        '  File "a.py", line 1 in f',
        "Thread 0xzz (most recent call first):\n",
        "\x00" * 99,
        TEXT[:40],
    ],
)
def test_other_text_has_no_threads(text: str) -> None:
    assert list(parse_thread_text(text)) == []


def test_equal_stacks_are_stored_once() -> None:
    (*_, main) = parse_thread_text(TEXT)
    tables = make_thread_tables([main, main], first_stack=7)
    assert tables["flight_thread"]["stack"] == [7, 7]
    assert tables["flight_stack"]["depth"] == [0, 1]
