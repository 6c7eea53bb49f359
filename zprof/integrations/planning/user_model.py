"""Build the model that a user names as ``module:function``, and turn errors of its code into one line."""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zprof.integrations.planning.storage_ledger import find_tensors
from zprof.model.errors import BadInput

_MAX_LENGTH = 200
#: Terminal sequences of ECMA-48, 7 or 8 bits: strings up to their terminator, control sequences, two-
#: character escapes.
_TERMINAL_SEQUENCES = re.compile(
    r"(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_HINT = "name a function without arguments that returns a torch.nn.Module, as in train:make_model"


def find_builder(spec: str) -> Callable[[], nn.Module]:
    """Return the builder that a user named; each call builds a model.

    Raises:
        BadInput: the module or function does not exist, or it needs arguments.
    """
    module_name, colon, name = spec.partition(":")
    if not (colon and module_name and name):
        raise BadInput(f"--model is {clean_text(spec)}; it must be module:function", hint=_HINT)
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


def first_line(error: BaseException) -> str:
    """Return type and message of an error in one line that is safe for a terminal."""
    text = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    return clean_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def clean_text(text: str) -> str:
    """Return a foreign text, shortened and without terminal control sequences."""
    printable = "".join(sign if sign.isprintable() else " " for sign in _TERMINAL_SEQUENCES.sub("", text))
    return printable if len(printable) <= _MAX_LENGTH else printable[: _MAX_LENGTH - 1] + "…"


def _import_module(spec: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BadInput(
                f"--model {spec}: there is no module {clean_text(error.name)} in this folder or among "
                "installed "
                "packages",
                hint=_HINT,
            ) from None
        raise _code_error(spec, f"importing {clean_text(name)}", error) from None
    except BaseException as error:  # also sys.exit()
        raise _code_error(spec, f"importing {clean_text(name)}", error) from None


def _check_arguments(spec: str, name: str, function: Any) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no signature available
        return
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in variable]
    if needed:
        raise BadInput(f"--model {spec}: {name} needs arguments ({', '.join(needed)})", hint=_HINT)


def _build_model(spec: str, function: Any) -> nn.Module:
    try:
        model = function()
    except BaseException as error:
        raise _code_error(spec, "building the model", error) from None
    if not isinstance(model, nn.Module):
        raise BadInput(f"--model {spec} returned a {type(model).__name__}, not a torch.nn.Module", hint=_HINT)
    return model


def _code_error(spec: str, what: str, error: BaseException) -> BadInput:
    return BadInput(
        f"--model {spec}: {what} failed: {first_line(error)}",
        hint="the function runs on the meta device, where tensors have no values",
    )


def differentiable_output(value: Any) -> torch.Tensor:
    """Return the first tensor of a model's output that requires a gradient.

    Raises:
        BadInput: there is none.
    """
    held = vars(value) if hasattr(value, "__dict__") and not isinstance(value, torch.Tensor) else value
    for tensor in find_tensors(held):
        if tensor.requires_grad:
            return tensor
    raise BadInput(
        "--model: what the forward returns has no tensor that a loss could be made of",
        hint="return logits, or a loss, from forward(tokens)",
    )
