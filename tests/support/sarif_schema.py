"""SARIF held against the parts of the 2.1.0 schema that zprof writes, in words of our own.

Objects are closed: a name that the standard does not know is an error, as in its schema.
"""

import json
from typing import Any

import jsonschema

_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_TEXT = {"type": "string", "minLength": 1}


def _object(needed: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


_MESSAGE = _object(["text"], text=_TEXT, markdown=_TEXT)
_ARTIFACT_LOCATION = _object([], uri={"type": "string", "format": "uri-reference", "minLength": 1})
_LOCATION = _object(
    ["physicalLocation"],
    physicalLocation=_object(
        ["artifactLocation"],
        artifactLocation=_ARTIFACT_LOCATION,
        region=_object([], startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations={
        "type": "array",
        "uniqueItems": True,
        "items": _object([], name=_TEXT, fullyQualifiedName=_TEXT, kind=_TEXT),
    },
)
_RULE = _object(
    ["id"],
    id=_TEXT,
    name=_TEXT,
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    help=_MESSAGE,
    defaultConfiguration=_object([], level=_LEVEL),
)
_RESULT = _object(
    ["message", "ruleId", "locations"],
    ruleId=_TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=_LEVEL,
    message=_MESSAGE,
    locations={"type": "array", "minItems": 1, "items": _LOCATION},
    partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
    properties={"type": "object"},
)
_RUN = _object(
    ["tool", "results"],
    tool=_object(
        ["driver"],
        driver=_object(
            ["name"],
            name=_TEXT,
            version=_TEXT,
            rules={"type": "array", "uniqueItems": True, "items": _RULE},
        ),
    ),
    invocations={
        "type": "array",
        "items": _object(
            ["executionSuccessful"],
            executionSuccessful={"type": "boolean"},
            exitCode={"type": "integer"},
            toolExecutionNotifications={
                "type": "array",
                "items": _object(["message"], message=_MESSAGE, level=_LEVEL),
            },
        ),
    },
    artifacts={
        "type": "array",
        "uniqueItems": True,
        "items": _object(
            [],
            location=_ARTIFACT_LOCATION,
            description=_MESSAGE,
            roles={"type": "array", "items": {"enum": ["analysisTarget"]}},
        ),
    },
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": _RESULT},
)
_SCHEMA = _object(
    ["version", "runs"],
    **{
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {"type": "array", "minItems": 1, "items": _RUN},
    },
)


def parsed(document: str) -> dict[str, Any]:
    """The one run of a document that keeps the schema; each result points to the rule that it names."""
    tree = json.loads(document)
    jsonschema.validate(tree, _SCHEMA)
    (run,) = tree["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    return run  # type: ignore[no-any-return]
