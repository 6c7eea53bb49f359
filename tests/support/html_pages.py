"""HTML as tests look at it: elements with their attributes, text, and what stands outside of our control."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "input", "br", "rect", "line", "path"})
#: Elements whose text is not shown.
_SILENT = frozenset({"script", "style", "title"})


@dataclass
class Element:
    """A start tag, and the text directly and indirectly in it."""

    tag: str
    attributes: dict[str, str]
    path: tuple[str, ...]
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


class Parsed(HTMLParser):
    """A page read as a browser would read its tags; ``problems`` are tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.problems: list[str] = []
        self.comments: list[str] = []
        self.shown: list[str] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        self.problems += [f"never closed: {element.tag}" for element in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.problems.append(f"an attribute twice: {tag} {names}")
        path = tuple(element.tag for element in self._open)
        element = Element(tag=tag, attributes={name: value or "" for name, value in attrs}, path=path)
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1].tag != tag:
            self.problems.append(f"closed but not open: {tag} in {[e.tag for e in self._open]}")
            return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.texts.append(data)
        if not any(element.tag in _SILENT for element in self._open):
            self.shown.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_decl(self, decl: str) -> None:
        if decl != "DOCTYPE html":
            self.problems.append(f"declaration {decl}")

    def unknown_decl(self, data: str) -> None:
        self.problems.append(f"declaration {data}")

    @property
    def text(self) -> str:
        """What a reader sees, spaces made one."""
        return " ".join(" ".join(self.shown).split())

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]


_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_SCRIPT = re.compile(r"<script>.*?</script>", re.DOTALL)
_EXPLANATION = re.compile(r'(<details class="explanation">).*?(</details>)', re.DOTALL)
_HASH = re.compile(r"sha256-[A-Za-z0-9+/=]+")


def without_explanations(page: str) -> str:
    """The page without the pages of findings, which are about steps in general, and change on their own."""
    return _EXPLANATION.sub(r"\1\2", page)


def without_assets(page: str) -> str:
    """The page without style, script, their hashes, and the pages of findings."""
    page = without_explanations(page)
    page = _STYLE.sub("<style>(style.css)</style>", page)
    page = _SCRIPT.sub("<script>(script.js)</script>", page)
    return _HASH.sub("(hash)", page)
