"""What a renderer is: a function from a document to text; it reads leaves and computes nothing."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Document = TypeVar("Document")
_Rendered = TypeVar("_Rendered", contravariant=True)


class Render(Protocol[_Rendered]):
    """A document in (a report, a plan, a prediction), the text of one format out."""

    def __call__(self, document: _Rendered, /) -> str:
        """The whole document, with a line break at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[Document]):
    """A format by name, and the file suffixes that mean it."""

    name: str
    suffixes: tuple[str, ...]
    render: Render[Document]
