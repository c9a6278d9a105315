"""Classes for the nets of a single policy with three forward passes (RLModule), and for several such modules by id
(MultiRLModule)."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from catalog.actions.embeddings import check_action_embeddings
from catalog.actions.masks import ActionMask, observation_space_without
from catalog.base import Tree
from catalog.catalog import Catalog
from catalog.distributions.action_models import check_action_model
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution
from catalog.encoders.extra_heads import ExtraOutputs
from catalog.encoders.preprocessing import ObservationNormalizer, RunningMoments
from catalog.encoders.shape_checks import check_head
from catalog.explain.explain import Built, Format, explain, further_nets
from catalog.explain.mermaid import joined
from catalog.explain.unread import check_settings_are_read, warn_once
from catalog.hooks import Hooks
from catalog.model_config import MEMORIES, DefaultModelConfig
from catalog.past import PREV_OBS, PastView
from catalog_rl import closest
from rlmodule.data.columns import Batch, Columns
from rlmodule.modules.apis import InferenceOnlyAPI
from rlmodule.modules.shared_parts import SharedParts, share_parts, tensors_at

DEFAULT_MODULE_ID = "default_policy"


class RLModule(Hooks, nn.Module, ABC):
    """Base class of neural modules for policies, which contain the nets and run them in three forward passes.

    Override points:
        ``setup``: create the submodules (``self.catalog`` builds the default ones).
        ``_forward``: compute output columns from input columns, for acting and, unless ``_forward_train`` is
            overridden, for training.
        ``_forward_inference``, ``_forward_exploration``, ``_forward_train``: passes that differ from ``_forward``.
        ``get_initial_state``: return the recurrent state before the first step, which makes the module stateful.
        ``get_past_view``: choose the earlier observations, actions and rewards that the module sees, stateful or not.

    A forward pass reads ``batch["obs"]``, a batch of the env's observations, and returns ``action_dist_inputs``, from
    which ``action_dist_cls.from_logits(...)`` creates the action distribution. It must not change the batch. The
    training pass of a module that predicts action values may return ``embeddings`` instead, from which
    ``compute_q_values`` computes the values.

    A stateful module gets sequences of ``T`` rows in all three passes: ``obs`` ``[T, B, ...]``, ``starts`` ``[T, B]``
    and ``state_in`` ``[B, ...]``, with ``T = 1`` for acting. It must zero a sequence's state before every row that
    starts an episode, and return columns ``[T, B, ...]`` and ``state_out`` ``[B, ...]``. If it has a value function,
    its ``_forward_train`` must also return ``embeddings``, from which alone ``compute_values`` computes values.

    Args:
        observation_space: Space of one observation of the env.
        action_space: Space of one action.
        model_config: Settings of the nets, for the catalog or for ``setup``.
        catalog_class: Class of the catalog, with which ``setup`` builds nets.
        inference_only: Whether to drop the parts that only learning needs; see :class:`InferenceOnlyAPI`.

    Attributes:
        model_config: The settings that the nets are built with, after the catalog has decided every setting that was
            left open. If functions of the module (such as policy and value) have different settings, these are the
            settings of the first function.
        given_config: The settings as they were given, from which a module like this one can be built.
    """

    def __init__(
        self,
        *,
        observation_space: Space,
        action_space: Space,
        model_config: DefaultModelConfig | Mapping[str, Any] | None = None,
        catalog_class: type[Catalog] = Catalog,
        inference_only: bool = False,
    ) -> None:
        super().__init__()
        if (dtype := torch.get_default_dtype()) != torch.float32:
            raise ValueError(
                f"{type(self).__name__}: expected torch's default dtype float32, got {dtype}, which this program or a "
                "library has set. Call torch.set_default_dtype(torch.float32) before the nets are built."
            )
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.model_config = self.given_config = catalog_class.model_config_class.from_any(model_config)
        self.catalog = catalog_class(
            observation_space, action_space, self.model_config, past_view=self.get_past_view(), may_lack_encoder=True
        )
        self.model_config, self.past_view = self.catalog.model_config, self.catalog.past_view
        self.action_dist_cls: type[Distribution] = self.catalog.bound_dist_cls
        self.action_converter = self.catalog.build_action_converter()
        self.action_mask = self.catalog.build_action_mask()
        self.action_embeddings = self.catalog.build_action_embeddings()
        if self.action_embeddings is not None:
            count = self.action_dist_cls.required_input_dim(action_space)
            where = f"{type(self.catalog).__name__}.build_action_embeddings()"
            check_action_embeddings(self.action_embeddings, observation_space, count, where)
        self.action_model = self.catalog.build_action_model()
        self.sees_more_than_the_env = bool(self.past_view.steps)
        self.observation_normalizer: ObservationNormalizer | None = None  # setup() may build one
        self._warns_of_unread = False
        self.setup()
        if self._warns_of_unread:  # after setup(): nets may read settings when they are built
            check_settings_are_read(self.catalog)
        for name in MEMORIES:
            if getattr(self.model_config, name) and not self.is_stateful():
                warn_once(
                    f"model_config: {name} = True has no effect in {type(self).__name__}, which has no recurrent "
                    "state. Build the net with self.catalog.build_encoder(), and return the state from "
                    "get_initial_state(), or leave the setting out."
                )
        self._bind_distribution(self.action_dist_cls)  # after setup(): a distribution may read submodules
        if issubclass(self.action_dist_cls, AutoregressiveDistribution):
            check_action_model(self.action_dist_cls, f"{type(self).__name__}.action_model")
        elif self.action_model is not None:
            raise ValueError(
                f"{type(self.catalog).__name__}.build_action_model(): expected None, since "
                f"{self.action_dist_cls.__name__} uses no such model, got "
                f"{type(self.action_model).__name__}. Set autoregressive_actions=True to use a "
                "distribution that does."
            )
        if inference_only and isinstance(self, InferenceOnlyAPI):
            for name in self.get_non_inference_attributes():
                owner, _, leaf = name.rpartition(".")
                part = self.get_submodule(owner)
                if leaf not in dir(part):
                    raise AttributeError(
                        f"{type(self).__name__}.get_non_inference_attributes(): expected names of attributes, "
                        f"got {name!r}. Correct what it returns."
                    )
                setattr(part, leaf, None)

    @functools.cached_property
    def num_dist_inputs(self) -> int:
        """Number of inputs of the action distribution."""
        return self.action_dist_cls.required_input_dim(self.action_space)

    def _bind_distribution(self, dist_cls: type[Distribution]) -> None:
        """Set ``action_dist_cls`` to ``dist_cls`` bound to this module; see :meth:`Distribution.for_module`."""
        self.action_dist_cls = dist_cls.for_module(self)
        self._bound_from = dist_cls, self.action_dist_cls

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the module from ``state`` when it is copied or unpickled."""
        super().__setstate__(state)
        # copies share classes: the one in `state` is bound to the original and would read its nets
        unbound, bound = self._bound_from
        if self.action_dist_cls is bound:
            self._bind_distribution(unbound)

    @abstractmethod
    def setup(self) -> None:
        """Create the submodules. This is called once during construction, after spaces, settings and the catalog are
        set."""

    def _check_catalog(self, owner: type[RLModule], expected: type[Catalog]) -> None:
        """Raise TypeError if the catalog is not an instance of ``expected``. If the class of the module is ``owner``
        itself, settings that no net reads are warned of after ``setup`` (:func:`check_settings_are_read`); a subclass
        of ``owner`` may read them on its own."""
        if not isinstance(self.catalog, expected):
            raise TypeError(
                f"catalog of {owner.__name__}: expected a {expected.__name__}, got "
                f"{type(self.catalog).__name__}. Derive yours from {expected.__name__}."
            )
        self._warns_of_unread = type(self) is owner

    def _probed(self, head: nn.Module, function: str, width: int, hook: str) -> nn.Module:
        """Return ``head`` after checking that it maps the latent of ``function`` to ``width`` outputs. Raise an error
        that names the catalog method ``hook`` if it does not."""
        where = f"{type(self.catalog).__name__}.{hook}"
        return check_head(head, self.catalog.for_function(function).latent_dims, width, where)

    @abstractmethod
    def _forward(self, batch: Mapping[str, Tree]) -> Batch:
        """Return the output columns for acting, and for training unless :meth:`_forward_train` is overridden."""

    def _forward_inference(self, batch: Mapping[str, Tree]) -> Batch:
        return self._forward(batch)

    def _forward_exploration(self, batch: Mapping[str, Tree]) -> Batch:
        return self._forward(batch)

    def _forward_train(self, batch: Mapping[str, Tree]) -> Batch:
        return self._forward(batch)

    @torch.no_grad()
    def forward_inference(self, batch: Mapping[str, Tree]) -> Batch:
        """Return the output columns for acting greedily, without gradient."""
        return self._forward_inference(batch)

    @torch.no_grad()
    def forward_exploration(self, batch: Mapping[str, Tree]) -> Batch:
        """Return the output columns for acting while collecting training data, without gradient."""
        return self._forward_exploration(batch)

    def forward_train(self, batch: Mapping[str, Tree]) -> Batch:
        """Return the output columns for the loss, with gradient. Raise RuntimeError in an inference-only copy."""
        if self.inference_only:
            raise RuntimeError(
                f"{type(self).__name__}.forward_train(): expected a full module, got an "
                "inference-only copy. Train the learner's module: algo.get_module()."
            )
        return self._forward_train(batch)

    def forward(self, batch: Mapping[str, Tree]) -> Batch:
        """Call :meth:`forward_train`, as users of ``nn.Module`` expect."""
        return self.forward_train(batch)

    def get_initial_state(self) -> Tree | None:
        """Return the recurrent state of a single sequence before its first step, as a tree of zero tensors without a
        batch dim. Return None if the module is stateless."""
        return None

    def get_past_view(self) -> PastView:
        """Return which earlier steps the module sees, in addition to those for the settings ``lstm_use_prev_action``
        and ``lstm_use_prev_reward``; see :class:`PastView`. This is called once before ``setup``, after the spaces and
        ``model_config`` are set. The default is no earlier steps."""
        return PastView()

    def is_stateful(self) -> bool:
        """Return whether the module has a recurrent state. If it has, its forward passes get sequences."""
        return self.get_initial_state() is not None

    @property
    def max_seq_len(self) -> int:
        """Number of rows in each sequence that a recurrent module is trained on."""
        return self.catalog.model_config.max_seq_len

    @property
    def input_space(self) -> Space:
        """Space of ``batch["obs"]``. It is the observation space, or if the module sees earlier steps, a Dict of the
        observation space (``obs``) and the fields of ``past_view`` (``prev_obs``, ``prev_action``, ``prev_reward``)."""
        return self.catalog.input_space

    @property
    def acting_space(self) -> Space:
        """Space of the observations that acting needs, which is the observation space without the fields that only a
        critic reads."""
        keys = self.model_config.critic_only_keys
        return observation_space_without(self.observation_space, *keys) if keys else self.observation_space

    def env_part(self, obs: Tree) -> Tree:
        """Return the env's own observations from ``batch["obs"]``, without the fields of ``past_view``."""
        return obs[Columns.OBS] if self.sees_more_than_the_env else obs

    def update_observation_statistics(self, obs: Tree) -> None:
        """Update the statistics of ``observation_normalizer``, if there is one, with observations ``[B, ...]``."""
        if self.observation_normalizer is not None:
            self.observation_normalizer.update(self.env_part(obs))

    def _normalized(self, batch: Mapping[str, Tree]) -> Tree:
        """Return the observations in ``batch`` as encoders read them. If there is an ``observation_normalizer``, the
        env's observations, current and earlier ones, are normalised, but previous actions and rewards are not."""
        obs, normalizer = batch[Columns.OBS], self.observation_normalizer
        if normalizer is None:
            return obs
        if self.sees_more_than_the_env:
            return {**obs, **{name: normalizer(obs[name]) for name in (Columns.OBS, PREV_OBS) if name in obs}}
        return normalizer(obs)

    def _policy(self, batch: Mapping[str, Tree], inputs: Tensor, state: Tree | None) -> Batch:
        """Return the inputs of the action distribution, with forbidden actions masked, and ``state`` unless it is None.
        ``inputs`` is the policy head's output. Action embeddings, if any, first convert it to logits of the actions."""
        if (embeddings := self.action_embeddings) is not None:
            inputs = embeddings.forward(inputs, self.env_part(batch[Columns.OBS]))
        if (mask := self.action_mask) is not None:
            inputs = mask.forward(inputs, self.env_part(batch[Columns.OBS]))
        out = {Columns.ACTION_DIST_INPUTS: inputs}
        return out if state is None else out | {Columns.STATE_OUT: state}

    def net_names(self) -> dict[str, str]:
        """Return the names under which :meth:`explain` shows nets, each with the path of the net, such as
        ``{"policy head": "pi_head"}``. A net without an entry is shown under the name of its attribute."""
        return {}

    def explain(self, format: Format = "text") -> str:
        """Return a description of the catalog's decisions and of the nets of this module. This builds no nets. See
        :meth:`Catalog.explain`."""
        built = Built(self._named_nets(), self.action_mask, self.observation_normalizer, self)
        return explain(self.catalog, format, built)

    def _named_nets(self) -> dict[str, nn.Module]:
        """Return the nets that :meth:`explain` shows, by name: the nets in :meth:`net_names`, the nets for action
        embeddings, the action model and additional outputs, and all other children with parameters that are not in
        these nets."""
        there = dict[str, nn.Module](self.named_modules(remove_duplicate=False))
        nets = {name: there[path] for name, path in self.net_names().items() if path in there}
        outputs = next((net for net in there.values() if isinstance(net, ExtraOutputs)), None)
        nets |= further_nets(self.action_embeddings, self.action_model, outputs)
        named = {id(p) for net in nets.values() for p in net.parameters()}
        for name, net in self.named_children():
            parameters = {id(p) for p in net.parameters()}
            if parameters and not parameters & named:
                nets[name] = net
        return nets

    def get_state(self, inference_only: bool = False) -> dict[str, Tensor]:
        """Return the weights and buffers by name, as references, not copies.

        Args:
            inference_only: Whether to leave out the parts that an inference-only copy drops.
        """
        dropped = ()
        if inference_only and isinstance(self, InferenceOnlyAPI):
            dropped = tuple(f"{name}." for name in self.get_non_inference_attributes())
        return {name: x for name, x in self.state_dict().items() if not name.startswith(dropped)}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy ``state`` into this module in place. An inference-only copy ignores the entries of a full state that it
        does not have.

        Raises:
            ValueError: If a name is missing or unknown, or a tensor has the wrong shape or dtype.
        """
        mine = self.state_dict()
        if self.inference_only:
            state = {name: value for name, value in state.items() if name in mine}
        self.check_state(state)
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(state[name])

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Check that ``state`` has the names, shapes and dtypes of this module's state. Running moments may be float32,
        as files of earlier versions have them.

        Raises:
            ValueError: If a name is missing or unknown, or a tensor has the wrong shape or dtype.
        """
        mine = self.state_dict()
        wrong = sorted(mine.keys() ^ state.keys())
        for name in sorted(mine.keys() & state.keys()):
            expected, given = mine[name], state[name]
            is_cast = given.dtype == torch.float32 and self._is_moment(name)
            if given.shape != expected.shape or not (given.dtype == expected.dtype or is_cast):
                wrong.append(name)
        if wrong:
            raise ValueError(
                f"{type(self).__name__}.set_state(): expected the names, shapes and dtypes of this "
                f"module's own state, got a state that differs at {', '.join(wrong[:5])}. Load it "
                "into a module with the same spaces, model_config and catalog."
            )

    def _is_moment(self, name: str) -> bool:
        """Return whether the state has a running mean or deviation under ``name``."""
        path, _, leaf = name.rpartition(".")
        return leaf in ("mean", "std") and isinstance(self.get_submodule(path), RunningMoments)

    def share_tensors_of(self, other: RLModule, *, but: Callable[[str], bool] = lambda name: False) -> None:
        """Replace each parameter and buffer with the tensor of the same name in ``other``, so that both modules share
        them. Tensors for whose name ``but`` returns True are not replaced.

        Buffers stay shared only as long as ``other`` changes them in place.

        Raises:
            KeyError: If ``other`` lacks a tensor that this module has.
        """
        theirs = tensors_at(other, "")
        for name, (tensors, key) in tensors_at(self, "").items():
            if not but(name):
                of_other, key_there = theirs[name]
                tensors[key] = of_other[key_there]


