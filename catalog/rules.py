"""Decision tables over spaces: what the Catalog's tree is made of.

A table is an ordered list of rules. The newest rule that knows the space wins, so a registration in user code takes
precedence over the built-in one, and a new space or net is a new file with one registration, never an edit here.
A rule for a nested space decides its parts through the :class:`Node` it is given, which leaves a record of the path.

The rules stand next to what they choose, in ``catalog/encoders/``, ``catalog/distributions/`` and ``catalog/actions/``;
:class:`~catalog.catalog.Catalog` asks them. ``rlmodule list`` prints all of them, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gymnasium import Space

from catalog.model_config import DefaultModelConfig

T = TypeVar("T")
When = Callable[[Any, DefaultModelConfig], bool]
Build = Callable[[Any, DefaultModelConfig, "Node[T]"], T]


@dataclass(frozen=True)
class Rule(Generic[T]):
    """One branch: for spaces of ``space_type`` for which ``when`` holds, ``build`` makes the result.

    ``settings`` names the model settings the branch reads, for ``Catalog.explain``.
    """

    name: str
    space_type: type[Space]
    when: When | None
    settings: tuple[str, ...]
    build: Build[T]

    def applies(self, space: Space, model_config: DefaultModelConfig) -> bool:
        return isinstance(space, self.space_type) and (self.when is None or self.when(space, model_config))


@dataclass
class Node(Generic[T]):
    """One place in the tree: what is being decided there, and afterwards how it was.

    Attributes:
        space: The space of this part.
        model_config: The settings in force here, overrides by path included.
        root: What the whole is called in messages, such as ``"observation_space"``.
        decide: What decides a node: a table, or the catalog's hook in front of it.
        keys: Path from the root, keys of Dicts and indices of Tuples.
        rule: The rule that fired; None where a hook decided without the table.
        passed: Rules for the space's class that were asked before and did not apply.
        children: The nodes of its parts.
        result: What was decided.
    """

    space: Space
    model_config: DefaultModelConfig
    root: str
    decide: Callable[[Node[T]], T]
    keys: tuple[str | int, ...] = ()
    rule: Rule[T] | None = None
    passed: list[Rule[T]] = field(default_factory=list)
    children: list[Node[T]] = field(default_factory=list)
    result: T | None = None

    @property
    def path(self) -> str:
        """For messages: ``observation_space['camera'][0]``."""
        return self.root + "".join(f"[{key!r}]" for key in self.keys)

    @property
    def name(self) -> str:
        """For settings by path: ``camera.0``; empty at the root."""
        return ".".join(str(key) for key in self.keys)

    def run(self) -> T:
        """Decide this node."""
        self.result = self.decide(self)
        return self.result

    def child(self, key: str | int, space: Space) -> T:
        """Decide the part ``space`` called ``key``, with the settings of this node and what is overridden there."""
        keys = (*self.keys, key)
        node = Node(space, self.model_config, self.root, self.decide, keys)
        node.model_config = self.model_config.at_leaf(node.name)
        self.children.append(node)
        return node.run()

    def walk(self) -> Iterator[Node[T]]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class RuleTable(Generic[T]):
    """Rules from a space (and the model config) to a ``T``.

    Args:
        what: What the table decides, for messages: "encoder", "action distribution".
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._rules: list[Rule[T]] = []

    def register(
        self, space_type: type[Space], *, name: str, when: When | None = None, settings: tuple[str, ...] = ()
    ) -> Callable[[Build[T]], Build[T]]:
        """Decorator: add a branch ``build(space, model_config, node)``; it is asked before all earlier ones.

        Args:
            space_type: The branch looks at spaces of this class only.
            name: One line for ``explain()``, such as "Box of rank 1 → MLP".
            when: Further condition on ``(space, model_config)``.
            settings: Names of the model settings that shape the result.

        Raises:
            TypeError: If ``space_type`` is no class of spaces.
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
        """The rules in the order in which they are asked."""
        return reversed(self._rules)

    def find(self, space: Space, model_config: DefaultModelConfig, path: str) -> tuple[Rule[T], list[Rule[T]]]:
        """The rule that fires for ``space`` and those for its class that were passed over.

        Raises:
            ValueError: If no rule knows the space; names ``path`` and the rules there are.
        """
        passed = []
        for rule in reversed(self._rules):
            if rule.applies(space, model_config):
                return rule, passed
            if isinstance(space, rule.space_type):
                passed.append(rule)
        raise ValueError(
            f"{path}: expected a space with a branch in the {self.what} table "
            f"({'; '.join(rule.name for rule in self._rules)}), got {space}. Register one with "
            f"@{self.what.replace(' ', '_')}_rules.register({type(space).__name__}, ...), or "
            "override the Catalog hook that asks this table."
        )

    def resolve(self, space: Space, model_config: DefaultModelConfig, node: Node[T]) -> T:
        """Result of the rule that fires for ``space``; ``node`` takes the record.

        Raises:
            ValueError: If no rule knows the space, or one below; names the path.
        """
        node.rule, node.passed = self.find(space, model_config, node.path)
        node.children.clear()  # of an earlier time: a hook may ask twice
        return node.rule.build(space, model_config, node)

    def root(self, space: Space, model_config: DefaultModelConfig, name: str) -> Node[T]:
        """A node for the whole of ``space``, called ``name``, that this table alone decides."""
        return Node(space, model_config, name, lambda node: self.resolve(node.space, node.model_config, node))
