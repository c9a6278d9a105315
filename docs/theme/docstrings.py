"""How docstrings become pages: roles into links, literal blocks into fenced ones, and the way to the source.

The docstrings are Google style with a little reStructuredText: ``:meth:`sample``` names something of ours, and a line
that ends in ``::`` announces an indented block. A role that names nothing is a warning; a strict build fails with it.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from griffe import (
    Alias,
    AliasResolutionError,
    Attribute,
    Class,
    Docstring,
    Extension,
    Function,
    GriffeLoader,
    Module,
    Parameter,
    ParameterKind,
    Parameters,
)
from mkdocs.plugins import get_plugin_logger

ROOT = Path(__file__).parents[2]
SOURCE = "../source/{path}.md#L{line}"
"""The page of a file, seen from one in docs/reference/."""

Documented = Module | Class | Function | Attribute
_ROLE = re.compile(r":(class|meth|func|attr|data|mod):`([\w.]+)`")
_BLOCK = re.compile(r"^( *)(.*)::\n((?:[ ]*\n)*)((?:\1 +.*\n|[ ]*\n)+)", re.M)
_OVERRIDES = re.compile(r"^(Override points.*):\n((?: {4}.+\n)+)", re.M)
_ITEMS = re.compile(r"^( *)(?!- )(\S.*)\n(?=\1- )", re.M)
_SEVERAL = re.compile(r"^ {4}((?:[a-z_]\w*, )+[a-z_]\w*):((?:.*\n)(?: {8}.*\n)*)", re.M)
_log = get_plugin_logger("docstrings")


class Docstrings(Extension):
    """Rewrites the docstrings of a package once it is loaded; those it imports from have to be loaded before."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: object) -> None:
        """See the class."""
        for thing in list(_below(pkg)):
            if isinstance(thing, Attribute) and str(thing.value).startswith("Section("):
                thing.parent.set_member(thing.name, section_method(thing))
            elif thing.docstring is not None:
                thing.docstring.value = self._rewritten(thing, thing.docstring, loader)

    def _rewritten(self, thing: Documented, docstring: Docstring, loader: GriffeLoader) -> str:
        text = listed(fenced(docstring.value))
        text = _ROLE.sub(lambda match: self._link(thing, match[1], match[2], loader), text)
        if isinstance(thing, Class | Function) and thing.parent is not None and thing.parent.is_module:
            path = Path(str(thing.filepath)).relative_to(ROOT).as_posix()
            link = f"[{path}, line {thing.lineno}]({SOURCE.format(path=path, line=thing.lineno)})"
            text += f"\n\n{link}{{ .doc-source }}"
        return text

    def _link(self, thing: Documented, role: str, name: str, loader: GriffeLoader) -> str:
        path = resolved(thing, name, loader)
        if path is None:
            _log.warning(f"{thing.path}: there is no {name}, which :{role}: names")
        shown = f"{name}()" if role in ("meth", "func") else name
        # optional: what is named need not have a place on a page
        return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'


def section_method(section: Attribute) -> Function:
    """``training = Section(...)`` in a config, as the method that it is: ``training(*, gamma: float = 0.99, ...)``."""
    config = getattr(importlib.import_module(section.module.path), section.parent.name)
    method = getattr(config, section.name)
    parameters = Parameters(
        *(
            Parameter(each.name, kind=ParameterKind[each.kind.name.lower()], **_annotation(each), **_default(each))
            for each in inspect.signature(method).parameters.values()
        )
    )
    text = re.sub(r", default .*?\): ", "): ", inspect.getdoc(method) or "")  # the signature has the defaults
    docstring = Docstring(text, lineno=section.lineno, parser="google")
    return Function(
        section.name,
        parameters=parameters,
        returns="Self",
        lineno=section.lineno,
        endlineno=section.endlineno,
        docstring=docstring,
        parent=section.parent,
    )


def _annotation(parameter: inspect.Parameter) -> dict[str, str]:
    if parameter.annotation is parameter.empty:
        return {}
    return {"annotation": re.sub(r"\b(?:[a-z_]+\.)+(?=\w)", "", inspect.formatannotation(parameter.annotation))}


def _default(parameter: inspect.Parameter) -> dict[str, str]:
    if parameter.default is parameter.empty:
        return {}
    return {"default": getattr(parameter.default, "__name__", None) or repr(parameter.default)}


def resolved(thing: Documented, name: str, loader: GriffeLoader) -> str | None:
    """The full path of what ``name`` means in the docstring of ``thing``; None where it means nothing.

    Scopes are asked from the inside out. Then come full paths, and last what another module defines at its top.
    """
    first, *rest = name.split(".")
    scope: Documented | None = thing
    scopes: list[Documented] = []
    while scope is not None:
        scopes.append(scope)
        scope = scope.parent
    packages = [module for module in loader.modules_collection.members.values() if isinstance(module, Module)]
    starts = [found for scope in scopes if (found := member(scope, first)) is not None]
    starts += [package for package in packages if package.name == first]
    starts += [other for package in packages for other in _below(package) if other.name == first and _at_the_top(other)]
    for found in starts:
        for part in rest:
            found = member(found, part) if found is not None else None
        if found is not None:
            return found.canonical_path
    # several names at once, as in A, B = 1, 2, are not seen by what read the module
    assigned = re.compile(rf"^(?:\w+, )*{name}(?:, \w+)* = ", re.M)
    return f"{thing.module.path}.{name}" if assigned.search("\n".join(thing.module.lines)) else None


def _at_the_top(thing: Documented) -> bool:
    return thing.parent is not None and thing.parent.is_module


def member(scope: Documented, name: str) -> Documented | None:
    """What ``scope`` defines, imports or inherits under ``name``."""
    if not isinstance(scope, Class | Module):
        return None
    found = scope.all_members.get(name)
    try:
        found = found.final_target if isinstance(found, Alias) else found
    except AliasResolutionError:  # it is imported from elsewhere
        return None
    return found if isinstance(found, Documented) else None


def fenced(text: str) -> str:
    """``text`` with its literal blocks in fences, as Python where they are Python."""

    def fence(match: re.Match[str]) -> str:
        indent, line, block = match[1], match[2], textwrap.dedent(match[4]).strip("\n")
        try:
            ast.parse(block)
            language = "python"
        except SyntaxError:
            language = "text"
        announced = f"{indent}{line}:\n\n" if line else ""
        code = f"```{language}\n{block}\n```"
        return f"{announced}{textwrap.indent(code, indent)}\n\n"

    return _BLOCK.sub(fence, f"{text}\n").rstrip("\n")


def listed(text: str) -> str:
    """``text`` with lists as Markdown needs them, and what is said of several names at once said of each."""

    def points(match: re.Match[str]) -> str:
        items = re.sub(r"^ {4}(?=``)", "- ", match[2], flags=re.M)
        return f"**{match[1]}:**\n\n{items}"

    def each(match: re.Match[str]) -> str:
        return "".join(f"    {name}:{match[2]}" for name in match[1].split(", "))

    text = _ITEMS.sub(r"\1\2\n\n", _OVERRIDES.sub(points, f"{text}\n"))
    return _SEVERAL.sub(each, text).rstrip("\n")


def _below(module: Module) -> Iterator[Documented]:
    yield module
    for thing in module.members.values():
        if isinstance(thing, Module):
            yield from _below(thing)
        elif isinstance(thing, Class):
            yield thing
            yield from (part for part in thing.members.values() if isinstance(part, Function | Attribute))
        elif isinstance(thing, Function | Attribute):
            yield thing
