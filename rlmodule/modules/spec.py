"""Specs that describe a single neural module, or several by id, and build them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from catalog.catalog import Catalog
from catalog.hooks import check_constructor
from catalog.model_config import DefaultModelConfig
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.modules.shared_parts import SharedParts

# Limits of the nets that settings in a file describe. Largest number in these settings, unless the file has a wider
# layer. Most weights of all nets built from it, unless `MOST_COPIES` times its own weights are more, because learners,
# env runners and evaluations have copies.
MOST_UNITS, MOST_WEIGHTS, MOST_COPIES = 10_000, 1_000_000, 10

_weights_left: ContextVar[list[int] | None] = ContextVar("weights_left", default=None)


@contextmanager
def modules_up_to(size: int) -> Iterator[None]:
    """Limit the modules that specs build within the block to ``size`` weights in total. Other nets do not count.

    Raises:
        ValueError: As soon as the modules built so far have more weights in total.
    """
    token = _weights_left.set([size])
    try:
        yield
    finally:
        _weights_left.reset(token)


def largest_setting(settings: Any) -> int:
    """Return the largest int in ``settings``, which are encoded settings of nets; 0 if there is none. The options of
    custom nets do not count, since only code that the caller allows reads them."""
    if isinstance(settings, Mapping):
        settings = [value for name, value in settings.items() if name != "custom_model_config"]
    if isinstance(settings, list):
        return max(map(largest_setting, settings), default=0)
    return settings if isinstance(settings, int) else 0


def most_units(weights: Iterable[Tensor]) -> int:
    """Return the largest number that settings of nets may have in a file with these tensors."""
    return max(MOST_UNITS, *(size for tensor in weights for size in tensor.shape), 0)


def most_weights(weights: Iterable[Tensor], copies: int = MOST_COPIES) -> int:
    """Return the most weights of all nets that may be built from a file with these tensors, ``copies`` times each."""
    return max(MOST_WEIGHTS, copies * sum(map(torch.numel, weights)))


@contextmanager
def _counting_weights() -> Iterator[None]:
    """Count the weights of the module that is built within the block, if :func:`modules_up_to` limits them."""
    if (left := _weights_left.get()) is None:
        yield
        return

    def count(module: nn.Module, name: str, weight: nn.Parameter) -> None:
        left[0] -= 0 if is_lazy(weight) else weight.numel()
        if left[0] < 0:
            kind, shape = type(module).__name__, tuple(weight.shape)
            raise ValueError(f"expected nets as large as those in the file, got more with {name} {shape} of {kind}")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class RLModuleSpec:
    """Describes a single module by its class, spaces and settings. The algorithm replaces every attribute that is None
    with its default (:meth:`filled`).

    Attributes:
        module_class: The module to build.
        observation_space: Space of a single observation; None takes the env's space.
        action_space: Space of a single action; None takes the env's space.
        model_config: Settings of the nets, as a DefaultModelConfig or a dict of some of its settings. Put the options
            of a custom module into ``custom_model_config``, or into a subclass of DefaultModelConfig.
        catalog_class: Class of the catalog that the module builds its nets with.
        inference_only: Whether to build the module without the parts that only learning needs.

    Raises:
        TypeError: If ``module_class`` does not derive from :class:`RLModule`, or ``catalog_class`` not from
            :class:`Catalog`, or if a class lacks a method or cannot be constructed with the arguments of its base
            class, or if their constructor does not call that of its base class.
    """

    module_class: type[RLModule] | None = None
    observation_space: Space | None = None
    action_space: Space | None = None
    model_config: DefaultModelConfig | Mapping[str, Any] | None = None
    catalog_class: type[Catalog] | None = None
    inference_only: bool = False

    def __post_init__(self) -> None:
        hooks = ("module_class", RLModule, "setup()"), ("catalog_class", Catalog, "_determine_components_hook()")
        for name, base, hook in hooks:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, type) and issubclass(value, base)):
                raise TypeError(
                    f"RLModuleSpec.{name}: expected a subclass of {base.__name__}, or None for the "
                    f"algorithm's own, got {value!r}. Pass the class itself, derived from "
                    f"{base.__name__}."
                )
            if value is not None:
                remedy = f" Or override {hook}, which runs at construction, and set attributes there."
                check_constructor(value, base, remedy)
        if self.module_class is not None and (missing := sorted(self.module_class.__abstractmethods__)):
            raise TypeError(
                "RLModuleSpec.module_class: expected a class with every method that its bases ask for, got "
                f"{self.module_class.__qualname__} without {', '.join(missing)}. Write what is missing."
            )

    @classmethod
    def of(cls, module: RLModule) -> RLModuleSpec:
        """Return the spec that builds modules like ``module``, with the same class, spaces and settings."""
        spaces = module.observation_space, module.action_space
        return cls(type(module), *spaces, module.given_config, type(module.catalog), module.inference_only)

    def filled(self, default: RLModuleSpec) -> RLModuleSpec:
        """Return this spec with every attribute that is None replaced with the value in ``default``."""
        mine = vars(self)
        return dataclasses.replace(self, **{name: value for name, value in vars(default).items() if mine[name] is None})

    def build(self, *, inference_only: bool | None = None) -> RLModule:
        """Build the module in eval mode. Only a learner's gradient steps put it into train mode.

        Args:
            inference_only: Overrides the attribute ``inference_only``; None uses the attribute.

        Raises:
            ValueError: If ``module_class`` or a space is None.
        """
        if self.module_class is None or self.observation_space is None or self.action_space is None:
            needed = ("module_class", "observation_space", "action_space")
            missing = [name for name in needed if vars(self)[name] is None]
            raise ValueError(
                "RLModuleSpec.build(): expected module_class, observation_space and action_space, "
                f"got None for {', '.join(missing)}. Give them to the spec, or let an algorithm's "
                "build() fill them in."
            )
        with _counting_weights():
            return self.module_class(
                observation_space=self.observation_space,
                action_space=self.action_space,
                model_config=self.model_config,
                catalog_class=self.catalog_class or Catalog,
                inference_only=self.inference_only if inference_only is None else inference_only,
            ).eval()

    def build_with(self, weights: Mapping[str, Tensor]) -> RLModule:
        """Build an inference-only module, and copy ``weights`` into it, which are the state of a full or inference-only
        module of this spec. Leave torch's global random generator unchanged."""
        with torch.random.fork_rng(devices=[]):
            module = self.build(inference_only=True)
        module.set_state(weights)
        return module

    def as_multi(self, module_id: str = DEFAULT_MODULE_ID) -> MultiRLModuleSpec:
        """Return a :class:`MultiRLModuleSpec` with a single module, which this spec describes, under ``module_id``."""
        return MultiRLModuleSpec({module_id: self})


@dataclass(frozen=True)
class MultiRLModuleSpec:
    """Describes several modules and the parts that they share.

    Attributes:
        rl_module_specs: The specs of the modules by module id.
        shared_parts: The shared parts by name. Each is the path of the part in all modules, such as
            ``{"trunk": "encoder"}``, or its places in some modules, such as ``{"trunk": ["a.encoder", "b.encoder"]}``.
    """

    rl_module_specs: Mapping[str, RLModuleSpec] = field(default_factory=dict)
    shared_parts: SharedParts = field(default_factory=dict)

    def build(self, *, inference_only: bool | None = None) -> MultiRLModule:
        """Build a module from each spec, in eval mode.

        Args:
            inference_only: Overrides the attribute ``inference_only`` of every spec; None uses the attributes.

        Raises:
            ValueError: If a module class or a space is None, or modules cannot share a part; see :func:`share_parts`.
        """
        modules = dict[str, RLModule]()
        for name, spec in self.rl_module_specs.items():
            try:
                modules[name] = spec.build(inference_only=inference_only)
            except ValueError as error:
                if len(self.rl_module_specs) == 1:
                    raise
                raise ValueError(f"module {name!r}: {error}") from error
        return MultiRLModule(modules, self.shared_parts).eval()
