"""The Catalog, which chooses nets and distributions for spaces and settings, builds them, and explains the choice."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from gymnasium import Space, spaces
from gymnasium.spaces import Dict
from torch import nn
from typing_extensions import Self

from catalog.actions.converters import ActionConverter, action_converter_rules, check_reach
from catalog.actions.embeddings import ActionEmbeddings, action_fields, find_action_embeddings
from catalog.actions.masks import ActionMask, find_action_mask, observation_space_without
from catalog.activations import Init
from catalog.base import Encoder, ModelConfig, as_encoder, encoder_rules, mark
from catalog.distributions.action_models import MADE, ActionModel
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution, action_distribution_rules
from catalog.encoders.actor_critic import ActorCriticEncoder
from catalog.encoders.attention import attention_encoder_config
from catalog.encoders.dense import warn_if_large
from catalog.encoders.extra_heads import ExtraOutputs
from catalog.encoders.memory import BuiltEncoderConfig, MemoryEncoder
from catalog.encoders.mlp import MLPEncoderConfig, MLPHeadConfig
from catalog.encoders.multi_stream import MultiStreamEncoderConfig
from catalog.encoders.preprocessing import ObservationNormalizer, can_normalize
from catalog.encoders.recurrent import recurrent_encoder_config
from catalog.encoders.shape_checks import check_encoder
from catalog.errors import closest
from catalog.explain.explain import Format, explain, short_space
from catalog.explain.unread import RAW
from catalog.hooks import Hooks, refuses_foreign
from catalog.model_config import DefaultModelConfig
from catalog.past import OBS, PREV_OBS, PastView, input_space, stacked_space
from catalog.registry import distributions
from catalog.rules import Node

T = TypeVar("T")

_NO_ENCODER = "Call super()._determine_components_hook() too, set encoder_config, or make the nets in the module."
_NO_MEMORY = "Acting would need its state: set functions={'value': {'use_lstm': False}}, or the memory that you use."


class Catalog(Hooks):
    """Chooses an encoder and an action distribution for an observation space and an action space.

    Subclasses add the heads of an algorithm. The decision tree runs at construction. After that, each call of a
    ``build_*`` method builds a new net. Distributions are classes, which need no building.

    Override points, each sufficient alone:
        ``_get_encoder_config``: another encoder config for some observation spaces or parts of nested ones.
        ``get_tokenizer_config``: another config for the encoder of single steps before a recurrent net.
        ``_get_dist_cls_from_action_space``: another distribution for some action spaces or parts of nested ones.
        ``get_action_dist_cls``: another distribution for the whole action space.
        ``_determine_components_hook``: all decisions made at construction, and attributes that other hooks read;
            override it instead of ``__init__``, which modules call.
        ``build_encoder``: any ``nn.Module`` from batched raw observations to latents ``[B, D]``.

    Args:
        observation_space: Space of one observation.
        action_space: Space of one action.
        model_config: A :class:`DefaultModelConfig`, a dict of some of its fields, or None for the defaults.
        past_view: Numbers of earlier observations, actions and rewards that a module sees; None for none. The settings
            ``lstm_use_prev_action`` and ``lstm_use_prev_reward`` raise theirs to at least 1.
        may_lack_encoder: Whether to raise errors about the observation space only when an encoder is built. Modules
            that may have their own nets set it.

    Attributes:
        functions: Names of the functions whose nets a subclass builds, such as "policy" and "value". The first
            function has the main encoder.
        model_config_class: Class of ``model_config``. A catalog with additional settings sets a subclass here.
        further_settings: Names of the settings that the heads of a subclass read, in addition to ``head_*`` settings.
        encoder_config: Config of the encoder. It is None if ``_determine_components_hook`` sets none. It is also None
            if no rule applies to the observation space but the encoder is or may be custom.
        encoder_node, action_node, converter_node: Roots of the decision trees for the encoder, the action distribution
            and the action converter; see :class:`Node`.
        action_mask: The module that masks forbidden actions; None if the observation has no mask.
        action_embeddings: The module that computes logits from vectors of the actions; None if the observation has
            no such vectors.
        past_view: The numbers of earlier steps that a module sees, including those that the settings ask for.
        input_space: Space that a module observes: the observation space, or a Dict of it and the earlier steps.

    Raises:
        ValueError: If no rule applies to a space (the message names the path into it), or if a model setting is wrong.
        TypeError: If a space is not a gymnasium space, or if a keyword or an overridden hook has a name from RLlib;
            the message says what to write instead.
    """

    functions: ClassVar[tuple[str, ...]] = ()
    model_config_class: ClassVar[type[DefaultModelConfig]] = DefaultModelConfig
    further_settings: ClassVar[tuple[str, ...]] = ()
    encoder_config: ModelConfig | None = None
    _tree_config: ModelConfig | None = None
    _refusal: ValueError | None = None
    _is_critic = False
    action_dist_cls: type[Distribution]
    action_mask: ActionMask | None = None
    action_embeddings: ActionEmbeddings | None = None

    @refuses_foreign
    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        model_config: DefaultModelConfig | Mapping[str, Any] | None = None,
        *,
        past_view: PastView | None = None,
        may_lack_encoder: bool = False,
    ) -> None:
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, Space):
                raise TypeError(
                    f"{type(self).__name__}({name}=): expected a gymnasium.Space, got {space!r}. "
                    "Pass env.observation_space, env.action_space and then the model settings."
                )
        self.observation_space = observation_space
        self.action_space = action_space
        self._whole_config = self.model_config = self.model_config_class.from_any(model_config)
        self._mask_field, self._embeddings_field = fields = action_fields(observation_space, self.model_config)
        self._action_fields = tuple(key for key, _ in filter(None, fields))  # encoders do not read them
        self._can_normalize = can_normalize(observation_space, self._action_fields)
        self._check_model_config()
        given, chosen = vars(self.model_config), self._open_settings().items()
        self.setting_reasons = {name: reason for name, (_, reason) in chosen if given[name] is None}
        chosen = {name: value for name, (value, _) in chosen if given[name] is None}
        self._whole_config = dataclasses.replace(self.model_config, **chosen)
        self.model_config = self._whole_config.for_function(self.functions[0]) if self.functions else self._whole_config
        self.past_view = (past_view or PastView()).with_settings(self.model_config)
        self.input_space = input_space(observation_space, action_space, self.past_view)
        self._may_lack_encoder = may_lack_encoder
        self._latent_dims: tuple[int, ...] | None = None
        self._trunk = self
        self._views: dict[str, Self] = dict.fromkeys(self.functions[:1], self)
        self._node: Node[Any] | None = None
        self._decide()
        self._check_functions()

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        """Return, by name of each model setting in which None lets the catalog choose: the value that replaces None,
        and the reason for it that :meth:`explain` shows."""
        return {"vf_share_layers": (False, "the default"), "normalize_observations": (False, "the default")}

    def _normalizes_for_box_actions(self, algorithm: str) -> tuple[bool, str]:
        """Return the value and reason of ``normalize_observations`` for an algorithm that standardises observations
        where actions are a Box."""
        if not self._can_normalize:
            return False, "since there are no float Boxes in it"
        if not isinstance(self.action_space, spaces.Box):
            return False, f"{algorithm}'s default for {type(self.action_space).__name__} actions"
        if self.has_custom_encoder or self.model_config.for_function("policy").has_custom_model:
            return False, RAW
        return True, f"{algorithm}'s default for Box actions"

    def _decide(self) -> None:
        """Run the decision tree by calling ``_determine_components_hook``. Set ``latent_dims`` from the chosen encoder
        config, unless the encoder is custom."""
        self.action_node = Node(self.action_space, self.model_config, "action_space", self._ask_for_distribution)
        self.converter_node = action_converter_rules.root(self.action_space, self.model_config, "action_space")
        self.encoder_node = Node(self.observation_space, self.model_config, "observation_space", self._ask_for_encoder)
        self._determine_components_hook()
        chosen = vars(self).get("action_dist_cls")  # a hook may choose an encoder only
        if chosen is not None and chosen is not self.action_node.result:  # the tree bound its own result
            where = f"action_dist_cls of {type(self).__name__}._determine_components_hook()"
            self.action_dist_cls = _bound(chosen, self.action_space, where, "action_space")
        if self.encoder_config is not None and not self.has_custom_encoder:
            self._latent_dims = tuple(self.encoder_config.output_dims)

    def _determine_components_hook(self) -> None:
        """Choose the distribution class, the action mask, the action embeddings and the encoder config, and set the
        attributes ``action_dist_cls``, ``action_mask``, ``action_embeddings`` and ``encoder_config``."""
        config = self.model_config
        self.action_dist_cls = self.action_node.run()
        if config.autoregressive_actions:
            self.action_dist_cls = AutoregressiveDistribution.bind(
                self.action_space, self.action_dist_cls, config.autoregressive_context_dim
            )
        if isinstance(config.custom_action_dist, Mapping):
            self._check_paths("custom_action_dist", config.custom_action_dist, self.action_node)
        dist_cls = self.bound_dist_cls
        if config.autoregressive_actions and not issubclass(dist_cls, AutoregressiveDistribution):
            raise ValueError(
                f"{type(self).__name__}.get_action_dist_cls(): expected an AutoregressiveDistribution, since "
                f"autoregressive_actions=True, got {dist_cls.__name__}. Return super()'s class or one derived from "
                "it, or leave autoregressive_actions out."
            )
        check_reach(dist_cls, self.action_space, config)
        if self._mask_field is not None:
            self.action_mask = find_action_mask(*self._mask_field, self.action_space, dist_cls)
        if self._embeddings_field is not None:
            self.action_embeddings = find_action_embeddings(*self._embeddings_field, self.action_space, dist_cls)
        try:
            self.encoder_config = self._tree_config = self._decide_encoder_config()
        except ValueError as error:
            # custom nets may not need the encoder of the tree at all
            if not (self.has_custom_encoder or self._may_lack_encoder):
                raise
            self._refusal = error

    def _decide_encoder_config(self) -> ModelConfig:
        """Return the config of the encoder, with encoders of earlier steps and a net with a memory if the settings or
        the module ask for them.

        No encoder reads action masks or action vectors. Only the encoder of a critic reads ``critic_only_keys``.
        """
        space, config = self.observation_space, self.model_config
        fields = [part.key for part in (self.action_mask, self.action_embeddings) if part is not None]
        if not self._is_critic:
            fields += config.critic_only_keys
        if fields:
            space = observation_space_without(space, *fields)
        if self._feeds_own_encoder:
            assert isinstance(self.input_space, Dict)
            space = Dict({**self.input_space.spaces, OBS: space})
        self.encoder_node.space = space
        decided = self.encoder_node.run()
        self._check_paths("leaf_overrides", config.leaf_overrides, self.encoder_node)
        if self._sees_more and not self._feeds_own_encoder:
            decided = self._with_past(decided, space)
        return self._with_memory(decided) if config.is_recurrent else decided

    def _with_memory(self, tokenizer: ModelConfig) -> ModelConfig:
        """Return the config of an encoder in which the LSTM, GRU or attention of the settings follows ``tokenizer``."""
        follows = attention_encoder_config if self.model_config.use_attention else recurrent_encoder_config
        return follows(tokenizer, self.model_config)

    def _with_past(self, decided: ModelConfig, space: Space) -> MultiStreamEncoderConfig:
        """Return a config that joins the encoder ``decided`` with encoders of the earlier steps.

        The tree chooses the encoders of earlier observations. Earlier actions and rewards are flattened to vectors. The
        result concatenates all of these. Dense layers join them, unless a net with a memory follows.

        Args:
            decided: Config of the encoder of the observation.
            space: Space of the observation, with only the fields that nets read.
        """
        assert isinstance(self.input_space, Dict)
        streams: dict[str | int, ModelConfig] = {OBS: decided}
        config = self.model_config
        for key, steps in self.past_view.steps.items():
            if key == PREV_OBS:
                past = stacked_space(space, steps)
                streams[key] = Node(past, config, f"observation_space[{key!r}]", self._ask_for_encoder).run()
            else:
                streams[key] = MLPEncoderConfig(input_space=self.input_space.spaces[key], hidden_layer_dims=())
        return MultiStreamEncoderConfig(
            encoders=streams,
            fusion_hidden_dims=() if config.is_recurrent else config.fusionnet_hiddens,
            fusion_activation=config.fusionnet_activation,
            init=Init.of("fcnet", config),
        )

    def _ask(self, node: Node[Any], hook: Callable[..., T], *args: Any) -> T:
        """Call ``hook`` with ``args`` to decide ``node`` of a decision tree, and return the result of the hook. The
        default implementation of the hook reads the node from ``self._node``."""
        outer, self._node = self._node, node
        try:
            return hook(*args)
        finally:
            self._node = outer

    def _ask_for_encoder(self, node: Node[ModelConfig]) -> ModelConfig:
        is_tokenizer = node.model_config.is_recurrent and not node.keys
        hook = self.get_tokenizer_config if is_tokenizer else self._get_encoder_config
        config = self._ask(node, hook, node.space, node.model_config)
        if not isinstance(config, ModelConfig):
            raise TypeError(
                f"{type(self).__name__}, encoder of {node.path}: expected a ModelConfig from its "
                f"hook, got {config!r}. Return one, such as MLPEncoderConfig(input_space=...), or "
                "super()'s; to return a module override build_encoder()."
            )
        return config

    def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
        """Return the encoder config for an observation space or a part of one; by default, that of the rules in
        ``encoder_rules``."""
        node = self._node or encoder_rules.root(observation_space, model_config, "observation_space")
        return encoder_rules.resolve(observation_space, model_config, node)

    def get_tokenizer_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
        """Return the config of the encoder of single steps before a recurrent net; by default, call
        :meth:`_get_encoder_config`."""
        return self._get_encoder_config(observation_space, model_config)

    def _ask_for_distribution(self, node: Node[type[Distribution]]) -> type[Distribution]:
        custom = self._custom_dist(node)
        if custom is None:
            found = self._ask(node, self._get_dist_cls_from_action_space, node.space)
            if found is not None and found is node.result:  # a rule chose and bound it
                return found
            where = f"{type(self).__name__}._get_dist_cls_from_action_space() for {node.path}"
        else:
            where = "model_config.custom_action_dist"
            found = distributions.find(custom, where)
        return _bound(found, node.space, where, node.path)

    def _custom_dist(self, node: Node[Any]) -> Any:
        """Return the distribution class, or its name, that the setting ``custom_action_dist`` gives for the action or
        its part at ``node`` of the decision tree; None if the setting gives none."""
        given = self.model_config.custom_action_dist
        return given.get(node.name) if isinstance(given, Mapping) else None if node.keys else given

    def _get_dist_cls_from_action_space(self, action_space: Space) -> type[Distribution]:
        """Return the distribution class for an action space or a part of one; by default, that of the rules
        in ``action_distribution_rules``."""
        node = self._node or action_distribution_rules.root(action_space, self.model_config, "action_space")
        node.result = action_distribution_rules.resolve(action_space, self.model_config, node)
        return node.result

    @refuses_foreign
    def get_action_dist_cls(self) -> type[Distribution]:
        """Return the class of the action distribution; ``from_logits(head_output)`` makes an instance."""
        return self.action_dist_cls

    @property
    def bound_dist_cls(self) -> type[Distribution]:
        """The distribution class of :meth:`get_action_dist_cls`, bound to the action space.

        Raises:
            TypeError: If the class does not derive from :class:`Distribution`, or lacks methods; lists the missing
                methods.
            ValueError: If the class does not support the action space.
        """
        found = self.get_action_dist_cls()
        if found is vars(self).get("action_dist_cls"):
            return found
        return _bound(found, self.action_space, f"{type(self).__name__}.get_action_dist_cls()", "action_space")

    # --- functions ----------------------------------------------------------------------------------------------------

    def for_function(self, function: str) -> Self:
        """Return a copy of this catalog with the settings that ``model_config.functions`` has for ``function``, such as
        "value"; return this catalog itself if they change nothing."""
        if function not in self._views:
            self._views[function] = self._make_view(function)
        return self._views[function]

    def _make_view(self, function: str) -> Self:
        """Return this catalog, or a copy with the settings of ``function``, for :meth:`for_function` to store. Run the
        decision tree for the copy if it needs a different encoder."""
        config = self._whole_config.for_function(function)
        own = self._has_own_trunk(function)
        alone = own and function in self.extra_outputs
        if alone:
            config = config.without_memory()  # outputs with their own trunk have no state
        trunk = self if own else self.for_function(self._trunk_name(function))._trunk
        is_critic = own and function == "value" and bool(config.critic_only_keys)
        reads_other = is_critic or (alone and self._sees_more)  # than the encoder of the first function
        if config == self.model_config and trunk is self and not reads_other:
            return self
        view = copy.copy(self)
        view.model_config, view._trunk = config, trunk
        if own and "normalize_observations" in self.setting_reasons and config.has_custom_model:
            view.model_config = config = dataclasses.replace(config, normalize_observations=False)
            view.setting_reasons = self.setting_reasons | {"normalize_observations": RAW}
        if alone:
            view.input_space = self.observation_space
        if reads_other or (own and config.encoder_settings() != self.model_config.encoder_settings()):
            view._trunk, view._is_critic = view, is_critic
            view.encoder_config = view._latent_dims = None
            view._decide()
        return view

    def _trunk_name(self, function: str) -> str:
        """Return the name of the function, such as "policy", whose encoder ``function`` uses; ``function`` itself if it
        has its own encoder."""
        first = self.functions[0] if self.functions else function
        if function == "value" and function in self.functions:
            return first if self.model_config.vf_share_layers else function
        trunk = self._whole_config.functions.get(function, {}).get("trunk", first)
        return function if trunk == "own" else trunk

    def _has_own_trunk(self, function: str) -> bool:
        return self._trunk_name(function) == function

    @property
    def extra_outputs(self) -> dict[str, int]:
        """Width of each additional output in ``model_config.functions``, by name."""
        given = self._whole_config.functions
        return {name: settings["output_dim"] for name, settings in given.items() if name not in self.functions}

    @property
    def action_head_dim(self) -> int:
        """Number of outputs of a head for the actions: the width of the action embeddings if the observation has
        vectors of the actions, else the number of inputs of the action distribution."""
        if (embeddings := self.build_action_embeddings()) is not None:
            return embeddings.width
        return self.bound_dist_cls.required_input_dim(self.action_space)

    def head_config(self, function: str, output_dim: int, output_init: Init | None = None) -> MLPHeadConfig:
        """Return the config of a head that reads the latents of the encoder of ``function``.

        The hidden layers follow the ``head_*`` settings.

        Args:
            function: Name, such as "policy". Settings of that name in ``model_config.functions`` take precedence.
            output_dim: Number of outputs.
            output_init: Initialisers of the output layer; None keeps torch's default.
        """
        view = self.for_function(function)
        config = view.model_config
        return MLPHeadConfig(
            input_dims=view.latent_dims,
            output_layer_dim=output_dim,
            hidden_layer_dims=config.head_fcnet_hiddens,
            hidden_layer_activation=config.head_fcnet_activation,
            hidden_layer_use_layernorm=config.head_fcnet_use_layernorm,
            init=Init.of("head_fcnet", config),
            output_init=output_init or Init(),
        )

    # --- building -----------------------------------------------------------------------------------------------------

    @property
    def decides_encoder(self) -> bool:
        """Whether :meth:`build_encoder` can build an encoder: a subclass overrides that method, or
        ``_determine_components_hook`` set an encoder config. The default hook sets none if no rule fits the space."""
        return self.has_custom_encoder or self.encoder_config is not None

    @property
    def has_custom_encoder(self) -> bool:
        """Whether :meth:`build_encoder` is overridden. If so, the width of the latent is unknown until it is built."""
        return type(self).build_encoder is not Catalog.build_encoder

    @property
    def latent_dims(self) -> tuple[int, ...]:
        """Shape of one latent, the input of heads.

        Raises:
            RuntimeError: If a custom encoder has not been built yet, or if no encoder was chosen.
        """
        if self._trunk is not self:
            return self._trunk.latent_dims
        if self._latent_dims is None:
            why, remedy = "no encoder was decided", _NO_ENCODER
            if self.decides_encoder:
                why = "the custom encoder has not been built"
                remedy = "Call build_trunk() or build_actor_critic_encoder() before building heads."
            raise RuntimeError(
                f"{type(self).__name__}.latent_dims: expected the width of the encoder's output, got None, since {why}"
                f". {remedy}"
            )
        return self._latent_dims

    @refuses_foreign
    def build_encoder(self) -> nn.Module:
        """Build a new encoder, with ``encoder(obs) → EncoderOutput(latent, state)``. An override may also return any
        other module, with ``module(obs) → latent``.

        Raises:
            RuntimeError: If ``_determine_components_hook`` set no encoder config.
            ValueError: If the tree has no rule for the observation space.
        """
        if self.encoder_config is None:
            if not self.decides_encoder:
                raise self._refusal or RuntimeError(
                    f"{type(self).__name__}.build_encoder(): expected a catalog that decided on an encoder, got one "
                    f"whose _determine_components_hook() left encoder_config None. {_NO_ENCODER}"
                )
            self.encoder_config = self._decide_encoder_config()
        encoder = mark(as_encoder(self.encoder_config.build()))
        warn_if_large(encoder, f"encoder of {short_space(self.observation_space)}")
        return encoder

    @refuses_foreign
    def build_actor_critic_encoder(self) -> ActorCriticEncoder:
        """Build the encoders of actor and critic with :meth:`build_encoder`: one encoder that they share, or two.

        The catalog calls each encoder once, with observations in which every number is the valid one closest to 0. This
        sets ``latent_dims``, so build heads after encoders.

        Raises:
            ValueError: If an encoder does not accept the observation, or if its output is not ``[B, D]`` or differs
                from the ``output_dims`` of its config. Also if two calls of an overridden :meth:`build_encoder` return
                the same net although ``vf_share_layers`` is False.
        """
        actor = self.build_trunk()
        if self.model_config.vf_share_layers:
            return ActorCriticEncoder(actor, None)
        critic = self._build_critic_trunk()
        theirs = {id(p) for p in critic.parameters()}
        if theirs and theirs == {id(p) for p in actor.parameters()}:
            raise ValueError(
                f"{type(self).__name__}.build_encoder(): expected a new encoder at each call, "
                "since vf_share_layers=False, got the same one twice. Make the net within the "
                "method, or set vf_share_layers=True."
            )
        return ActorCriticEncoder(actor, critic)

    def _build_critic_trunk(self) -> Encoder:
        """Build a new encoder for a critic that does not share the policy's, by calling :meth:`build_trunk`."""
        return self.for_function("value")._trunk.build_trunk()

    def build_extra_outputs(self) -> ExtraOutputs | None:
        """Build the additional outputs of ``model_config.functions``; return None if it names none.

        Raises:
            ValueError: As :meth:`build_actor_critic_encoder`; also if an output's own encoder has a state.
        """
        heads, encoders = {}, {}
        for name, width in self.extra_outputs.items():
            if self._has_own_trunk(name):
                encoders[name] = encoder = self.for_function(name)._trunk.build_trunk()
                if encoder.get_initial_state() is not None:
                    raise ValueError(
                        f"model_config.functions[{name!r}]['trunk']: expected an encoder without a state, since "
                        f"outputs with their own trunk have no memory, got {type(encoder).__name__}. Share the "
                        "trunk of a function, or give this one a stateless encoder."
                    )
            heads[name] = self.head_config(name, width).build()
        trunks = {name: self._trunk_name(name) for name in heads}
        raw = [name for name in encoders if self.reads_raw(name)]
        return ExtraOutputs(heads, trunks, encoders, raw) if heads else None

    def build_trunk(self) -> Encoder:
        """Build a new encoder and call it once, as :meth:`build_actor_critic_encoder` does with each encoder.

        This sets ``latent_dims``, so build heads after it. If the settings ask for a net with a memory and a custom
        encoder has none, the net follows that encoder.

        Raises:
            ValueError: As :meth:`build_actor_critic_encoder`. Also for a stateful custom encoder that is not a
                :class:`MemoryEncoder` together with use_lstm, use_gru or use_attention.
        """
        encoder = as_encoder(self.build_encoder())
        config, where = self.encoder_config, f"{type(self).__name__}.build_encoder()"
        declared = None if self.has_custom_encoder or config is None else tuple(config.output_dims)
        dims = check_encoder(encoder, self.input_space, where, declared)
        remembers = any(isinstance(part, MemoryEncoder) for part in encoder.modules())
        if self.has_custom_encoder and self.model_config.is_recurrent and not remembers:
            encoder = as_encoder(self._with_memory(BuiltEncoderConfig(net=encoder, width=dims[0])).build())
            dims = check_encoder(encoder, self.input_space, where)
        self._latent_dims = dims
        return mark(encoder)

    @property
    def _sees_more(self) -> bool:
        """Whether the encoder sees earlier steps in addition to the observation."""
        return self.input_space is not self.observation_space

    @property
    def _feeds_own_encoder(self) -> bool:
        """Whether a custom encoder reads the earlier steps itself. False if there is no custom encoder, if there are no
        earlier steps, or if a net with a memory follows."""
        is_own = self.has_custom_encoder or self.model_config.custom_model is not None
        return self._sees_more and is_own and not self.model_config.is_recurrent

    def reads_raw(self, function: str) -> bool:
        """Return whether the encoder of ``function``, such as "value", reads raw observations although the module
        standardises observations for the encoder of the first function."""
        return self.normalizes_observations and not self.for_function(function)._trunk.normalizes_observations

    @property
    def normalizes_observations(self) -> bool:
        """Whether the module standardises observations before encoding them."""
        return bool(self.model_config.normalize_observations) and self._can_normalize

    def build_observation_normalizer(self) -> ObservationNormalizer | None:
        """Build an :class:`ObservationNormalizer`; return None if observations are not standardised."""
        if not self.normalizes_observations:
            return None
        return ObservationNormalizer(self.observation_space, self._action_fields)

    def build_action_mask(self) -> ActionMask | None:
        """Build the module that masks forbidden actions; return None if the observation has no mask."""
        return copy.deepcopy(self.action_mask)

    def build_action_embeddings(self) -> ActionEmbeddings | None:
        """Build the module that computes logits from vectors of the actions; return None if the observation has no such
        vectors."""
        return copy.deepcopy(self.action_embeddings)

    def build_action_model(self) -> ActionModel | None:
        """Build the net that conditions later parts of an action on earlier ones; return None for independent parts."""
        dist_cls = self.bound_dist_cls
        if not issubclass(dist_cls, AutoregressiveDistribution):
            return None
        return MADE.of(dist_cls, self.action_space, self.model_config)

    def build_action_converter(self) -> ActionConverter:
        """Build the module that maps sampled actions into the action space."""
        return self.converter_node.run()

    # --- explaining ---------------------------------------------------------------------------------------------------

    def explain(self, format: Format = "text") -> str:
        """Describe how the nets are chosen: spaces, the rules that apply, settings, overrides, nets and their sizes.

        This builds the nets once, which sets ``latent_dims`` but leaves torch's random state as it was.
        ``RLModule.explain`` describes the nets of a module instead. ``format="mermaid"`` returns a flowchart instead of
        text.
        """
        return explain(self, format)

    def _explain_parts(self) -> dict[str, nn.Module]:
        """Build the nets that :meth:`explain` lists, by name; subclasses add their own. A shared net has several
        names."""
        return {"encoder": self.build_trunk()}

    def _explain_further_parts(self) -> dict[str, nn.Module]:
        """Build, by name, the nets that a module has in addition to encoder and heads; see :func:`further_nets`."""
        return further_nets(self.build_action_embeddings(), self.build_action_model(), self.build_extra_outputs())

    # --- checking -----------------------------------------------------------------------------------------------------

    def _check_model_config(self) -> None:
        config = self.model_config
        if config.normalize_observations and not self._can_normalize:
            raise ValueError(
                "model_config.normalize_observations: expected a Box of floats to standardise, "
                f"got {self.observation_space}. Leave it None, which standardises where that makes "
                "sense, or set it to False."
            )
        if keys := config.critic_only_keys:
            space, kept = self.observation_space, [*self._action_fields]
            known = [*space.spaces] if isinstance(space, Dict) else []
            wrong = [key for key in keys if key not in known or key in kept]
            if wrong or {*keys, *kept} == {*known}:
                expected = "fields of a Dict observation, but not all, and neither mask nor action vectors"
                left = [key for key in known if key not in kept]
                meant = closest(wrong[0], left) if wrong else " Leave one to the policy."
                remedy = f"Name some of {', '.join(left) or 'none'}.{meant}"
                raise ValueError(f"model_config.critic_only_keys: expected {expected}, got {keys} of {space}. {remedy}")
            if "value" not in self.functions or self.has_custom_encoder:
                what = "a catalog with a value function and without build_encoder() of its own"
                remedy = "Leave it out, or choose nets by _get_encoder_config(), which gets the fields that they read."
                raise ValueError(f"model_config.critic_only_keys: expected {what}, got {type(self).__name__}. {remedy}")

    def _check_paths(self, setting: str, given: Mapping[str, Any], root: Node[Any]) -> None:
        known = [node.name for node in root.walk() if node.keys]
        for path in given:
            if path not in known:
                remedy = (
                    f"Use one of {', '.join(known)}.{closest(path, known)}"
                    if known
                    else "No part is decided on its own here: the space has none, or one net reads the whole of it "
                    "(flatten_observations, custom_model, a hook)."
                )
                raise ValueError(
                    f"model_config.{setting}[{path!r}]: expected a path into {root.root}, got one "
                    f"that matches nothing in {root.space}. {remedy}"
                )

    def _check_critic(self) -> None:
        """Check that a policy can act without the fields ``critic_only_keys``.

        Raises:
            ValueError: If such fields are set and the critic shares the policy's encoder, has a memory or reads earlier
                observations, or if the policy has a ``custom_model``, because acting would need these fields.
        """
        config = self._whole_config
        if not config.critic_only_keys:
            return
        value, has_own_net = config.for_function("value"), self.model_config.custom_model is not None
        for is_wrong, what, remedy in (
            (value.is_recurrent, "a value function with a memory", _NO_MEMORY),
            (config.vf_share_layers, "shared layers", "Set vf_share_layers=False."),
            (PREV_OBS in self.past_view.steps, "earlier observations", "Leave one of them out."),
            (has_own_net, "a custom_model of the policy, which would read them", "Register an encoder instead."),
        ):
            if is_wrong:
                got = f"got {what}. {remedy}"
                raise ValueError(f"model_config.critic_only_keys: expected a critic with its own encoder, {got}")

    def _check_functions(self) -> None:
        """Check ``critic_only_keys`` and ``model_config.functions``.

        Raises:
            ValueError: As :meth:`_check_critic`. Also if an entry of ``functions`` sets "output_dim" or "trunk" for a
                function of the catalog, if an entry of another name sets no "output_dim" or an unknown "trunk", or if
                an entry has settings of an encoder that it shares with another function.
        """
        self._check_critic()
        for name, given in self._whole_config.functions.items():
            where, own = f"model_config.functions[{name!r}]", name in self.functions
            if own == ("output_dim" in given):
                known = " or ".join([*self.functions, "an output_dim"])
                expected = "no output_dim, which the algorithm knows" if own else known
                remedy = "Leave it out." if own else f"Say how many outputs it has.{closest(name, self.functions)}"
                raise ValueError(f"{where}: expected {expected}, got {dict(given)!r}. {remedy}")
            trunks = [*self.functions, "own"]
            if "trunk" in given and (own or given["trunk"] not in trunks):
                expected = "none: vf_share_layers and the algorithm decide" if own else f"one of {', '.join(trunks)}"
                remedy = "Leave it out." if own else "Choose whose encoder it shares, or 'own'."
                raise ValueError(f"{where}['trunk']: expected {expected}, got {given['trunk']!r}. {remedy}")
            read = self.further_settings if name == "value" else ()
            ignored = [
                setting for setting in given if setting in self._whole_config.encoder_settings().keys() - {*read}
            ]
            if ignored and not self._has_own_trunk(name):
                whose = self._trunk_name(name)
                remedy = f"Give it to {whose}, or leave it out." if own else "Set 'trunk': 'own'."
                if own and name == "value":
                    remedy = "Set vf_share_layers=False."
                raise ValueError(
                    f"{where}[{ignored[0]!r}]: expected settings of a head, since it sits on the "
                    f"encoder of {whose}, got a setting of an encoder. {remedy}"
                )
            self.for_function(name)  # deciding its encoder checks its settings


