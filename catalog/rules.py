"""Decision tables over spaces: what the Catalog's tree is made of.

A table is an ordered list of rules. The newest rule that knows the space wins, so a registration in user code takes
precedence over the built-in one, and a new space or net is a new file with one registration, never an edit here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gymnasium import Space

from catalog.errors import explain_error
from catalog.model_config import DefaultModelConfig

T = TypeVar("T")
When = Callable[[Any, DefaultModelConfig], bool]
Build = Callable[[Any, DefaultModelConfig, str], T]


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
        """Decorator: add a branch ``build(space, model_config, path)``; it is asked before all earlier ones.

        Args:
            space_type: The branch looks at spaces of this class only.
            name: One line for ``explain()``, such as "Box of rank 1 → MLP".
            when: Further condition on ``(space, model_config)``.
            settings: Names of the model settings that shape the result.
        """

        def add(build: Build[T]) -> Build[T]:
            self._rules.append(Rule(name, space_type, when, settings, build))
            return build

        return add

    def decide(self, space: Space, model_config: DefaultModelConfig, path: str) -> tuple[Rule[T], list[Rule[T]]]:
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
        known = "; ".join(rule.name for rule in self._rules)
        raise ValueError(
            explain_error(
                path,
                expected=f"a space with a branch in the {self.what} table ({known})",
                got=str(space),
                remedy=f"Register one with @{self.what.replace(' ', '_')}_rules.register({type(space).__name__}, ...), "
                "or override the Catalog hook that asks this table.",
            )
        )

    def resolve(self, space: Space, model_config: DefaultModelConfig, path: str) -> T:
        """Result of the rule that fires; see :meth:`decide`."""
        return self.decide(space, model_config, path)[0].build(space, model_config, path)
