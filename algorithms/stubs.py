"""Stubs that let editors and type checkers see the generated section methods of configs.

``python -m algorithms.stubs`` writes a ``.pyi`` beside each module of :data:`MODULES`; ``--check`` only tells whether
they are up to date. A stub hides its module from type checkers, so it repeats all that the module offers: names,
annotated attributes and signatures are taken from the source, section methods from the settings. An attribute that a
method sets on ``self`` is repeated if it is annotated there or takes over an annotated parameter.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from algorithms.registry import ALGORITHMS
from algorithms.settings.fields import SettingsBase, is_section_method, settings_of

MODULES = ("algorithms.config", *(path.partition(":")[0] for path in ALGORITHMS.values() if isinstance(path, str)))
"""Modules that define config classes."""

WIDTH = 120
_OWN = ("catalog", "rlmodule", "algorithms", "catalog_rl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the stubs, or with ``--check`` name the stale ones; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m algorithms.stubs", description="Write the stubs of configs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a stub is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for name in MODULES:
        module = importlib.import_module(name)
        path = _source_path(module).with_suffix(".pyi")
        text = stub_of(module)
        if check and (not path.exists() or path.read_text() != text):
            stale.append(str(path))
        elif not check:
            path.write_text(text)
    if stale:
        print(f"Stale: {', '.join(stale)}. Run python -m algorithms.stubs.", file=sys.stderr)
    return 1 if stale else 0


def stub_of(module: ModuleType) -> str:
    """The text of a module's stub."""
    source = _Source.of(module)
    blocks = [(node, _Writer(source).statement(node)) for node in source.tree.body]
    kept = [(node, block) for node, block in blocks if block and not _is_private(node)]
    while True:  # private names that public ones use, and what those use
        used = _names(block for _, block in kept)
        more = [(node, block) for node, block in blocks if block and (node, block) not in kept and _bound(node) & used]
        if not more:
            break
        kept = [pair for pair in blocks if pair in kept or pair in more]
    body = [block for _, block in kept]
    imports = _imports(source, _names(body))
    head = f"# Written by `python -m algorithms.stubs` from {_source_path(module).name}; do not edit."
    return "\n".join([head, "", *imports, *_spaced(body)]) + "\n"


