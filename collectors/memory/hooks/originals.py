"""Gives custom autograd functions the program's own parameters back, as they would be without our hooks.

What was saved under saved-tensor hooks comes back as a new tensor, also where it is a parameter.  A custom
function may look for what the program keeps on its parameters (``weight.main_grad``), and must find it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

_is_compiling = torch.compiler.is_compiling
_NAME = "saved_tensors"


class SavedOriginals:
    """Stands before ``ctx.saved_tensors`` while installed."""

    def __init__(self, unpack: Callable[..., torch.Tensor], missed: Callable[[Exception], None]) -> None:
        """``unpack`` is the hook of those tensors whose originals are known.

        ``missed`` gets the error where this torch does not say what a context keeps.
        """
        self._unpack, self._missed = unpack, missed
        self._patch: Any = None

    def install(self) -> None:
        """Put the property on the class that all contexts share; its base has torch's own."""
        if _NAME in BackwardCFunction.__dict__:  # somebody was here before
            return
        read: Any = torch._C._FunctionBase.saved_tensors

        def saved_tensors(context: Any) -> Any:
            found = read.__get__(context)
            return found if _is_compiling() or not found else self._originals(context, found)

        self._patch = property(saved_tensors)
        setattr(BackwardCFunction, _NAME, self._patch)

    def remove(self) -> None:
        """Take it off again."""
        if self._patch is not None and BackwardCFunction.__dict__.get(_NAME) is self._patch:
            delattr(BackwardCFunction, _NAME)
        self._patch = None

    def _originals(self, context: Any, found: tuple[torch.Tensor | None, ...]) -> Any:
        try:
            saved = context._raw_saved_tensors
            return tuple(
                tensor if tensor is None or not tensor.requires_grad else self._original(kept, tensor)
                for kept, tensor in zip(saved, found, strict=True)
            )
        except Exception as error:  # this torch does not tell what it keeps: they stay as they are
            self._missed(error)
            return found

    def _original(self, kept: Any, tensor: torch.Tensor) -> torch.Tensor:
        if kept.unpack_hook is not self._unpack:
            return tensor
        original: torch.Tensor = kept.data[0]
        return original if original.requires_grad else tensor  # one that was detached is none
