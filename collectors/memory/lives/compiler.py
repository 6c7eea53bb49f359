"""Keeps torch.compile away from our own functions: it looks at all that runs while it watches a program."""

from types import CodeType
from typing import Any

import torch


def leave_alone(code: CodeType) -> bool:
    """Have the compiler skip a function and all that it calls; false where this torch cannot be told so.

    The same as torch's own wrapper for it, without half a microsecond for each call, and without an import
    of the whole compiler in programs that compile nothing.
    """
    try:
        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except (AttributeError, TypeError):
        return False
    return True
