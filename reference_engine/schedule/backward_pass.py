"""When a backward pass begins and ends.

It begins when the gradient of an output of the model is there, or with the first other hook that fires in
it, and ends in the autograd engine's final callback.  That runs after the last gradient, with the streams of
the caller of ``backward()`` as the current ones, but on the thread that ran the last node: with gradients on
a GPU that is autograd's thread of the device, and the caller waits for it.  Nothing here may depend on the
thread.

``torch.autograd.grad()`` runs through the same nodes, and needs their parameters, but adds to no ``.grad``:
such a pass begins and ends too, and is not the ``backward()`` of a step.

The callback belongs to the pass in which it is queued.  Reentrant activation checkpointing runs a backward
inside the backward, whose end is not the end: so the pass is begun before that, by the output of the model
or by the recomputation, both of which belong to the outer one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.autograd.graph import Node, get_gradient_edge

from zprof.reference_engine.schedule.hooks import Listeners, ModuleHook
from zprof.reference_engine.schedule.tensors import nodes_of


def in_backward() -> bool:
    """Whether autograd runs on this thread: a forward in it is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def _will_execute(node: Node) -> bool:
    """Return whether the running pass executes a node that its graph holds."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # of a leaf whose gradient autograd.grad() returns instead of adding it to .grad
        return False


def will_have_gradient(parameter: torch.Tensor) -> bool:
    """Whether the running backward pass gives the parameter a gradient, or has given it one."""
    with torch._C.DisableTorchFunctionSubclass():
        return _will_execute(get_gradient_edge(parameter).node)


class BackwardPass:
    """Tells listeners, in their order, of the begin and the end of each backward pass."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """``parameters`` are those that are trained."""
        self.running = False
        #: Whether the pass that runs, or ran last, adds to ``.grad``.
        self.accumulates = True
        self._parameters = parameters
        self.on_begin = Listeners()
        self.on_end = Listeners()

    def enter(self) -> None:
        """To be called from every hook in the backward; the first call of a pass begins it."""
        if self.running:
            return
        self.accumulates = self._is_backward()
        self.on_begin()
        self.running = True
        Variable._execution_engine.queue_callback(self._end)

    def watch(self, root: nn.Module) -> None:
        """Hook the outermost module, before every other part of the engine does."""
        root.register_forward_pre_hook(ModuleHook(self._before_forward), prepend=True)
        root.register_forward_hook(ModuleHook(self._after_forward))

    def _before_forward(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not in_backward():
            self.running = False  # a pass that an exception ended has not told so

    def _after_forward(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if torch.is_grad_enabled() and not in_backward():
            for node in nodes_of(output):
                node.register_prehook(self._gradient_of_output)

    def _gradient_of_output(self, gradients: object) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backward(create_graph=True) is not supported: gradients are reduced out of autograd's sight"
            )
        self.enter()

    def _is_backward(self) -> bool:
        """Return False in ``autograd.grad()``, and in a ``backward(inputs=...)`` of other tensors.

        Both execute only what leads to their inputs.  A backward in which this rank has used none of its
        parameters executes the whole graph.
        """
        if any(will_have_gradient(parameter) for parameter in self._parameters):
            return True
        left: list[Node] = [torch._C._current_autograd_node()]
        seen = set(left)
        while left:
            for node, _ in left.pop().next_functions:
                if node is None or node in seen:
                    continue
                if not _will_execute(node):
                    return False
                seen.add(node)
                left.append(node)
        return True

    def _end(self) -> None:
        self.running = False
        self.on_end()
