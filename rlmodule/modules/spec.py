"""Specs that describe a module, or several by id, and build them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor

from catalog.catalog import Catalog
from catalog.hooks import check_signature
from catalog.model_config import DefaultModelConfig
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.modules.shared_parts import SharedParts


@dataclass(frozen=True)
class RLModuleSpec:
    """Describes one module: class, spaces and settings. The algorithm replaces every None (:meth:`filled`).

    Attributes:
        module_class: The module to build.
        observation_space: Space of one observation; None takes the env's.
        action_space: Space of one action; None takes the env's.
        model_config: Settings of the nets: a DefaultModelConfig or a partial dict. Put options of a custom module into
            ``custom_model_config``, or into a subclass of DefaultModelConfig.
        catalog_class: The catalog that the module builds its nets with.
        inference_only: Build without the parts that only learning needs.

    Raises:
        TypeError: If a class does not derive from the base class, cannot be called like it, or lacks a method.
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
                check_signature(f"{value.__qualname__}.__init__()", "__init__", value.__init__, base.__init__, remedy)
        if self.module_class is not None and (missing := sorted(self.module_class.__abstractmethods__)):
            raise TypeError(
                "RLModuleSpec.module_class: expected a class with every method that its bases ask for, got "
                f"{self.module_class.__qualname__} without {', '.join(missing)}. Write what is missing."
            )

    @classmethod
    def of(cls, module: RLModule) -> RLModuleSpec:
        """Return the spec that builds a module like ``module``."""
        spaces = module.observation_space, module.action_space
        return cls(type(module), *spaces, module.given_config, type(module.catalog), module.inference_only)

    def filled(self, default: RLModuleSpec) -> RLModuleSpec:
        """Return this spec with every None replaced by the value of ``default``."""
        mine = vars(self)
        return dataclasses.replace(self, **{name: value for name, value in vars(default).items() if mine[name] is None})

    def build(self, *, inference_only: bool | None = None) -> RLModule:
        """Build the module, in eval mode; only a learner's gradient steps put it in train mode.

        Args:
            inference_only: Overrides the attribute unless it is None.

        Raises:
            ValueError: If the class or a space is None.
        """
        if self.module_class is None or self.observation_space is None or self.action_space is None:
            needed = ("module_class", "observation_space", "action_space")
            missing = [name for name in needed if vars(self)[name] is None]
            raise ValueError(
                "RLModuleSpec.build(): expected module_class, observation_space and action_space, "
                f"got None for {', '.join(missing)}. Give them to the spec, or let an algorithm's "
                "build() fill them in."
            )
        return self.module_class(
            observation_space=self.observation_space,
            action_space=self.action_space,
            model_config=self.model_config,
            catalog_class=self.catalog_class or Catalog,
            inference_only=self.inference_only if inference_only is None else inference_only,
        ).eval()

    def build_with(self, weights: Mapping[str, Tensor]) -> RLModule:
        """Build an inference-only module with ``weights``, the state of a module of this spec, inference-only or not.

        The global random generator is left as it is.
        """
        with torch.random.fork_rng(devices=[]):
            module = self.build(inference_only=True)
        module.set_state(weights)
        return module

    def as_multi(self, module_id: str = DEFAULT_MODULE_ID) -> MultiRLModuleSpec:
        """Return a spec with this one module under ``module_id``."""
        return MultiRLModuleSpec({module_id: self})


@dataclass(frozen=True)
class MultiRLModuleSpec:
    """Describes several modules.

    Attributes:
        rl_module_specs: Their specs by id.
        shared_parts: The parts that they share: the path of each in all modules, such as ``{"trunk": "encoder"}``, or
            its places in some, such as ``{"trunk": ["a.encoder", "b.encoder"]}``.
    """

    rl_module_specs: Mapping[str, RLModuleSpec] = field(default_factory=dict)
    shared_parts: SharedParts = field(default_factory=dict)

    def build(self, *, inference_only: bool | None = None) -> MultiRLModule:
        """Build a module from each spec, in eval mode.

        Raises:
            ValueError: If modules cannot share a part; see :func:`share_parts`.
        """
        modules = {name: spec.build(inference_only=inference_only) for name, spec in self.rl_module_specs.items()}
        return MultiRLModule(modules, self.shared_parts).eval()
