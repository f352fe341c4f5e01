"""A small reader of LIBERO-style BDDL task files: the official ones and ours.

    (define (problem NAME) (:domain robosuite) (:language words ...)
      (:regions (NAME (:target FIXTURE) (:ranges ((x0 y0 x1 y1) ...)) (:yaw_rotation ((a b) ...))) ...)
      (:fixtures a - type ...) (:objects a b - type ...) (:obj_of_interest a ...)
      (:init (On a REGION) ...) (:goal (And (On a b) ...)))

Elsewhere in a file, a region is called `<target>_<name>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from embodied_rl.errors import UserError

_TOKEN = re.compile(r"\(|\)|[^\s();]+|;[^\n]*")


@dataclass(frozen=True, slots=True)
class Region:
    """A named area of `target`: `ranges` of x0, y0, x1, y1 in metres and `yaw` ranges in radians; both may be empty."""

    name: str
    target: str
    ranges: tuple[tuple[float, float, float, float], ...] = ()
    yaw: tuple[tuple[float, float], ...] = ()

    @property
    def full_name(self) -> str:
        """The name by which :init and :goal refer to it."""
        return f"{self.target}_{self.name}"


@dataclass(frozen=True, slots=True)
class Fact:
    """A predicate, in lower case, and its arguments: `On a b` is Fact('on', ('a', 'b'))."""

    predicate: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A task file. `objects` and `fixtures` map instance names to types, in the order of the file."""

    name: str
    domain: str
    language: str
    regions: dict[str, Region]
    fixtures: dict[str, str]
    objects: dict[str, str]
    obj_of_interest: tuple[str, ...]
    init: tuple[Fact, ...]
    goal: tuple[Fact, ...]


@dataclass(slots=True)
class _Node:
    """An atom (`word`) or a list (`items`), and the line where it starts."""

    line: int
    word: str | None
    items: list[_Node]


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.root = self._tree(text)

    def error(self, line: int, message: str) -> UserError:
        return UserError(f"{self.source}:{line}: {message}")

    def _tree(self, text: str) -> _Node:
        top = _Node(1, None, [])
        stack = [top]
        line, last = 1, 0
        for match in _TOKEN.finditer(text):
            line += text.count("\n", last, match.start())
            last = match.start()
            token = match.group()
            if token.startswith(";"):
                continue
            if token == "(":
                node = _Node(line, None, [])
                stack[-1].items.append(node)
                stack.append(node)
            elif token == ")":
                if len(stack) == 1:
                    raise self.error(line, "closing parenthesis without an opening one")
                stack.pop()
            else:
                stack[-1].items.append(_Node(line, token, []))
        if len(stack) > 1:
            raise self.error(stack[-1].line, "this parenthesis is never closed")
        if len(top.items) != 1 or not top.items[0].items or top.items[0].items[0].word != "define":
            raise self.error(top.line, "expected one (define (problem ...) ...)")
        return top.items[0]

    def words(self, nodes: list[_Node], line: int) -> list[str]:
        for node in nodes:
            if node.word is None:
                raise self.error(node.line, "expected a word, found a list")
        if not nodes:
            raise self.error(line, "expected at least one word")
        return [node.word for node in nodes if node.word is not None]

    def sections(self) -> dict[str, _Node]:
        found: dict[str, _Node] = {}
        for node in self.root.items[1:]:
            if not node.items or node.items[0].word is None:
                raise self.error(node.line, "expected a section such as (:objects ...)")
            key = node.items[0].word.lower()
            if key in found:
                raise self.error(node.line, f"section {key} appears twice")
            found[key] = node
        return found

    def typed(self, node: _Node) -> dict[str, str]:
        """`a b - type c - type`."""
        words = self.words(node.items[1:], node.line) if len(node.items) > 1 else []
        out: dict[str, str] = {}
        pending: list[str] = []
        i = 0
        while i < len(words):
            if words[i] != "-":
                pending.append(words[i])
                i += 1
                continue
            if not pending or i + 1 == len(words):
                raise self.error(node.items[i + 1].line, "expected `name - type`")
            for name in pending:
                if name in out:
                    raise self.error(node.items[i + 1].line, f"'{name}' is declared twice")
                out[name] = words[i + 1]
            pending, i = [], i + 2
        if pending:
            raise self.error(node.items[-1].line, f"'{pending[-1]}' has no type; write `{pending[-1]} - type`")
        return out

    def rows(self, node: _Node, width: int) -> list[tuple[float, ...]]:
        """`(:key ((a b ...) (a b ...)))`, each of `width` numbers."""
        if len(node.items) != 2:
            raise self.error(node.line, f"expected one list of rows of {width} numbers")
        out = []
        for row in node.items[1].items:
            try:
                values = tuple(float(word) for word in self.words(row.items, row.line))
            except ValueError:
                raise self.error(row.line, f"expected {width} numbers") from None
            if len(values) != width:
                raise self.error(row.line, f"expected {width} numbers, found {len(values)}")
            out.append(values)
        return out

    def region(self, node: _Node) -> Region:
        if not node.items or node.items[0].word is None:
            raise self.error(node.line, "expected (region_name (:target ...) ...)")
        name, target = node.items[0].word, None
        ranges: tuple[tuple[float, float, float, float], ...] = ()
        yaw: tuple[tuple[float, float], ...] = ()
        for part in node.items[1:]:
            key = part.items[0].word if part.items else None
            if key == ":target":
                target = self.words(part.items[1:], part.line)[0]
            elif key == ":ranges":
                ranges = tuple((r[0], r[1], r[2], r[3]) for r in self.rows(part, 4))
            elif key == ":yaw_rotation":
                yaw = tuple((r[0], r[1]) for r in self.rows(part, 2))
            elif key != ":rgba":  # a colour for LIBERO's debug view
                raise self.error(part.line, f"region '{name}': unknown part {key or '(list)'}")
        if target is None:
            raise self.error(node.line, f"region '{name}' has no (:target ...)")
        return Region(name, target, ranges, yaw)

    def facts(self, nodes: list[_Node]) -> tuple[Fact, ...]:
        out: list[Fact] = []
        for node in nodes:
            if node.word is not None or not node.items or node.items[0].word is None:
                raise self.error(node.line, "expected a predicate such as (On a b)")
            if node.items[0].word.lower() == "and":
                out.extend(self.facts(node.items[1:]))
                continue
            words = self.words(node.items, node.line)
            if len(words) < 2:
                raise self.error(node.line, f"predicate {words[0]} has no arguments")
            out.append(Fact(words[0].lower(), tuple(words[1:])))
        return tuple(out)


