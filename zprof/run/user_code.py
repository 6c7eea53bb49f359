"""Distinguish the user's code from libraries, by the untrusted file names in stacks."""

import re
import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import PurePosixPath

from zprof.model.findings import SourceLocation

#: Parts of the paths of torch (installed or in a source tree), of Python's modules, and of generated code.
_TORCH_PATH = re.compile(
    r"-packages/torch/"
    r"|/torch/(?:_\w+|nn|distributed|utils|optim|autograd|cuda|amp|profiler|fx|func\w*)(?:/|\.py$|$)"
    r"|/torchinductor_|/<(?:frozen |eval_with_key)|/lib/python\d[\d.]*/(?!(?:site|dist)-packages/)",
    re.ASCII,
)
#: Parts of the paths of other installed packages, and of zprof.
_LIBRARY_PATH = re.compile(
    r"/(?:site-packages|dist-packages)/|/lib/python\d"
    r"|/zprof/(?:__main__\.py$|(?:cli|collectors|integrations|notebook|reference_engine|run|testing)/)",
    re.ASCII,
)
#: Packages whose files a profiler lists relative to the folder of installed packages.
_PACKAGES = frozenset(
    (
        "accelerate", "apex", "bitsandbytes", "composer", "datasets", "deepspeed", "einops", "flash_attn",
        "huggingface_hub", "lightning", "lightning_fabric", "megatron", "numpy", "pandas", "peft", "PIL",
        "pytorch_lightning", "ray", "safetensors", "sympy", "tokenizers", "torch", "torchdata", "torchvision",
        "tqdm", "transformer_engine", "transformers", "triton", "trl", "vllm", "wandb", "xformers", "zprof",
    )
)  # fmt: skip
#: ``train.py:31 main``, as in memory stacks; ``train.py(31): main``, as torch's profiler writes it.
_FRAME = re.compile(r"(?P<file>[^\n]+):(?P<line>\d{1,9}) (?P<function>[^\n]+)")
_CALL = re.compile(r"(?P<file>[^\n]+)\((?P<line>\d{1,9})\): (?P<function>[^\n]+)")
_MAX_TEXT = 400


class CodeOwner(Enum):
    """Owner of a Python file: torch or Python itself; another installed package or zprof; else the user."""

    TORCH = "torch"
    LIBRARY = "library"
    USER = "user"


def find_code_owner(path: str) -> CodeOwner:
    """Return the owner of a Python file; its path starts with a slash and has no backslashes."""
    if _TORCH_PATH.search(path):
        return CodeOwner.TORCH
    return CodeOwner.LIBRARY if _LIBRARY_PATH.search(path) else CodeOwner.USER


def find_user_frame(stack: Iterable[str], folder: str = "") -> SourceLocation | None:
    """Return the innermost frame of the user's code in a stack of strings, or None."""
    locations = (parse_frame(text, _FRAME, folder) for text in stack)
    return next((location for location in locations if location is not None), None)


def parse_profiler_call(name: str, folder: str = "") -> SourceLocation | None:
    """Return the function of a ``python_function`` event; None if a library's or without a file."""
    return parse_frame(name, _CALL, folder)


def parse_frame(text: str, pattern: re.Pattern[str], folder: str) -> SourceLocation | None:
    """Return the location of a frame given as a string; None if it is not the user's code."""
    match = pattern.fullmatch(text[: 2 * _MAX_TEXT])
    if match is None:
        return None
    return make_user_location(match["file"], int(match["line"]), match["function"], folder)


def make_user_location(file: str, line: int, function: str, folder: str = "") -> SourceLocation | None:
    """Return the location of a frame, relative to ``folder``; None for frames of libraries."""
    path = file.replace("\\", "/")
    base = folder.replace("\\", "/").rstrip("/")
    inside = bool(base) and path.startswith(f"{base}/")
    if line < 1 or not _is_user_file(path, is_known_folder=inside):
        return None
    relative = path[len(base) + 1 :] if inside else path
    return SourceLocation(file=relative[:_MAX_TEXT], line=line, function=function[:_MAX_TEXT])


def _is_user_file(path: str, *, is_known_folder: bool) -> bool:
    if not path.endswith(".py") or find_code_owner(f"/{path.lstrip('/')}") is not CodeOwner.USER:
        return False
    if is_known_folder or path.startswith("/"):
        return True
    top = PurePosixPath(path).parts[0].removesuffix(".py")
    return top not in _PACKAGES and top not in sys.stdlib_module_names
