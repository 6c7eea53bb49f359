"""What autograd saves for the backward: each saved tensor is an activation."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zprof.collectors.memory.hooks.originals import SavedOriginals
from zprof.collectors.memory.hooks.packing import AnyPack
from zprof.collectors.memory.hooks.unstack import enter_saving, leave_saving
from zprof.collectors.memory.lives.compiler import leave_alone

#: What we give autograd to keep: the tensor without its graph, and its version (None: not to be checked).
Packed = tuple[torch.Tensor, int | None]
Pack = Callable[[torch.Tensor], Packed]


class SavedTensors:
    """Puts a pack hook on this thread, and takes it off where torch or a collective cannot live with it.

    torch.func (grad, vjp, jacrev) forbids saved-tensor hooks while it runs, and raises where there are some.
    """

    def __init__(
        self, pack: Pack, watched: Callable[[AnyPack], AnyPack], missed: Callable[[Exception], None]
    ) -> None:
        """``watched`` gets each pack hook that the program puts on top of ours; its result replaces it.

        ``missed`` gets what keeps custom functions from finding their own parameters again.
        """
        self._pack = pack
        self._watched = watched
        self._hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        self._saved_originals = SavedOriginals(unpack, missed)
        self._suspended: set[int] = set()
        self._originals: tuple[Any, Any, Any] | None = None

    def install(self) -> None:
        """Hook autograd on this thread."""
        enter_saving(self._hooks)
        self._wrap_switch()
        self._saved_originals.install()

    def remove(self) -> bool:
        """Take everything off; false where ours are not on this thread, or cannot be taken off."""
        self._suspended.clear()
        self._saved_originals.remove()
        if self._originals is not None:
            torch._C._autograd._saved_tensors_hooks_disable = self._originals[0]
            torch._C._autograd._saved_tensors_hooks_enable = self._originals[1]
            torch._C._autograd._push_saved_tensors_default_hooks = self._originals[2]
            self._originals = None
        return leave_saving(self._pack)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Without our hooks on this thread, where no others are on top of them."""
        on_top = self._is_on_top()
        if on_top:
            self._hooks.__exit__()
        try:
            yield
        finally:
            if on_top:
                self._hooks.__enter__()

    def _is_on_top(self) -> bool:
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return top is not None and top[0] == self._pack

    def _wrap_switch(self) -> None:
        disable = torch._C._autograd._saved_tensors_hooks_disable
        enable = torch._C._autograd._saved_tensors_hooks_enable
        push = torch._C._autograd._push_saved_tensors_default_hooks

        def disable_without_ours(message: str, fail_if_non_empty: bool = True) -> None:
            # Compiled code passes false: it only forbids new hooks, and those in place go on.
            if fail_if_non_empty and self._originals is not None and self._is_on_top():
                self._hooks.__exit__()
                self._suspended.add(threading.get_ident())
            disable(message, fail_if_non_empty)

        def enable_with_ours() -> None:
            enable()
            if threading.get_ident() in self._suspended:
                self._suspended.discard(threading.get_ident())
                self._hooks.__enter__()

        def push_watched(pack: AnyPack, unpack: Callable[[Any], Any]) -> None:
            push(pack if pack == self._pack else self._watched(pack), unpack)

        self._originals = disable, enable, push
        torch._C._autograd._saved_tensors_hooks_disable = disable_without_ours
        torch._C._autograd._saved_tensors_hooks_enable = enable_with_ours
        torch._C._autograd._push_saved_tensors_default_hooks = push_watched  # type: ignore[assignment]


def unpack(packed: Packed) -> torch.Tensor:
    """Give the tensor back; autograd's own check for in-place changes ends where there are hooks."""
    tensor, version = packed
    if version is not None and tensor._version != version:  # detach() shares the counter
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version "
            f"{version} instead. Hint: enable anomaly detection to find the operation that failed to compute "
            "its gradient, with torch.autograd.set_detect_anomaly(True)."
        )
    return tensor


leave_alone(unpack.__code__)