_REQUIRED = ("problem", ":language", ":objects", ":goal")
_KNOWN = {*_REQUIRED, ":domain", ":regions", ":fixtures", ":obj_of_interest", ":init", ":requirements"}


def parse_bddl(text: str, source: str = "<text>") -> Problem:
    """Parse a task file's text; `source` names it in errors. UserError gives file and line of what is wrong."""
    reader = _Reader(text, source)
    found = reader.sections()
    for key in _REQUIRED:
        if key not in found:
            raise reader.error(reader.root.line, f"section ({key} ...) is missing")
    for key, node in found.items():
        if key not in _KNOWN:
            raise reader.error(node.line, f"unknown section ({key} ...)")

    def body(key: str) -> list[_Node]:
        return found[key].items[1:] if key in found else []

    regions: dict[str, Region] = {}
    for node in body(":regions"):
        region = reader.region(node)
        if region.full_name in regions:
            raise reader.error(node.line, f"region '{region.full_name}' is declared twice")
        regions[region.full_name] = region
    language = found[":language"]
    problem = Problem(
        name=" ".join(reader.words(body("problem"), found["problem"].line)),
        domain=" ".join(reader.words(body(":domain"), found[":domain"].line)) if ":domain" in found else "",
        language=" ".join(reader.words(language.items[1:], language.line)),
        regions=regions,
        fixtures=reader.typed(found[":fixtures"]) if ":fixtures" in found else {},
        objects=reader.typed(found[":objects"]),
        obj_of_interest=tuple(reader.words(body(":obj_of_interest"), 1)) if body(":obj_of_interest") else (),
        init=reader.facts(body(":init")),
        goal=reader.facts(body(":goal")),
    )
    _check_names(reader, problem, found)
    return problem


def _check_names(reader: _Reader, problem: Problem, found: dict[str, _Node]) -> None:
    """Every argument of :init and :goal is declared somewhere above."""
    known = {*problem.objects, *problem.fixtures, *problem.regions}
    if not problem.goal:
        raise reader.error(found[":goal"].line, "the goal is empty")
    for key, facts in ((":init", problem.init), (":goal", problem.goal)):
        for fact in facts:
            for arg in fact.args:
                if arg not in known:
                    raise reader.error(found[key].line, f"{key} uses '{arg}', which is no object, fixture or region")
