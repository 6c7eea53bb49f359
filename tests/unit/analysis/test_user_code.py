"""Which frames of a stack are the user's own code, and how their files are named."""

import pytest

from zprof.run.user_code import find_user_frame, make_user_location, parse_profiler_call

FOLDER = "/home/u/job"


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/u/job/train.py", "train.py"),
        ("/home/u/job/torch.py", "torch.py"),
        ("/home/u/other/train.py", "/home/u/other/train.py"),
        ("/home/u/job2/train.py", "/home/u/job2/train.py"),
        ("src/train.py", "src/train.py"),
        ("C:\\job\\train.py", "C:/job/train.py"),
        ("/opt/conda/lib/python3.11/site-packages/transformers/trainer.py", None),
        ("/home/u/job/.venv/lib/python3.12/site-packages/mine/train.py", None),
        ("/usr/lib/python3.11/threading.py", None),
        ("/opt/pytorch/torch/nn/modules/module.py", None),
        ("torch/nn/modules/module.py", None),
        ("threading.py", None),
        ("transformers/trainer.py", None),
        ("/tmp/torchinductor_u/ab/cab.py", None),
        ("/src/zprof/reference_engine/train.py", None),
        ("<string>", None),
        ("<frozen runpy>", None),
        ("aten/native/Copy.cpp", None),
    ],
)
def test_only_files_of_the_user_are_named(file: str, shown: str | None) -> None:
    location = make_user_location(file, 7, "main", FOLDER)
    assert (location.file if location else None) == shown


def test_the_innermost_user_frame_of_a_stack_is_found() -> None:
    stack = ("/x/site-packages/torch/a.py:1 f", "/home/u/job/model.py:12 forward", "/home/u/job/a.py:3 main")
    location = find_user_frame(stack, FOLDER)
    assert location is not None
    assert (location.file, location.line, location.function) == ("model.py", 12, "forward")
    assert find_user_frame(("at::native::copy", "", "a.py:x f", "a.py:0 f")) is None


@pytest.mark.parametrize(
    ("name", "line"),
    [("train.py(31): main", 31), ("<built-in method item>", None), ("torch/_tensor.py(5): backward", None)],
)
def test_a_python_call_of_a_trace_is_read(name: str, line: int | None) -> None:
    location = parse_profiler_call(name)
    assert (location.line if location else None) == line
