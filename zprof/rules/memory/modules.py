"""What the names of modules tell: how many equal blocks a model has, and which module is its output.

Names come from the program and are untrusted: they are compared, and escaped before they are shown.
"""

import re
from collections.abc import Iterable

from zprof.analysis.analysis import RunAnalysis
from zprof.model.printable import printable, shorten

_INDEXED = re.compile(r"(?:^|\.)(\d{1,6})(?:\.|$)")
_SHOWN = 60
#: Wrappers around a whole model.
_WRAPPERS = frozenset({"module", "model", "_orig_mod", "_forward_module", "_fsdp_wrapped_module"})
#: What output layers and losses are called in the libraries that people train with.
_OUTPUTS = frozenset(
    {
        "lm_head", "head", "output", "output_layer", "logits", "to_logits", "embed_out", "unembed",
        "classifier", "loss", "loss_fn", "loss_function", "criterion", "cross_entropy",
    }
)  # fmt: skip


def block_count(analysis: RunAnalysis) -> int | None:
    """How many blocks the model has: the longest row of numbered modules that is in no other such row.

    ``blocks.0.expand`` and ``blocks.1.expand`` belong to the row ``blocks``.  None where nothing is numbered.
    """
    rows: dict[str, set[int]] = {}
    for name in _names(analysis):
        match = _INDEXED.search(name)
        if match:
            rows.setdefault(name[: match.start(1)], set()).add(int(match.group(1)))
    return max((len(indexes) for indexes in rows.values()), default=None)


def is_numbered(module: str) -> bool:
    """Whether the module belongs to a row of equal ones."""
    return _INDEXED.search(module) is not None


def is_output(module: str) -> bool:
    """Whether the module is an output layer or a loss, by its name, and in no block."""
    return not is_numbered(module) and any(part in _OUTPUTS for part in module.split("."))


def is_root(module: str) -> bool:
    """Whether the module is the model itself, or a wrapper around it."""
    return all(part in _WRAPPERS for part in module.split(".")) if module else True


def shown(module: str) -> str:
    """The name, safe and short enough for a sentence."""
    return shorten(printable(module), _SHOWN) if module else "the root module"


def _names(analysis: RunAnalysis) -> Iterable[str]:
    yield from (entry.module for entry in analysis.memory.modules)
    yield from (entry.module for entry in analysis.memory.top)