class _Source:
    """A module with its syntax tree and where each of its top-level names comes from."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        text = _source_path(module).read_bytes()
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.imported: dict[str, tuple[str, str, str]] = {}
        """Name → (module, name in it or '' for the module itself, name here)."""
        for node in _flattened(self.tree.body):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    here = alias.asname or alias.name
                    self.imported[here] = (node.module, alias.name, here)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    here = alias.asname or alias.name.partition(".")[0]
                    self.imported[here] = (alias.name, "", alias.asname or alias.name)
        self.defined = {name for node in self.tree.body for name in _bound(node)}

    @classmethod
    @functools.cache
    def of(cls, module: ModuleType) -> _Source:
        return cls(module)

    def segment(self, node: ast.stmt | ast.expr | ast.keyword) -> str:
        """The source of a node, on one line and with its own quotes."""
        last = node.end_lineno or node.lineno
        lines = self.lines[node.lineno - 1 : last]  # bytes, as the columns count them
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b" ".join(lines).decode().split())

    def annotation(self, node: ast.expr) -> str:
        """The source of a type, without the quotes that a stub does not need."""
        text = self.segment(node)
        for name in _forward_references(node):
            text = text.replace(f'"{name}"', name)
        return text

    def class_node(self, name: str) -> ast.ClassDef:
        return next(node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name)


class _Writer:
    """Renders the statements of one module for its stub."""

    def __init__(self, source: _Source) -> None:
        self.source = source

    def statement(self, node: ast.stmt) -> list[str]:
        """Lines of a top-level or class statement; none for what a stub does not need."""
        if isinstance(node, ast.ClassDef):
            return self._class(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._function(node)
        if isinstance(node, ast.AnnAssign):
            annotation = self.source.annotation(node.annotation)
            if annotation == "TypeAlias" and node.value is not None:
                return [f"{self.source.segment(node.target)}: TypeAlias = {self.source.segment(node.value)}"]
            return [f"{self.source.segment(node.target)}: {annotation}"]
        if isinstance(node, ast.Assign):
            return [self.source.segment(node)]
        return []

    def _class(self, node: ast.ClassDef) -> list[str]:
        bases = ", ".join(self.source.segment(base) for base in [*node.bases, *node.keywords])
        decorators = [f"@{self.source.segment(decorator)}" for decorator in node.decorator_list]
        config = vars(self.source.module).get(node.name)
        members: list[list[str]] = []
        if isinstance(config, type) and issubclass(config, SettingsBase):
            known = settings_of(config)
            members += [self._member(item, set(known)) for item in node.body]
            members += _section_methods(config)
        else:
            members += [self._member(item, set()) for item in node.body]
            members += self._attributes(node)
        body = [["    " + line if line else "" for line in member] for member in members if member]
        head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
        return [*decorators, head, *_spaced(body, within=True)] if body else [*decorators, f"{head} ..."]

    def _member(self, node: ast.stmt, known: set[str]) -> list[str]:
        """A class member; a setting shows that it has a default, and a mere new default of one shows nothing."""
        if isinstance(node, ast.AnnAssign) and self.source.segment(node.target) in known:
            return [f"{self.source.segment(node.target)}: {self.source.annotation(node.annotation)} = ..."]
        if isinstance(node, ast.Assign) and _bound(node) <= known:
            return []
        return self.statement(node)

    def _attributes(self, node: ast.ClassDef) -> list[list[str]]:
        """Attributes that methods set on ``self`` with a known type: annotated there, or an annotated parameter."""
        found: dict[str, str] = {}
        for method in node.body:
            if not isinstance(method, ast.FunctionDef):
                continue
            plain = [*method.args.posonlyargs, *method.args.args]
            this = plain[0].arg if plain else ""
            parameters = {arg.arg: arg.annotation for arg in [*plain, *method.args.kwonlyargs]}
            for item in ast.walk(method):
                targets = item.targets if isinstance(item, ast.Assign) else []
                if isinstance(item, ast.AnnAssign):
                    targets = [item.target]
                for target in targets:
                    if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != this:
                        continue
                    annotation = item.annotation if isinstance(item, ast.AnnAssign) else None
                    if isinstance(item, ast.Assign) and isinstance(item.value, ast.Name):
                        annotation = parameters.get(item.value.id)
                    if annotation is not None:
                        found.setdefault(target.attr, self.source.annotation(annotation))
        own = {name for item in node.body for name in _bound(item)}
        return [[f"{name}: {annotation}"] for name, annotation in found.items() if name not in own]

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
        decorators = [f"@{self.source.segment(decorator)}" for decorator in node.decorator_list]
        returns = f" -> {self.source.annotation(node.returns)}" if node.returns is not None else ""
        word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        return [*decorators, *_signature(f"{word} {node.name}", self._parameters(node.args), f"{returns}: ...")]

    def _parameters(self, args: ast.arguments) -> list[str]:
        def one(arg: ast.arg, default: ast.expr | None, stars: str = "") -> str:
            if arg.annotation is None:
                return f"{stars}{arg.arg}=..." if default is not None else f"{stars}{arg.arg}"
            text = f"{stars}{arg.arg}: {self.source.annotation(arg.annotation)}"
            return f"{text} = ..." if default is not None else text

        plain = [*args.posonlyargs, *args.args]
        defaults = [*([None] * (len(plain) - len(args.defaults))), *args.defaults]
        made = [one(arg, default) for arg, default in zip(plain, defaults, strict=True)]
        if args.posonlyargs:
            made.insert(len(args.posonlyargs), "/")
        if args.vararg is not None:
            made.append(one(args.vararg, None, "*"))
        elif args.kwonlyargs:
            made.append("*")
        made += [one(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        return made if args.kwarg is None else [*made, one(args.kwarg, None, "**")]


def _section_methods(config: type[SettingsBase]) -> Iterator[list[str]]:
    """The generated methods that stand in the class itself, with their texts."""
    known = settings_of(config)
    for section in dict.fromkeys(item.section for item in known.values()):
        method = vars(config).get(section)
        if not is_section_method(method):
            continue
        items = [item for item in known.values() if item.section == section]
        by_position = [f"{item.name}: {_annotation(config, item.name)} = ..." for item in items if item.positional]
        by_keyword = [f"{item.name}: {_annotation(config, item.name)} = ..." for item in items if not item.positional]
        parameters = ["self", *by_position, *(["*", *by_keyword] if by_keyword else [])]
        text = textwrap.indent(f'"""{inspect.getdoc(method)}\n"""', "    ").splitlines()
        yield [*_signature(f"def {section}", parameters, " -> Self:"), *text]


def _annotation(config: type[SettingsBase], name: str) -> str:
    owner, node = _owner(config, name)
    return owner.annotation(node)


def _owner(config: type[SettingsBase], name: str) -> tuple[_Source, ast.expr]:
    """The source of the nearest class that annotates a setting, and the annotation."""
    for base in config.__mro__:
        if not issubclass(base, SettingsBase):
            continue
        source = _Source.of(sys.modules[base.__module__])
        for node in source.class_node(base.__name__).body:
            if isinstance(node, ast.AnnAssign) and source.segment(node.target) == name:
                return source, node.annotation
    raise LookupError(f"no class of {config.__name__} annotates {name}")


def _imports(source: _Source, used: set[str]) -> list[str]:
    """Import statements for the names a stub uses: the module's own, then those that inherited settings need."""
    origins = {name: source.imported[name] for name in used & source.imported.keys()}
    if "Self" in used:
        origins["Self"] = ("typing_extensions", "Self", "Self")
    for thing in vars(source.module).values():
        if not (isinstance(thing, type) and issubclass(thing, SettingsBase) and thing.__name__ in source.defined):
            continue
        for field in fields(thing):  # type: ignore[arg-type]
            owner, node = _owner(thing, field.name)
            for name in _names([[owner.annotation(node)]]) - origins.keys() - source.defined:
                if name in owner.imported:
                    origins[name] = owner.imported[name]
                elif name in owner.defined:
                    origins[name] = (owner.module.__name__, name, name)
    return _import_lines(sorted(origins.values()))


