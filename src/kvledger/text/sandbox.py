"""The Jinja environment for chat templates: sandboxed, bounded, and keeping track of where text came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvledger.text.traced import TEMPLATE, Traced, concat
from kvledger.text.work import spend

# Everything here does work in proportion to its arguments; what makes much out of little (`center`, `format`,
# `indent`, `round`, ...) and what chat templates never use is left out.
_FILTERS = """
    abs capitalize count d default dictsort first float int items last length list lower map max min reject rejectattr
    reverse select selectattr sort title trim unique upper
"""
_TEXT_METHODS = """
    capitalize count endswith find format index isalnum isalpha isdigit islower isspace isupper join lower lstrip
    partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith strip title
    upper
"""
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS.split()),
    dict: frozenset(("get", "items", "keys", "values")),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index")),
}
_MAX_INT = 2**63


class RefusedError(Exception):
    """The template called `raise_exception`."""


class _Code(CodeGenerator):
    """Compiles every string that the template itself holds to a traced one, and folds nothing at compile time."""

    def _literal(self, text: str) -> str:
        self.environment.literals[text] = Traced(text, TEMPLATE)  # type: ignore[attr-defined]
        return f"environment.literals[{text!r}]"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(self._literal(node.value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(self._literal(node.data))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._wrapped("environment.concat(map(environment.text, (", node.nodes, ")))", frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._wrapped("environment.weigh([", node.items, "])", frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._wrapped("environment.weigh((", node.items, "))", frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.weigh(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.iter = nodes.Call(nodes.EnvironmentAttribute("steps"), [node.iter], [], None, None)
        super().visit_For(node, frame)

    def _wrapped(self, before: str, items: Iterable[nodes.Node], after: str, frame: Frame) -> None:
        self.write(before)
        for item in items:
            self.visit(item, frame)
            self.write(", ")
        self.write(after)

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> str:
        if isinstance(node, nodes.TemplateData):
            return node.data
        raise nodes.Impossible

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(group))


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here its contents are simply rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs one chat template.

    All text that comes out is `Traced`. Whatever would let a small template do a great deal spends from the budget of
    `work.bounded` or is refused.
    """

    code_generator_class = _Code
    concat = staticmethod(concat)
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, strftime: Callable[[str], str]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self.text,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        self.literals: dict[str, Traced] = {}
        self.filters = {name: self.filters[name] for name in _FILTERS.split()}
        self.filters |= {"join": self._join, "replace": self._replace, "string": self.text, "tojson": self._to_json}
        self.filters["safe"] = self.text
        self.globals = {
            "range": self.globals["range"],
            "namespace": self.globals["namespace"],
            "dict": dict,
            "raise_exception": _refuse,
            "strftime_now": strftime,
        }

    def text(self, value: Any) -> Traced:
        """What Jinja prints for a value, with its origin."""
        if isinstance(value, Traced):
            return value
        if isinstance(value, str):
            return Traced(value)
        if isinstance(value, list | tuple | dict):
            origin = _origin(value)
            return Traced(str(value), origin)
        _check_plain(value)
        return Traced(str(value), TEMPLATE)  # a number cannot name a special token, nor can "None"

    def weigh(self, value: Any) -> Any:
        """Spend in proportion to all that `value` holds, so that nesting cannot double it for ever; return it."""
        for _ in _leaves(value):
            pass
        return value

    def steps(self, items: Iterable[Any]) -> Iterator[Any]:
        """The iterable of every loop."""
        for item in items:
            spend()
            yield item

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.weigh((*args, *kwargs.values()) if obj != self.steps else ())
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        spend()
        if operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not supported")
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, list | tuple) and isinstance(times, int):
                    spend(len(many) * max(times, 0))
                elif isinstance(many, str) and isinstance(times, int):
                    spend(chars=len(many) * max(times, 0))
        if operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
            spend(len(left) + len(right))
        if operator == "**" and not (abs(left) <= _MAX_INT and abs(right) <= 64):
            raise SecurityError("a power is too large")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) > _MAX_INT:
            raise SecurityError("a number is too large")
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        return super().getattr(_traced(obj), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(_traced(obj), argument)

    def wrap_str_format(self, value: Any) -> None:
        """Leave `format` as it is: that of `Traced` is harmless, and `is_safe_attribute` refuses every other."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    def _join(self, items: Iterable[Any], d: str = "", attribute: str | None = None) -> Traced:
        if attribute is not None:
            items = (self.getattr(item, attribute) for item in items)
        return Traced(d, _origin(d)).join([self.text(item) for item in self.steps(items)])

    def _replace(self, text: Any, old: Any, new: Any, count: int = -1) -> Traced:
        return self.text(text).replace(self.text(old), self.text(new), count)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> Traced:
        if isinstance(indent, int) and indent > 16:
            raise SecurityError("the indentation of tojson is too large")
        origin = _origin(value)
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return Traced(text, origin)


def _traced(value: Any) -> Any:
    """A plain string as a traced one, so that its methods count what they do."""
    return Traced(value) if isinstance(value, str) and not isinstance(value, Traced) else value


def _leaves(value: Any) -> Iterator[Any]:
    """Yield all that is inside lists, tuples and dictionaries, keys included, spending as it goes."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
        else:
            yield item
        spend(chars=len(item) if isinstance(item, str) else 0)


def _origin(value: Any) -> str | None:
    """The one origin of all text inside `value`, or None."""
    origins: set[str | None] = set()
    for leaf in _leaves(value):
        if isinstance(leaf, str):
            origins.add(leaf.origin if isinstance(leaf, Traced) else None)
        else:
            _check_plain(leaf)
    return origins.pop() if len(origins) == 1 else None


def _check_plain(value: Any) -> None:
    if value is not None and not isinstance(value, int | float | Undefined):
        raise TemplateRuntimeError(f"a {type(value).__name__} cannot be written as text")


def _refuse(message: str) -> None:
    raise RefusedError(message)