def further_nets(
    embeddings: ActionEmbeddings | None, action_model: ActionModel | None, extra_outputs: ExtraOutputs | None
) -> dict[str, nn.Module]:
    """Return, by name, the nets that a module has in addition to encoder and heads: the action embeddings and the
    action model if they have parameters, and the nets of the extra outputs."""
    nets = {"action embeddings": embeddings, "action model": action_model}
    found = {name: net for name, net in nets.items() if net is not None and [*net.parameters()]}
    return found if extra_outputs is None else found | extra_outputs.parts()


def _bound(found: Any, space: Space, where: str, path: str) -> type[Distribution]:
    """Check ``found``, and return it or its subclass for actions of ``space``; see :meth:`Distribution.bind`.

    Args:
        found: The class that a hook or a setting chose.
        space: Space of the actions.
        where: The hook or setting, for error messages.
        path: Name of ``space`` in error messages.

    Raises:
        TypeError: If ``found`` is not a subclass of :class:`Distribution`, or leaves methods of it abstract.
        ValueError: If the class does not support ``space``.
    """
    if not (isinstance(found, type) and issubclass(found, Distribution)):
        raise TypeError(
            f"{where}: expected a subclass of catalog.Distribution, got {found!r}. Derive yours "
            "from Distribution, or from one of its subclasses."
        )
    if missing := sorted(found.__abstractmethods__):
        expected, got = "a class with every method of catalog.Distribution", f"{found.__name__} without some"
        remedy = f"Write {', '.join(f'{name}()' for name in missing)}."
        raise TypeError(f"{where}: expected {expected}, got {got}. {remedy}")
    dist_cls = found.bind(space, path=path)
    dist_cls.required_input_dim(space)  # a custom class may refuse the space only here
    return dist_cls
