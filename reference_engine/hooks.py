"""Hook a model's modules, parameters and autograd nodes, and detect the start and end of each backward pass.

Hooks hold only weak references to the engine.  Otherwise module and engine would reference each other, and
their memory would be freed only by the garbage collector.

A pass starts when the gradient of an output of the model is ready, or with the first other hook that runs in
it.  It ends in the autograd engine's final callback, which runs after the last gradient.  In that callback
the current streams are those of the caller of ``backward()``, but the thread is the one that ran the last
node.  With gradients on a GPU that is autograd's device thread, and the caller waits for it.  So nothing here
may depend on the thread.

``torch.autograd.grad()`` executes the same nodes and needs their parameters, but accumulates into no
``.grad``.  Such a pass starts and ends too, but is not the ``backward()`` of a step.

The callback belongs to the pass in which it is queued.  Reentrant activation checkpointing runs a nested
backward, whose end is not the end of the outer one.  So the pass is started before the nested backward, by
the output of the model or by the recomputation, both of which belong to the outer pass.

Autograd executes ready nodes in reverse forward order.  All nodes of a unit were created after its input, so
they run before the node that created the input.  Inputs without such a node are not watched: tokens have no
gradient, and the gradient of a leaf (a parameter passed as an input) is ready as early as possible.  If a
unit was called twice in one forward, its backward ends when both calls have ended.  Calls in another forward
whose graph is still alive do not count.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakMethod, WeakSet

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.autograd import Variable
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils._pytree import tree_leaves

from zprof.reference_engine.flat_unit import ModuleUnit


class EngineHook:
    """Calls a method of the engine as long as it exists, with ``prefix`` before the hook's own arguments.

    A deep copy of the module is a plain module, so the hook in the copy does nothing.
    """

    def __init__(self, method: Callable[..., Any], *prefix: Any) -> None:
        self._method = WeakMethod(method)
        self._prefix = prefix

    @property
    def alive(self) -> bool:
        """True while the engine exists."""
        return self._method() is not None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the method, if the engine still exists."""
        method = self._method()
        return None if method is None else method(*self._prefix, *arguments, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return do_nothing

    def __reduce__(self) -> Any:
        raise RuntimeError("a module in a ZeRO engine cannot be pickled: save model.state_dict() instead")


class UntracedHook(EngineHook):
    """A module hook that torch.compile does not trace; it still compiles the code before and after it."""

    @_disable_dynamo
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the method, if the engine still exists."""
        return super().__call__(*arguments, **named)


def do_nothing(*arguments: Any, **named: Any) -> None:
    """Replace a hook in deep copies of a module."""


def is_in_backward() -> bool:
    """Return True if autograd runs on this thread; a forward inside a backward is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def _will_execute(node: Node) -> bool:
    """Return True if the running pass executes a node of its graph."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf whose gradient autograd.grad() returns instead of adding it to .grad
        return False


def will_have_gradient(parameter: torch.Tensor) -> bool:
    """Return True if the running backward pass computes the parameter's gradient, or has already done so."""
    with torch._C.DisableTorchFunctionSubclass():
        return _will_execute(get_gradient_edge(parameter).node)


class BackwardPass:
    """Runs callbacks at the start and end of each backward pass."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Track the backward passes of a model with these trainable ``parameters``."""
        self.running = False
        #: True if the running pass, or the last one, accumulates into ``.grad``.
        self.accumulates = True
        self._parameters = parameters
        self.on_start: list[EngineHook] = []
        self.on_end: list[EngineHook] = []

    def enter(self) -> None:
        """Start the pass if it is not running; every hook in the backward must call this."""
        if self.running:
            return
        self.accumulates = self._is_backward()
        for callback in self.on_start:
            callback()
        self.running = True
        Variable._execution_engine.queue_callback(self._end)

    def watch(self, root: nn.Module) -> None:
        """Hook the outermost module; call it before any other part of the engine registers hooks."""
        root.register_forward_pre_hook(UntracedHook(self._before_forward), prepend=True)
        root.register_forward_hook(UntracedHook(self._after_forward))

    def _before_forward(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not is_in_backward():
            self.running = False  # still set if the last pass raised an exception

    def _after_forward(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if torch.is_grad_enabled() and not is_in_backward():
            for node in collect_nodes(output):
                node.register_prehook(self._gradient_of_output)

    def _gradient_of_output(self, gradients: object) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backward(create_graph=True) is not supported: autograd does not track the reductions"
            )
        self.enter()

    def _is_backward(self) -> bool:
        """Return False for ``autograd.grad()``, and for ``backward(inputs=...)`` with other tensors.

        Both execute only the nodes that lead to their inputs, while a ``backward()`` in which this rank used
        no parameter executes the entire graph.
        """
        if any(will_have_gradient(parameter) for parameter in self._parameters):
            return True
        pending: list[Node] = [torch._C._current_autograd_node()]
        seen = set(pending)
        while pending:
            for node, _ in pending.pop().next_functions:
                if node is None or node in seen:
                    continue
                if not _will_execute(node):
                    return False
                seen.add(node)
                pending.append(node)
        return True

    def _end(self) -> None:
        self.running = False
        for callback in self.on_end:
            callback()


class InputWatch:
    """Detects the end of a unit's backward: the gradients of its inputs are ready."""

    def __init__(
        self, units: Sequence[ModuleUnit], backward: BackwardPass, on_end: Callable[[ModuleUnit], None]
    ) -> None:
        """Register hooks on the modules."""
        self._units = {unit.name: unit for unit in units}
        self._backward = backward
        self._on_end = on_end
        self._open_calls: dict[str, WeakSet[_Call]] = {unit.name: WeakSet() for unit in units}
        self._unwatched_calls: Counter[str] = Counter()
        self._root = units[0].name
        self._forward_count = 0
        backward.on_end.append(EngineHook(self._reset))
        for unit in units:
            hook = UntracedHook(self._before_forward, unit.name)
            unit.module.register_forward_pre_hook(hook, with_kwargs=True)

    def end_call(self, call: "_Call") -> None:
        """Handle the end of the backward of one call."""
        self._backward.enter()
        if self._backward.accumulates:  # after autograd.grad(), a backward() of the same graph may follow
            self._open_calls[call.unit].discard(call)
        self._update_watched(call.unit)
        others = any(
            other.forward == call.forward for other in self._open_calls[call.unit] if other is not call
        )
        if not others and not self._unwatched_calls[call.unit]:
            self._on_end(self._units[call.unit])

    def _before_forward(
        self, name: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if is_in_backward():
            self._backward.enter()
            return
        if not torch.is_grad_enabled():
            return
        self._forward_count += name == self._root
        call = _Call(self, name, self._forward_count)
        tensors = iter_tensors((arguments, named))
        inputs = [tensor for tensor in tensors if tensor.requires_grad and not tensor.is_leaf]
        for tensor in inputs:
            tensor.grad_fn  # noqa: B018  refreshes it: torch 2.13 crashes in register_hook on an outdated view
            tensor.register_hook(call.on_input_gradient)  # type: ignore[no-untyped-call]
        if inputs:
            self._open_calls[name].add(call)
        else:
            self._unwatched_calls[name] += 1
        self._update_watched(name)

    def _reset(self) -> None:
        if not self._backward.accumulates:
            return
        self._unwatched_calls.clear()
        for name in self._open_calls:
            self._update_watched(name)

    def _update_watched(self, name: str) -> None:
        for flat in self._units[name].flat:
            flat.watched = bool(self._open_calls[name]) and not self._unwatched_calls[name]


class _Call:
    """One call of a unit; its backward ends with an input's gradient.  Only the graph keeps it alive."""

    def __init__(self, watch: InputWatch, unit: str, forward: int) -> None:
        self._watch = watch
        self.unit = unit
        self.forward = forward

    def on_input_gradient(self, gradient: torch.Tensor) -> None:
        self._watch.end_call(self)


def iter_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers, dataclasses and (one level deep) other objects' attributes."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from iter_tensors(getattr(leaf, field.name, None))
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | nn.Module):
            attributes = tree_leaves(list(vars(leaf).values()))
            yield from (each for each in attributes if isinstance(each, torch.Tensor))


def collect_nodes(value: Any) -> set[Node]:
    """Return the nodes through which gradients reach the tensors in ``value``.

    The base of a view is included: after an in-place change the view has a new node, and the gradient comes
    through the base's.
    """
    nodes: set[Node] = set()
    for tensor in iter_tensors(value):
        if tensor.grad_fn is not None:
            nodes.add(tensor.grad_fn)
        base = tensor._base
        if base is not None and base.grad_fn is not None:
            nodes.add(base.grad_fn)
    return nodes
