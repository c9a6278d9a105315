"""The decision tree of a catalog: which encoder config and which distribution class the spaces and settings lead to."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gymnasium import Space
from gymnasium.spaces import Dict

from catalog.actions.converters import ActionConverter, action_converter_rules, check_reach
from catalog.actions.embeddings import ActionEmbeddings, Field, find_action_embeddings
from catalog.actions.masks import ActionMask, find_action_mask, observation_space_without
from catalog.activations import Init
from catalog.base import ModelConfig, encoder_rules
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution, action_distribution_rules, checked_class
from catalog.encoders.attention import attention_encoder_config
from catalog.encoders.mlp import MLPEncoderConfig
from catalog.encoders.multi_stream import MultiStreamEncoderConfig
from catalog.encoders.recurrent import recurrent_encoder_config
from catalog.hooks import Hooks, refuses_foreign
from catalog.model_config import DefaultModelConfig
from catalog.past import OBS, PREV_OBS, PastView, stacked_space
from catalog.registry import distributions
from catalog.rules import Node

T = TypeVar("T")


class DecisionTree(Hooks, ABC):
    """The decisions of a :class:`Catalog`, which documents the attributes and the hooks."""

    observation_space: Space
    action_space: Space
    model_config: DefaultModelConfig
    past_view: PastView
    input_space: Space
    encoder_node: Node[ModelConfig]
    action_node: Node[type[Distribution]]
    converter_node: Node[ActionConverter]
    action_dist_cls: type[Distribution]
    encoder_config: ModelConfig | None = None
    action_mask: ActionMask | None = None
    action_embeddings: ActionEmbeddings | None = None
    _mask_field: Field | None
    _embeddings_field: Field | None
    _may_lack_encoder: bool
    _latent_dims: tuple[int, ...] | None
    _is_critic = False
    _tree_config: ModelConfig | None = None  # the encoder config that the tree chose, before a hook replaced it
    _refusal: ValueError | None = None  # why the tree chose none
    _node: Node[Any] | None = None  # the node that a hook is asked about

    @property
    @abstractmethod
    def has_custom_encoder(self) -> bool:
        """Whether ``build_encoder`` is overridden. If so, the width of the latent is unknown until it is built."""

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
            self.action_dist_cls = checked_class(chosen, self.action_space, where, "action_space")
        if self.encoder_config is not None and not self.has_custom_encoder:
            dims = self.encoder_config.output_dims
            if isinstance(dims, int):
                where = f"{type(self.encoder_config).__name__}.output_dims"
                raise TypeError(f"{where}: expected a tuple, the shape of one latent, got {dims}. Write ({dims},).")
            self._latent_dims = tuple(dims)

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
            self.action_node.check_paths("custom_action_dist", config.custom_action_dist)
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
        self.encoder_node.check_paths("leaf_overrides", config.leaf_overrides)
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
        return checked_class(found, node.space, where, node.path)

    def _custom_dist(self, node: Node[type[Distribution]]) -> str | type[Distribution] | None:
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
        if "action_dist_cls" not in vars(self):
            raise TypeError(
                f"{type(self).__name__}._determine_components_hook(): expected one that sets self.action_dist_cls, got "
                "none. Call super()._determine_components_hook() first, or set it."
            )
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
        return checked_class(found, self.action_space, f"{type(self).__name__}.get_action_dist_cls()", "action_space")

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
