"""Options that name the model of a plan: its size, its shape, a preset, or a function that builds it."""

import argparse
from dataclasses import replace

from zprof.cli.options.numbers import count, count_or_none
from zprof.cli.options.planning_units import parameters
from zprof.model.errors import BadInput
from zprof.model.planning.job import Job, Shape


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """The four ways to say which model."""
    group = parser.add_argument_group("the model", "said in one of these ways")
    group.add_argument("--params", metavar="N", type=parameters, help="elements, as 7.5e9, 7.5B or 1T")
    group.add_argument("--preset", metavar="NAME", help="a model by its name, as 7.5b, 60b or 1t")
    group.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="a function that makes it: counted, not run"
    )
    group.add_argument("--layers", metavar="N", type=count, help="blocks of a transformer, with --hidden")
    group.add_argument("--hidden", metavar="N", type=count, help="its width")
    group.add_argument("--heads", metavar="N", type=count, help="attention heads, with --layers")
    group.add_argument(
        "--vocabulary", metavar="N", type=count_or_none, help="words, with --layers (0: no embedding)"
    )
    group.add_argument(
        "--context", metavar="N", type=count, help="positions, with --layers (the sequence's length)"
    )
    group.add_argument("--untied", action="store_true", help="the head has a table of its own, with --layers")


def stated_model(arguments: argparse.Namespace) -> tuple[str, int, Shape | None]:
    """Name, parameters and shape, of exactly one way to say them; what ``--model`` builds is not counted yet.

    Raises:
        BadInput: no model was named, or two, or there is no such preset.
    """
    ways = {
        "--params": arguments.params,
        "--layers with --hidden": arguments.layers or arguments.hidden,
        "--preset": arguments.preset,
        "--model": arguments.model,
    }
    said = [way for way, value in ways.items() if value is not None]
    if len(said) != 1:
        what = f"the model is said twice: {' and '.join(said)}" if said else "no model is named"
        raise BadInput(what, hint=f"one of: {', '.join(ways)}")
    _refuse_unused(arguments, said[0])
    if arguments.preset is not None:
        return _preset(arguments.preset, arguments.sequence)
    if arguments.params is not None:
        return "", arguments.params, None
    return ("", 1, None) if arguments.model else _shaped(arguments)


def counted(spec: str, job: Job) -> Job:
    """The job with what the function builds.

    Raises:
        BadInput: it builds no model.
    """
    from zprof.integrations.planning.count import count_model

    return count_model(spec, job)


def _refuse_unused(arguments: argparse.Namespace, way: str) -> None:
    """Parts of a shape say nothing about a model that was named in another way."""
    if arguments.layers is not None:
        return
    parts = {
        "--heads": arguments.heads,
        "--vocabulary": arguments.vocabulary,
        "--context": arguments.context,
        "--untied": arguments.untied or None,
    }
    stray = [option for option, value in parts.items() if value is not None]
    if stray:
        raise BadInput(
            f"{' and '.join(stray)} would change nothing: the model is said by {way}",
            hint="leave it out, or say the shape instead: --layers and --hidden",
        )


def _preset(name: str, sequence: int | None) -> tuple[str, int, Shape | None]:
    """A context that is shorter than a sample grows to it, and its name says so."""
    from zprof.planner.models.presets import parameters_of, preset

    found = preset(name)
    shape = found.shape
    if sequence is None or sequence <= shape.context:
        return found.name, found.parameters, shape
    grown = replace(shape, context=sequence)
    return f"{found.name} with context {sequence:,}", parameters_of(grown), grown


def _shaped(arguments: argparse.Namespace) -> tuple[str, int, Shape | None]:
    from zprof.planner.models.presets import parameters_of

    if arguments.layers is None or arguments.hidden is None:
        raise BadInput("a shape needs --layers and --hidden", hint="zprof plan --help shows how")
    if arguments.context is not None and (arguments.sequence or 0) > arguments.context:
        raise BadInput(
            f"--sequence {arguments.sequence} is longer than --context {arguments.context}",
            hint="raise --context, or leave it out: it is the sequence's length then",
        )
    shape = Shape(
        layers=arguments.layers,
        hidden=arguments.hidden,
        vocabulary=arguments.vocabulary or 0,
        context=arguments.context or arguments.sequence or 0,
        heads=arguments.heads,
        tied=not arguments.untied,
    )
    return "", parameters_of(shape), shape
