"""Build a model given as ``module:function``, and format errors in its code as one line."""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zprof.base.errors import BadInput
from zprof.integrations.planning.storage_ledger import find_tensors

_MAX_LENGTH = 200
#: ECMA-48 terminal sequences, 7 or 8 bits: strings up to their terminator, control sequences, and escapes of
#: two characters.
_TERMINAL_SEQUENCES = re.compile(
    r"(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_HINT = "pass a function without arguments that returns a torch.nn.Module, e.g. train:make_model"


def find_builder(spec: str) -> Callable[[], nn.Module]:
    """Return a function that builds the model; each call builds a new one.

    Raises:
        BadInput: the module or function does not exist, or the function needs arguments.
    """
    module_name, colon, name = spec.partition(":")
    if not (colon and module_name and name):
        raise BadInput(f"--model {clean_text(spec)}: expected module:function", hint=_HINT)
    spec = clean_text(spec)
    function: Any = _import_module(spec, module_name)
    for part in name.split("."):
        if not hasattr(function, part):
            raise BadInput(
                f"--model {spec}: module {module_name} has no function {clean_text(name)}", hint=_HINT
            )
        function = getattr(function, part)
    if not callable(function):
        kind = type(function).__name__
        raise BadInput(f"--model {spec}: {name} is a {kind}, not a function", hint=_HINT)
    _check_arguments(spec, name, function)
    return lambda: _build_model(spec, function)


def format_error_line(error: BaseException) -> str:
    """Format the type and message of an error as one line that is safe for terminals."""
    text = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    return clean_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def clean_text(text: str) -> str:
    """Remove terminal control sequences from untrusted text and shorten it."""
    printable = "".join(char if char.isprintable() else " " for char in _TERMINAL_SEQUENCES.sub("", text))
    return printable if len(printable) <= _MAX_LENGTH else printable[: _MAX_LENGTH - 1] + "…"


def _import_module(spec: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BadInput(
                f"--model {spec}: no module {clean_text(error.name)} in this folder or among the "
                "installed packages",
                hint=_HINT,
            ) from None
        raise _make_code_error(spec, f"importing {clean_text(name)}", error) from None
    except BaseException as error:  # also sys.exit()
        raise _make_code_error(spec, f"importing {clean_text(name)}", error) from None


def _check_arguments(spec: str, name: str, function: Any) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no signature available
        return
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variable
    ]
    if required:
        raise BadInput(f"--model {spec}: {name} needs arguments ({', '.join(required)})", hint=_HINT)


def _build_model(spec: str, function: Any) -> nn.Module:
    try:
        model = function()
    except BaseException as error:
        raise _make_code_error(spec, "building the model", error) from None
    if not isinstance(model, nn.Module):
        raise BadInput(f"--model {spec} returned a {type(model).__name__}, not a torch.nn.Module", hint=_HINT)
    return model


def _make_code_error(spec: str, action: str, error: BaseException) -> BadInput:
    return BadInput(
        f"--model {spec}: {action} failed: {format_error_line(error)}",
        hint="the function runs on the meta device, where tensors have no values",
    )


def find_differentiable_output(value: Any) -> torch.Tensor:
    """Return the first tensor in a model's output that requires a gradient.

    Raises:
        BadInput: no tensor requires a gradient.
    """
    output = vars(value) if hasattr(value, "__dict__") and not isinstance(value, torch.Tensor) else value
    for tensor in find_tensors(output):
        if tensor.requires_grad:
            return tensor
    raise BadInput(
        "--model: the forward pass returned no tensor that requires a gradient",
        hint="return logits or a loss from forward(tokens)",
    )
