"""The Catalog, which chooses nets and distributions for spaces and settings, builds them, and explains the choice."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from gymnasium import Space, spaces
from torch import nn
from typing_extensions import Self

from catalog.actions.converters import ActionConverter
from catalog.actions.embeddings import ActionEmbeddings, action_fields
from catalog.actions.masks import ActionMask
from catalog.activations import Init
from catalog.base import Encoder, as_encoder, mark
from catalog.decision_tree import DecisionTree
from catalog.distributions.action_models import MADE, ActionModel
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.encoders.actor_critic import ActorCriticEncoder
from catalog.encoders.dense import warn_if_large
from catalog.encoders.extra_heads import ExtraOutputs
from catalog.encoders.memory import BuiltEncoderConfig, MemoryEncoder
from catalog.encoders.mlp import MLPHeadConfig
from catalog.encoders.preprocessing import ObservationNormalizer, can_normalize
from catalog.encoders.shape_checks import check_encoder
from catalog.explain.explain import Format, explain, further_nets, short_space
from catalog.explain.unread import RAW
from catalog.functions import Functions, check_critic_only, check_critic_only_keys
from catalog.hooks import refuses_foreign
from catalog.model_config import DefaultModelConfig
from catalog.past import PastView, input_space
from catalog.spaces import check_storable

_NO_ENCODER = "Call super()._determine_components_hook() too, set encoder_config, or make the nets in the module."


class Catalog(DecisionTree):
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
        check_storable(observation_space)
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
        self._functions = Functions(self.functions, self._whole_config)
        self.past_view = (past_view or PastView()).with_settings(self.model_config)
        self.input_space = input_space(observation_space, action_space, self.past_view)
        self._may_lack_encoder = may_lack_encoder
        self._latent_dims: tuple[int, ...] | None = None
        self._trunk = self
        self._views: dict[str, Self] = dict.fromkeys(self.functions[:1], self)
        self._decide()
        self._check_functions()

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        """Return, by name of each model setting in which None lets the catalog choose: the value that replaces None,
        and the reason for it that :meth:`explain` shows."""
        return {"vf_share_layers": (False, "the default"), "normalize_observations": (False, "the default")}

    def _normalizes_for_box_actions(self, algorithm: str, otherwise: str = "") -> tuple[bool, str]:
        """Return the value and reason of ``normalize_observations`` for an algorithm that standardises observations
        where actions are a Box, or otherwise for the reason ``otherwise``, if there is one."""
        if not self._can_normalize:
            return False, "since there are no float Boxes in it"
        is_box = isinstance(self.action_space, spaces.Box)
        if not (is_box or otherwise):
            return False, f"{algorithm}'s default for {type(self.action_space).__name__} actions"
        if self.has_custom_encoder or self.model_config.for_function("policy").has_custom_model:
            return False, RAW
        return True, f"{algorithm}'s default {'for Box actions' if is_box else otherwise}"

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
        has_trunk = self._functions.has_own_trunk(function)
        alone = has_trunk and function in self.extra_outputs
        if alone:
            config = config.without_memory()  # outputs with their own trunk have no state
        trunk = self if has_trunk else self.for_function(self._functions.trunk_of(function))._trunk
        is_critic = has_trunk and function == "value" and bool(config.critic_only_keys)
        reads_other = is_critic or (alone and self._sees_more)  # than the encoder of the first function
        if config == self.model_config and trunk is self and not reads_other:
            return self
        view = copy.copy(self)
        view.model_config, view._trunk = config, trunk
        if has_trunk and "normalize_observations" in self.setting_reasons and config.has_custom_model:
            view.model_config = config = dataclasses.replace(config, normalize_observations=False)
            view.setting_reasons = self.setting_reasons | {"normalize_observations": RAW}
        if alone:
            view.input_space = self.observation_space
        if reads_other or (has_trunk and config.encoder_settings() != self.model_config.encoder_settings()):
            view._trunk, view._is_critic = view, is_critic
            view.encoder_config = view._latent_dims = None
            view._decide()
        return view

    @property
    def extra_outputs(self) -> dict[str, int]:
        """Width of each additional output in ``model_config.functions``, by name."""
        return self._functions.extra_outputs

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
        theirs = {id(p) for p in critic.parameters() if p.requires_grad}
        if theirs and theirs == {id(p) for p in actor.parameters() if p.requires_grad}:
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
            if self._functions.has_own_trunk(name):
                encoders[name] = encoder = self.for_function(name)._trunk.build_trunk()
                if encoder.get_initial_state() is not None:
                    raise ValueError(
                        f"model_config.functions[{name!r}]['trunk']: expected an encoder without a state, since "
                        f"outputs with their own trunk have no memory, got {type(encoder).__name__}. Share the "
                        "trunk of a function, or give this one a stateless encoder."
                    )
            heads[name] = self.head_config(name, width).build()
        trunks = {name: self._functions.trunk_of(name) for name in heads}
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
        where = f"{type(self).__name__}.build_encoder()"
        encoder, config = as_encoder(self.build_encoder(), where), self.encoder_config
        declared = None if self.has_custom_encoder or config is None else tuple(config.output_dims)
        try:
            dims = check_encoder(encoder, self.input_space, where, declared)
        except ValueError:
            for node in [*self.encoder_node.walk()][:0:-1] if declared else []:  # the smallest parts first
                part = f"encoder of {node.path}"
                assert node.result is not None
                check_encoder(as_encoder(node.result.build(), part), node.space, part, tuple(node.result.output_dims))
            raise
        remembers = any(isinstance(part, MemoryEncoder) for part in encoder.modules())
        if self.has_custom_encoder and self.model_config.is_recurrent and not remembers:
            encoder = as_encoder(self._with_memory(BuiltEncoderConfig(net=encoder, width=dims[0])).build())
            dims = check_encoder(encoder, self.input_space, where)
        self._latent_dims = dims
        return mark(encoder)

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

    def _explain_actor_critic_encoder(self) -> dict[str, nn.Module]:
        """Build the encoders of actor and critic, by the names under which :meth:`explain` lists them."""
        encoder = self.build_actor_critic_encoder()
        actor = encoder.actor_encoder
        return {"actor encoder": actor, "critic encoder": encoder.critic_encoder or actor}

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
        if config.critic_only_keys:
            check_critic_only_keys(config.critic_only_keys, self.observation_space, self._action_fields)
            if "value" not in self.functions or self.has_custom_encoder:
                what = "a catalog with a value function and without build_encoder() of its own"
                remedy = "Leave it out, or choose nets by _get_encoder_config(), which gets the fields that they read."
                raise ValueError(f"model_config.critic_only_keys: expected {what}, got {type(self).__name__}. {remedy}")

    def _check_functions(self) -> None:
        """Check ``critic_only_keys`` and ``model_config.functions``.

        Raises:
            ValueError: As :meth:`Functions.check`. Also if a policy could not act without ``critic_only_keys``: if the
                critic shares its encoder, has a memory or reads earlier observations, or if the policy has a
                ``custom_model``.
        """
        if self._whole_config.critic_only_keys:
            has_own_net = self.model_config.custom_model is not None
            check_critic_only(self._whole_config, self.past_view, has_own_net)
        self._functions.check(self.further_settings)
        for name in self._whole_config.functions:
            self.for_function(name)  # deciding its encoder checks its settings
