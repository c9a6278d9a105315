"""Decision tables over spaces, which make up the Catalog's decision tree.

A table is an ordered list of rules. The newest rule that applies to a space wins, so rules of users take precedence
over built-in ones. To support a new space or net, add a file with one registration; nothing changes here. A rule for a
nested space decides the parts through the :class:`Node` it is given, and the nodes record the decisions.

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
    """One branch: ``build`` makes the result for spaces of ``space_type`` that fulfil ``when``.

    ``settings`` are the names of the model settings that ``build`` reads, for ``Catalog.explain``.
    """

    name: str
    space_type: type[Space]
    when: When | None
    settings: tuple[str, ...]
    build: Build[T]


@dataclass
class Node(Generic[T]):
    """One node of the tree: a space to decide about, and afterwards the decision.

    Attributes:
        space: The space of this part.
        model_config: The settings for this part, with its ``leaf_overrides``.
        root: Name of the whole space in messages, such as ``"observation_space"``.
        decide: Function that decides a node: the catalog's hook, or else a table.
        keys: Path from the root: keys of Dicts and indices of Tuples.
        rule: The rule that applied; None if a hook decided without the table.
        passed: Rules for the class of the space that were asked before and did not apply.
        children: The nodes of the parts.
        result: The decision; None before :meth:`run`.
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
        """Path for messages, such as ``observation_space['camera'][0]``."""
        return self.root + "".join(f"[{key!r}]" for key in self.keys)

    @property
    def name(self) -> str:
        """Path for settings, such as ``camera.0``; empty at the root."""
        return ".".join(str(key) for key in self.keys)

    def run(self) -> T:
        """Decide this node and return the result."""
        self.result = self.decide(self)
        return self.result

    def child(self, key: str | int, space: Space) -> T:
        """Decide the part ``space`` at ``key``, with the settings of this node and the overrides of that path."""
        keys = (*self.keys, key)
        node = Node(space, self.model_config, self.root, self.decide, keys)
        node.model_config = self.model_config.at_leaf(node.name)
        self.children.append(node)
        return node.run()

    def walk(self) -> Iterator[Node[T]]:
        """Yield this node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def of_rank(*ranks: int, matrix: str | None = None) -> When:
    """Return the condition of a rule: a Box has one of these ``ranks``, and ``matrix_observations`` is ``matrix``."""
    return lambda space, model_config: len(space.shape) in ranks and matrix in (None, model_config.matrix_observations)


class RuleTable(Generic[T]):
    """Ordered rules from a space and a model config to a ``T``.

    Args:
        what: What the table decides, for messages, such as "encoder" or "action distribution".
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._rules: list[Rule[T]] = []

    def register(
        self, space_type: type[Space], *, name: str, when: When | None = None, settings: tuple[str, ...] = ()
    ) -> Callable[[Build[T]], Build[T]]:
        """Return a decorator that adds a function ``build(space, model_config, node)`` as a rule. It is tried before
        all rules that were registered earlier.

        Args:
            space_type: Class of the spaces that the rule may decide.
            name: One line for ``explain()``, such as "Box of rank 1 → MLP".
            when: Further condition on ``(space, model_config)``.
            settings: Names of the model settings that ``build`` reads.

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
        """Iterate over the rules in the order in which they are asked."""
        return reversed(self._rules)

    def find(self, space: Space, model_config: DefaultModelConfig, path: str) -> tuple[Rule[T], list[Rule[T]]]:
        """Return the rule that applies to ``space``, and the rules for the same class of spaces that were tried first.

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
        """Return the result of the rule that applies to ``space``, and record it in ``node``.

        Raises:
            ValueError: If no rule applies to the space or to a part of it; names the path.
        """
        node.rule, node.passed = self.find(space, model_config, node.path)
        node.children.clear()  # a hook may ask twice: keep only the last record
        return node.rule.build(space, model_config, node)

    def root(self, space: Space, model_config: DefaultModelConfig, name: str) -> Node[T]:
        """Return the root of a decision tree for ``space``, called ``name`` in messages. Only this table decides: the
        hooks of a catalog are not called."""
        return Node(space, model_config, name, lambda node: self.resolve(node.space, node.model_config, node))
