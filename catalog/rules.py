"""Decision tables over spaces, which make up the Catalog's decision tree.

A table is an ordered list of rules. The newest rule that applies to a space wins, so rules of users take precedence
over built-in ones. To support a new space or net, add a file that registers a rule; this file stays as it is. A rule
for a nested space gets a :class:`Node` and decides the parts of the space through it. The nodes record the decisions.

Each rule stands next to what it chooses, in ``catalog/encoders/``, ``catalog/distributions/`` or ``catalog/actions/``.
:class:`~catalog.catalog.Catalog` asks the tables. ``rlmodule list`` prints all rules in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gymnasium import Space

from catalog.model_config import DefaultModelConfig
from catalog_rl import closest

T = TypeVar("T")
When = Callable[[Any, DefaultModelConfig], bool]
Build = Callable[[Any, DefaultModelConfig, "Node[T]"], T]


@dataclass(frozen=True)
class Rule(Generic[T]):
    """One branch of a decision tree.

    Attributes:
        name: One line for ``Catalog.explain``, such as "Box of rank 1 → MLP".
        space_type: Class of the spaces that the rule may decide.
        when: Additional condition on ``(space, model_config)``; None for no condition.
        settings: Names of the model settings that shape a net of the result, although ``build`` does not read them.
        build: Function of ``(space, model_config, node)`` that returns the result.
    """

    name: str
    space_type: type[Space]
    when: When | None
    settings: tuple[str, ...]
    build: Build[T]


@dataclass
class Node(Generic[T]):
    """One node of a decision tree: a space, which is the whole space or a part of it, and the decision about it.

    Attributes:
        space: The space to decide about.
        model_config: The settings for this space, with its ``leaf_overrides`` and what a hook changed in them.
        root: Name of the whole space in error messages, such as ``"observation_space"``.
        decide: Function that decides a node and returns the result. It asks the hook of a catalog or only a table.
        keys: Path from the whole space to this space: keys of Dicts and indices of Tuples.
        rule: The rule that applied; None if a hook decided without the table.
        passed: Rules for the class of the space that were asked before ``rule`` and did not apply.
        reads: Names of the model settings that ``rule`` read, and its ``settings``.
        children: The nodes of the parts of this space.
        result: The decision; None before :meth:`run`.
    """

    space: Space
    model_config: DefaultModelConfig
    root: str
    decide: Callable[[Node[T]], T]
    keys: tuple[str | int, ...] = ()
    rule: Rule[T] | None = None
    passed: list[Rule[T]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    children: list[Node[T]] = field(default_factory=list)
    result: T | None = None

    @property
    def path(self) -> str:
        """Path to this space for error messages, such as ``observation_space['camera'][0]``."""
        return self.root + "".join(f"[{key!r}]" for key in self.keys)

    @property
    def name(self) -> str:
        """Path to this space as settings write it, such as ``camera.0``; empty at the root."""
        return ".".join(str(key) for key in self.keys)

    def run(self) -> T:
        """Decide this node and return the result."""
        self.result = self.decide(self)
        return self.result

    def child(self, key: str | int, space: Space) -> T:
        """Decide the part ``space`` at ``key``, and return the result. The part has the settings of this node and the
        ``leaf_overrides`` of its path."""
        keys = (*self.keys, key)
        node = Node(space, self.model_config, self.root, self.decide, keys)
        node.model_config = self.model_config.at_leaf(node.name)
        self.children.append(node)
        return node.run()

    def walk(self) -> Iterator[Node[T]]:
        """Yield this node and all nodes below it, each parent before its children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def check_paths(self, setting: str, given: Iterable[str]) -> None:
        """Check that each path in ``given``, which the model setting ``setting`` has, leads to a part of this space.

        Raises:
            ValueError: If a path leads to none; names the closest.
        """
        known = [node.name for node in self.walk() if node.keys]
        for path in given:
            if path not in known:
                remedy = (
                    f"Use one of {', '.join(known)}.{closest(path, known)}"
                    if known
                    else "No part is decided on its own here: the space has none, or one net reads the whole of it "
                    "(flatten_observations, custom_model, a hook)."
                )
                raise ValueError(
                    f"model_config.{setting}[{path!r}]: expected a path into {self.root}, got one "
                    f"that matches nothing in {self.space}. {remedy}"
                )