class MultiRLModule(nn.Module):
    """Several modules by id, as a single ``nn.Module``.

    Args:
        modules: The modules by id.
        shared_parts: The parts that the modules share; see :class:`MultiRLModuleSpec`. Modules that are added later
            share them, too.

    Raises:
        ValueError: If an id is invalid, or the modules cannot share a part.
    """

    def __init__(self, modules: Mapping[str, RLModule], shared_parts: SharedParts | None = None) -> None:
        super().__init__()
        self.shared_parts: SharedParts = {}  # once all are here
        self.rl_modules = nn.ModuleDict()
        self._by_id: dict[str, RLModule] = {}  # looking up in a ModuleDict costs as much as a tensor operation
        for module_id, module in modules.items():
            self.add(module_id, module)
        self.shared_parts = shared_parts or {}
        self._share_parts()

    def _share_parts(self) -> None:
        if self.shared_parts:
            dropped = any(module.inference_only for module in self._by_id.values())
            share_parts(self._by_id, self.shared_parts, may_lack=dropped)

    def add(self, module_id: str, module: RLModule) -> None:
        """Add ``module`` under the id ``module_id``.

        Raises:
            ValueError: If the id is in use or invalid, or the module cannot share a part.
        """
        if not isinstance(module_id, str) or "." in module_id or not module_id or module_id in dir(nn.ModuleDict()):
            raise ValueError(
                "MultiRLModule: expected ids without dots that are strings and no attribute of a "
                f"torch.nn.ModuleDict, got {module_id!r}. Name it for example "
                f"'policy_{str(module_id).replace('.', '_')}'."
            )
        if module_id in self._by_id:
            raise ValueError(
                f"MultiRLModule: expected an id other than {', '.join(self._by_id)}, got "
                f"{module_id!r}. Remove that module first, or choose another id."
            )
        self.rl_modules[module_id] = self._by_id[module_id] = module
        try:
            self._share_parts()
        except ValueError:
            self.remove(module_id)
            raise

    def remove(self, module_id: str) -> None:
        """Remove the module ``module_id``.

        Raises:
            KeyError: If no module has the id ``module_id``. The error names the known ids.
        """
        self[module_id]
        del self.rl_modules[module_id], self._by_id[module_id]

    def __getitem__(self, module_id: str) -> RLModule:
        """Return the module ``module_id``. Raise KeyError with the known ids if there is none."""
        if module_id not in self._by_id:
            known, hint = ", ".join(self._by_id), closest(module_id, self._by_id)
            raise KeyError(f"MultiRLModule: expected one of {known}, got the module id {module_id!r}. Pass one.{hint}")
        return self._by_id[module_id]

    def __contains__(self, module_id: str) -> bool:
        return module_id in self._by_id

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> Iterator[tuple[str, RLModule]]:
        """Return pairs of id and module."""
        return iter(self._by_id.items())

    def explain(self, format: Format = "text") -> str:
        """Return a description of each module below its id, as :meth:`RLModule.explain` returns it. A flowchart has a
        frame for each module. A single module is described without its id."""
        texts = {module_id: module.explain(format) for module_id, module in self.items()}
        if len(texts) == 1:
            return texts.popitem()[1]
        return joined(texts) if format == "mermaid" else "\n\n".join(f"{name}\n{text}" for name, text in texts.items())

    def get_state(self, inference_only: bool = False) -> dict[str, dict[str, Tensor]]:
        """Return the state of each module by module id; see :meth:`RLModule.get_state`. Tensors that modules share are
        the same objects in all states."""
        states = {module_id: module.get_state(inference_only) for module_id, module in self.items()}
        known: dict[Any, Tensor] = {}
        if self.shared_parts:
            for state in states.values():
                for name, x in state.items():
                    state[name] = known.setdefault((x.data_ptr(), x.shape, x.dtype), x)
        return states

    def set_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy each module's state in ``state`` into the module with the same id, in place. Modules without an entry
        stay unchanged."""
        for module_id, module_state in state.items():
            self[module_id].set_state(module_state)

    def share_tensors_of(self, other: MultiRLModule) -> None:
        """Make each module share all tensors with the module of the same id in ``other``; see
        :meth:`RLModule.share_tensors_of`."""
        for module_id, module in self.items():
            module.share_tensors_of(other[module_id])


def nothing_to_choose(where: str, mask: ActionMask) -> ValueError:
    """Return the error to raise for an observation whose action mask allows no action. ``where`` names the
    observation."""
    choice, got = "at least one action that is allowed", "a mask that forbids all"
    if mask.num_groups > 1:
        choice, got = f"an allowed choice in each of {mask.num_groups} parts", "a part in which all are forbidden"
    return ValueError(
        f"{where}[{mask.key!r}]: expected {choice}, got {got}. Allow an action, if only one that "
        "does nothing, or end the episode before such a state."
    )