def _import_lines(origins: Iterable[tuple[str, str, str]]) -> list[str]:
    groups: list[dict[str, list[str]]] = [{}, {}, {}]
    plain: list[list[str]] = [[], [], []]
    for module, name, here in origins:
        top = module.partition(".")[0]
        group = 2 if top in _OWN else 0 if top in sys.stdlib_module_names else 1
        if not name:
            plain[group].append(f"import {module}" + (f" as {here}" if here != module else ""))
        else:
            groups[group].setdefault(module, []).append(name if name == here else f"{name} as {here}")
    lines: list[str] = []
    for straight, members in zip(plain, groups, strict=True):
        block = sorted(straight)
        for module, names in sorted(members.items()):
            # As linters sort: constants, classes, the rest.
            ordered = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
            line = f"from {module} import {', '.join(ordered)}"
            wrapped = [f"from {module} import (", *(f"    {name}," for name in ordered), ")"]
            block += [line] if len(line) <= WIDTH else wrapped
        lines += [*block, ""] if block else []
    return lines


def _signature(head: str, parameters: Sequence[str], tail: str) -> list[str]:
    line = f"{head}({', '.join(parameters)}){tail}"
    if len(line) + 4 <= WIDTH:
        return [line]
    return [f"{head}(", *(f"    {parameter}," for parameter in parameters), f"){tail}"]


def _spaced(blocks: Iterable[list[str]], within: bool = False) -> list[str]:
    """Blocks one below the other, with an empty line around each class and after each function with a text."""
    lines: list[str] = []
    before_long = False
    for block in blocks:
        long = '"""' in block[-1] or (not within and any(line.startswith(("class ", "@")) for line in block))
        if lines and (before_long or (long and not within)):
            lines.append("")
        lines += block
        before_long = long
    return lines


def _flattened(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, with what stands in `if TYPE_CHECKING:` in its place."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from node.body
        else:
            yield node


def _bound(node: ast.stmt) -> set[str]:
    """Names that a class, function or assignment binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {item.id for target in targets for item in ast.walk(target) if isinstance(item, ast.Name)}


def _is_private(node: ast.stmt) -> bool:
    names = _bound(node)
    return all(name.startswith("_") and name != "__all__" for name in names)


def _names(blocks: Iterable[list[str]]) -> set[str]:
    """Names used in rendered blocks."""
    nodes = (node for block in blocks for node in ast.walk(ast.parse("\n".join(block))))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _forward_references(node: ast.AST) -> Iterator[str]:
    """Quoted types in an annotation; what a Literal holds is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif not (isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")):
        for child in ast.iter_child_nodes(node):
            yield from _forward_references(child)


def _source_path(module: ModuleType) -> Path:
    return Path(inspect.getsourcefile(module) or "")


if __name__ == "__main__":
    sys.exit(main())