def of_rank(*ranks: int, matrix: str | None = None) -> When:
    """Return the condition of a rule for Boxes: the Box has one of these ``ranks`` (numbers of dims) and, unless
    ``matrix`` is None, the setting ``matrix_observations`` equals ``matrix``."""

    def applies(space: Space, model_config: DefaultModelConfig) -> bool:
        if len(space.shape or ()) not in ranks:
            return False
        return matrix is None or model_config.matrix_observations == matrix

    return applies


class RuleTable(Generic[T]):
    """Ordered rules that choose a ``T`` for a space and a model config.

    Args:
        what: Name of what the table decides, for error messages, such as "encoder" or "action distribution".
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._rules: list[Rule[T]] = []

    def register(
        self, space_type: type[Space], *, name: str, when: When | None = None, settings: tuple[str, ...] = ()
    ) -> Callable[[Build[T]], Build[T]]:
        """Return a decorator that registers a function ``build(space, model_config, node)``, which returns a ``T``, as
        a rule. The table asks this rule before all rules that were registered earlier. ``explain()`` shows the settings
        that ``when`` and ``build`` read from their argument ``model_config``.

        Args:
            space_type: Class of the spaces that the rule may decide.
            name: One line for ``explain()``, such as "Box of rank 1 → MLP".
            when: Additional condition on ``(space, model_config)``; None for no condition.
            settings: Names of further model settings to show, which ``build`` does not read but a net of its result
                follows.

        Raises:
            TypeError: If ``space_type`` is not a class of spaces.
        """
        if not (isinstance(space_type, type) and issubclass(space_type, Space)):
            where = f"{self.what.replace(' ', '_')}_rules.register()"
            raise TypeError(
                f"{where}: expected a class of gymnasium.Space, got {space_type!r}. Pass the class "
                "itself, such as gymnasium.spaces.Box."
            )

        def add(build: Build[T]) -> Build[T]:
            self._rules.append(Rule(name, space_type, when, settings, build))
            return build

        return add

    def __iter__(self) -> Iterator[Rule[T]]:
        """Iterate over the rules in the order in which the table asks them: the newest first."""
        return reversed(self._rules)

    def find(self, space: Space, model_config: DefaultModelConfig, path: str) -> tuple[Rule[T], list[Rule[T]]]:
        """Return the rule that applies to ``space``, and the rules for its class that were asked before and did not
        apply.

        Raises:
            ValueError: If no rule applies; names ``path`` and all rules of the table.
        """
        rules = [rule for rule in self if isinstance(space, rule.space_type)]
        for i, rule in enumerate(rules):
            if rule.when is None or rule.when(space, model_config):
                return rule, rules[:i]
        raise ValueError(
            f"{path}: expected a space with a branch in the {self.what} table "
            f"({'; '.join(rule.name for rule in self._rules)}), got {space}. Register one with "
            f"@{self.what.replace(' ', '_')}_rules.register({type(space).__name__}, ...), or "
            "override the Catalog hook that asks this table."
        )

    def resolve(self, space: Space, model_config: DefaultModelConfig, node: Node[T]) -> T:
        """Return the result of the rule that applies to ``space``. Record in ``node`` that rule, the settings that it
        reads, the rules that were asked before, and ``model_config``, which its parts inherit.

        Raises:
            ValueError: If no rule applies to the space or to a part of it; names the path.
        """
        node.rule, node.passed = self.find(space, model_config, node.path)
        node.model_config = model_config  # a hook may have changed it
        node.children.clear()  # a hook may ask twice: keep only the last record
        node.reads = [*node.rule.settings]
        recorded = model_config.recording(node.reads)
        if node.rule.when is not None:
            node.rule.when(space, recorded)  # find() asked it without a record, as it asked rules that did not apply
        return node.rule.build(space, recorded, node)

    def root(self, space: Space, model_config: DefaultModelConfig, name: str) -> Node[T]:
        """Return the root of a decision tree for ``space``, which error messages call ``name``. It has no result yet:
        :meth:`resolve` decides it. The nodes of the parts of ``space`` are decided by this table alone, without the
        hooks of a catalog."""
        return Node(space, model_config, name, lambda node: self.resolve(node.space, node.model_config, node))
