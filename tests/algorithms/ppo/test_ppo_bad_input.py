"""What cannot be built: one error each, which says where, what was expected, what came and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from algorithms.ppo import PPOCatalog, PPOModule
from catalog import (
    Categorical,
    DiagGaussian,
    Encoder,
    EncoderOutput,
    MLPEncoderConfig,
    MLPHeadConfig,
)
from catalog.base import Tree

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
THREE = spaces.Discrete(3)
NESTED = spaces.Dict({"camera": spaces.Dict({"rgb": IMAGE}), "state": spaces.Tuple([VECTOR, THREE])})
ROBOT = spaces.Dict({"arm": spaces.Dict({"grip": THREE, "force": spaces.Box(-1, 1, (2,), np.float32)})})
WIDTHS: Any = [64, 64]
LSTM: dict[str, Any] = {"use_lstm": True}


def module(
    observation: Space = VECTOR,
    action: Space = THREE,
    hooks: dict[str, Callable[..., Any]] | None = None,
    **config: Any,
) -> PPOModule:
    """A module with these settings, and these methods of its catalog overridden."""
    return PPOModule(
        observation_space=observation,
        action_space=action,
        model_config=config,
        catalog_class=type("Mine", (PPOCatalog,), hooks or {}),
    )


def one(setting: str, value: Any) -> dict[str, Any]:
    return {setting: value}


def masked(mask: Space, action: Space) -> PPOModule:
    return module(spaces.Dict({"x": VECTOR, "action_mask": mask}), action)


def deep(space: Space) -> spaces.Dict:
    return spaces.Dict({"a": spaces.Tuple([THREE, spaces.Dict({"b": space})])})


class Remembering(Encoder):
    """A stateful encoder that hands on ``state``, by default as it should."""

    def __init__(self, state: Callable[[Tensor], Any] = lambda latent: latent[-1], whole: bool = True) -> None:
        super().__init__()
        self.linear, self.state, self.whole = nn.Linear(3, 4), state, whole

    def get_initial_state(self) -> Tensor:
        return torch.zeros(4)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> Any:
        latent = self.linear(obs)
        return EncoderOutput(latent, self.state(latent)) if self.whole else latent


def remembering(space: Space) -> Remembering:
    return Remembering()


def encoder_of(net: Any) -> PPOModule:
    return module(hooks={"build_encoder": lambda catalog: net()})


CASES: dict[str, tuple[str, Callable[[], Any], type[Exception]]] = {}
"""Name → what the error says (… is any text), what is asked for, and the kind of error."""


def refused(name: str, says: str, ask: Callable[[], Any], error: type[Exception] = ValueError) -> None:
    CASES[name] = says, ask, error


# --- spaces ---

refused(
    "an observation space without a rule, deep inside",
    "observation_space['a'][1]['b']: expected a space with a branch in the encoder table…, got Text(…Register "
    "one with @encoder_rules.register(Text, ...)…",
    lambda: module(deep(spaces.Text(3))),
)
refused(
    "the same, flattened",
    "observation_space['a'][1]['b']: expected a space of arrays (Box, Discrete…, got Sequence(…Turn it into "
    "arrays with an environment wrapper.",
    lambda: module(deep(spaces.Sequence(THREE)), flatten_observations=True),
)
refused(
    "an action space without a rule, deep inside",
    "action_space['a'][1]['b']: expected a space with a branch in the action distribution table…, got "
    "Graph(…Register one with @action_distribution_rules.register(Graph, ...)…",
    lambda: module(action=deep(spaces.Graph(VECTOR, None))),
)
refused(
    "an empty part of an observation",
    "observation_space['a'][1]['b']: expected a space with at least one entry, got Box([], [], (0,), float32)."
    " Leave it out of the observation…",
    lambda: module(deep(spaces.Box(-1, 1, (0,)))),
)
refused(
    "an empty part of an action",
    "action_space['a'][1]['b']: expected a Dict or Tuple with at least one part…, got Tuple(). Take the empty "
    "part out with an env wrapper.",
    lambda: module(action=deep(spaces.Tuple([]))),
)
refused(
    "integers without bounds as actions",
    "action_space['a'][1]['b']: expected at most 10000 choices in all…, got Box(-32768, 32767, (1,), int16). "
    "Narrow the bounds…",
    lambda: module(action=deep(spaces.Box(-(2**15), 2**15 - 1, (1,), np.int16))),
)

# --- images ---

refused(
    "a filter larger than the image",
    "observation_space['camera']['rgb']: expected convolutions that fit an image of 8×8, got an unpadded "
    "kernel of 9×9 in layer 2, where 8×8 is left. Choose smaller kernels or strides or 'same' padding in "
    "conv_filters…",
    lambda: module(NESTED, conv_filters=[[4, 3, 1], [4, 9, 1, "valid"]]),
)
refused(
    "a net made for larger images",
    "observation_space: expected convolutions that fit an image of 8×8, got an unpadded kernel of 4×4 in layer"
    " 2…or conv_filters=None.",
    lambda: module(IMAGE, conv_filters="nature"),
)

# --- heads ---

refused(
    "a head on a latent that is no vector",
    "MLPHeadConfig.input_dims: expected one positive width…, got (3, 4). Flatten what comes before…",
    lambda: MLPHeadConfig(input_dims=(3, 4), output_layer_dim=2),
)
refused(
    "a policy head on another latent",
    "Mine.build_pi_head(): expected a module that takes latents of shape (1, 64), got RuntimeError: mat1 and "
    "mat2 shapes cannot be multiplied…Give its first layer as many inputs…latent_dims.",
    lambda: module(hooks={"build_pi_head": lambda catalog: nn.Linear(9, 3)}),
)
refused(
    "a policy head of another width",
    "Mine.build_pi_head(): expected outputs of shape (1, 3) for one latent, got shape (1, 5)…the catalog's "
    "action_head_dim for actions…",
    lambda: module(hooks={"build_pi_head": lambda catalog: nn.Linear(64, 5)}),
)
refused(
    "a value head of another width",
    "Mine.build_vf_head(): expected outputs of shape (1, 1) for one latent, got shape (1, 2)…, 1 for a value.",
    lambda: module(hooks={"build_vf_head": lambda catalog: nn.Linear(64, 2)}, **LSTM),
)
refused(
    "a head that is no module",
    "Mine.build_vf_head(): expected an nn.Module from latents to outputs, got None. Return a module…",
    lambda: module(hooks={"build_vf_head": lambda catalog: None}),
    TypeError,
)

# --- names of functions, activations, initialisers ---

for setting in ("fcnet", "conv", "fusionnet", "head_fcnet"):
    refused(
        f"an unknown {setting}_activation",
        f"model_config.{setting}_activation: expected …torch.nn activation that keeps the shape, got 'rleu'…"
        "Did you mean 'relu'?",
        lambda setting=setting: module(**one(f"{setting}_activation", "rleu")),
    )
for setting in ("fcnet_kernel", "fcnet_bias", "conv_kernel", "lstm_bias", "head_fcnet_kernel"):
    refused(
        f"an unknown {setting}_initializer",
        f"model_config.{setting}_initializer: expected …in-place function of torch.nn.init, got 'zeros'…"
        "Did you mean 'zeros_'?",
        lambda setting=setting: module(**one(f"{setting}_initializer", "zeros")),
    )
refused(
    "an activation that changes the shape",
    "model_config.fcnet_activation: expected …that keeps the shape, got 'glu'. Use for example 'tanh'…",
    lambda: module(fcnet_activation="glu"),
)
refused(
    "keywords that an initialiser does not take",
    "model_config.fcnet_kernel_initializer: expected …takes the keywords {'gian': 2}, got 'orthogonal_', which says…"
    "Choose another kernel initializer or other keywords for it.",
    lambda: module(fcnet_kernel_initializer_kwargs={"gian": 2}),
)
refused(
    "an initialiser of matrices for biases of a recurrent net",
    "model_config.lstm_bias_initializer: expected a function for shape (64,)…, got 'orthogonal_', which says…"
    "Choose another bias initializer…",
    lambda: module(lstm_bias_initializer="orthogonal_", **LSTM),
)
refused(
    "an unknown activation in a part",
    "model_config.leaf_overrides['state.0'], fcnet_activation: expected …the name or class of a torch.nn "
    "activation…, got 'tnah'…Did you mean 'tanh'?",
    lambda: module(NESTED, leaf_overrides={"state.0": {"fcnet_activation": "tnah"}}),
)
refused(
    "an unknown setting",
    "model_config['fcnet_hidens']: expected a model setting, got the unknown name 'fcnet_hidens'…Did you mean "
    "'fcnet_hiddens'? Put an option of your own net or module into custom_model_config={'fcnet_hidens': ...}.",
    lambda: module(fcnet_hidens=[3]),
)
refused(
    "settings of another kind",
    "model_config: expected a DefaultModelConfig or a dict, got [64, 64]. Pass DefaultModelConfig(…",
    lambda: PPOCatalog(VECTOR, THREE, WIDTHS),
    TypeError,
)

# --- paths ---

refused(
    "an override that matches nothing",
    "model_config.leaf_overrides['camera.rbg']: expected a path into observation_space, got one that matches "
    "nothing in Dict(…Did you mean 'camera.rgb'?",
    lambda: module(NESTED, leaf_overrides={"camera.rbg": {"conv_dense_dim": 8}}),
)
refused(
    "an override of an observation without parts",
    "model_config.leaf_overrides['state']: expected a path into observation_space, got one that matches "
    "nothing in Box(…No part is decided on its own here: the space has none…",
    lambda: module(leaf_overrides={"state": {"fcnet_hiddens": [8]}}),
)
refused(
    "an override below a part that is flattened",
    "model_config.leaf_overrides['camera.rgb']: expected a path into observation_space, got one that matches "
    "nothing…Use one of camera, state, state.0, state.1.…",
    lambda: module(
        NESTED, leaf_overrides={"camera": {"flatten_observations": True}, "camera.rgb": {"conv_dense_dim": 8}}
    ),
)
refused(
    "an override for one function that matches nothing",
    "model_config.leaf_overrides['camra']: expected a path into observation_space, got one that matches "
    "nothing…Did you mean 'camera'?",
    lambda: module(NESTED, functions={"value": {"leaf_overrides": {"camra": {"fcnet_hiddens": [8]}}}}),
)
refused(
    "an override with an override in it",
    "model_config.leaf_overrides['camera']: expected settings of encoders, got 'leaf_overrides'. It "
    "cannot differ by part or function: set it for the whole module.",
    lambda: module(NESTED, leaf_overrides={"camera": {"leaf_overrides": {"camera.rgb": {"conv_dense_dim": 8}}}}),
)
refused(
    "a recurrent net for one part",
    "model_config.leaf_overrides['camera']: expected settings of encoders, got 'use_lstm'. It cannot…",
    lambda: module(NESTED, leaf_overrides={"camera": LSTM}),
)
refused(
    "a distribution for a part that is not there",
    "model_config.custom_action_dist['arm.gripp']: expected a path into action_space, got one that matches "
    "nothing in Dict(…Did you mean 'arm.grip'?",
    lambda: module(action=ROBOT, custom_action_dist={"arm.gripp": "Categorical"}),
)

# --- functions ---

refused(
    "a function that is misspelt",
    "model_config.functions['vlaue']: expected policy or value or an output_dim, got {'fcnet_hiddens': "
    "[8]}…Did you mean 'value'?",
    lambda: module(functions={"vlaue": {"fcnet_hiddens": [8]}}),
)
refused(
    "an output of a function that has its own",
    "model_config.functions['value']: expected no output_dim, which the algorithm knows, got {'output_dim': "
    "2}. Leave it out.",
    lambda: module(functions={"value": {"output_dim": 2}}),
)
refused(
    "a trunk that is not there",
    "model_config.functions['more']['trunk']: expected one of policy, value, own, got 'critic'. Choose whose "
    "encoder it shares, or 'own'.",
    lambda: module(functions={"more": {"output_dim": 2, "trunk": "critic"}}),
)
refused(
    "a module's setting for one function",
    "model_config.functions['value']: expected settings of encoders and heads, got 'normalize_values'. It cannot"
    " differ by part or function: set it for the whole module.",
    lambda: module(functions={"value": {"normalize_values": False}}),
)
refused(
    "another encoder for a value that shares the policy's",
    "model_config.functions['value']['fcnet_hiddens']: expected settings of a head, since it sits on the "
    "encoder of policy, got a setting of an encoder. Set vf_share_layers=False.",
    lambda: module(functions={"value": {"fcnet_hiddens": [8]}}, vf_share_layers=True),
)
refused(
    "another encoder for an output on the policy's",
    "model_config.functions['more']['fcnet_hiddens']: expected settings of a head, since it sits on the "
    "encoder of value, got a setting of an encoder. Set 'trunk': 'own'.",
    lambda: module(
        functions={"more": {"output_dim": 2, "trunk": "value", "fcnet_hiddens": [8]}}, vf_share_layers=False
    ),
)

# --- distributions ---

refused(
    "a distribution for another space",
    "action_space: expected a Box of floats, for DiagGaussian, got Discrete(3). Leave the choice to the "
    "Catalog, or name a class that fits in custom_action_dist.",
    lambda: module(custom_action_dist=DiagGaussian),
)
refused(
    "a distribution for another space in a part",
    "action_space['arm']['force']: expected a Discrete, for Categorical, got Box(-1.0, 1.0, (2,), float32). "
    "Leave the choice to the Catalog…",
    lambda: module(action=ROBOT, custom_action_dist={"arm.force": "Categorical"}),
)
refused(
    "a squashed distribution over an unbounded part",
    "action_space['arm']: expected a Box of floats with finite bounds on all sides, for SquashedGaussian, got "
    "Box(-inf, inf, (2,), float32). Give it finite bounds by an env wrapper; SAC and PPO can use DiagGaussian instead.",
    lambda: module(
        action=spaces.Dict({"arm": spaces.Box(-np.inf, np.inf, (2,))}), custom_action_dist={"arm": "SquashedGaussian"}
    ),
)
refused(
    "an unknown distribution",
    "model_config.custom_action_dist: expected …a registered distribution (…, got the unknown name "
    "'Categorial'…Did you mean 'Categorical'?",
    lambda: module(custom_action_dist="Categorial"),
)
refused(
    "a distribution that is none",
    "model_config.custom_action_dist: expected a subclass of catalog.Distribution, got <class "
    "'torch.nn.modules.linear.Linear'>. Derive yours from Distribution…",
    lambda: module(custom_action_dist=nn.Linear),
    TypeError,
)
refused(
    "a hook that gives no distribution for a part",
    "Mine._get_dist_cls_from_action_space() for action_space['arm']['grip']: expected a subclass of "
    "catalog.Distribution, got None. Derive yours from Distribution…",
    lambda: module(
        action=ROBOT,
        hooks={
            "_get_dist_cls_from_action_space": lambda catalog, space: (
                None if space is THREE else PPOCatalog._get_dist_cls_from_action_space(catalog, space)
            )
        },
    ),
    TypeError,
)
refused(
    "a hook that gives a distribution instead of its class",
    "Mine.get_action_dist_cls(): expected a subclass of catalog.Distribution, got "
    "<catalog.distributions.categorical.Categorical object…Derive yours from Distribution…",
    lambda: module(hooks={"get_action_dist_cls": lambda catalog: Categorical(torch.zeros(3))}),
    TypeError,
)

# --- masks ---

refused(
    "a mask of another size",
    "observation_space['action_mask']: expected 3 entries, one for each choice in Discrete(3), got "
    "MultiBinary(4). Resize it, or set action_mask_key=None…",
    lambda: masked(spaces.MultiBinary(4), THREE),
)
refused(
    "a mask of another size for a part",
    "observation_space['action_mask']['arm']['grip']: expected 3 entries, one for each choice in Discrete(3), "
    "got MultiBinary(2). Resize it, or set action_mask_key=None…",
    lambda: masked(spaces.Dict({"arm": spaces.Dict({"grip": spaces.MultiBinary(2)})}), ROBOT),
)
refused(
    "a mask for a distribution with other inputs than one per choice",
    "observation_space['action_mask']: expected an action space with choices to forbid…, got Discrete(3) with "
    "Doubled. Leave the mask out of the observation, or set action_mask_key=None…",
    lambda: module(
        spaces.Dict({"x": VECTOR, "action_mask": spaces.MultiBinary(3)}),
        hooks={"get_action_dist_cls": lambda catalog: Doubled},
    ),
)


class Doubled(Categorical):
    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        return 2 * super().required_input_dim(space)


# --- memory ---

refused(
    "two recurrent nets at once",
    "model_config.use_gru: expected False, since use_lstm is True, got True. Set it…",
    lambda: module(use_lstm=True, use_gru=True),
)
refused(
    "an encoder with memory before a recurrent net",
    "RecurrentEncoderConfig.tokenizer_config: expected an encoder without a state, whose latents have one "
    "dim, got Remembering…leave out use_lstm, use_gru and use_attention for a net with a state.",
    lambda: module(custom_model=remembering, **LSTM),
)
refused(
    "an encoder with memory in a part",
    "observation_space['x']: expected an encoder without a state, got Remembering. Put the net with a "
    "memory behind all parts, with use_lstm, use_gru or use_attention.",
    lambda: module(spaces.Dict({"x": VECTOR, "y": THREE}), leaf_overrides={"x": {"custom_model": remembering}}),
)
refused(
    "an encoder that forgets to hand its state on",
    "Mine.build_encoder(): expected a next state shaped like get_initial_state() with a batch dim, ((3, 4), "
    "torch.float32), got None. Return the states after the last row…",
    lambda: encoder_of(lambda: Remembering(lambda latent: None)),
)
refused(
    "an encoder whose state changes its shape",
    "Mine.build_encoder(): expected a next state shaped like get_initial_state() with a batch dim, ((3, 4), "
    "torch.float32), got ((2, 3, 4), torch.float32). Return the states after the last row…",
    lambda: encoder_of(lambda: Remembering(lambda latent: latent)),
)
refused(
    "an Encoder that returns a bare latent",
    "Mine.build_encoder(): expected one tensor of latents, got Tensor…an Encoder returns EncoderOutput(latent, state).",
    lambda: encoder_of(lambda: Remembering(whole=False)),
)

# --- encoders of your own ---

refused(
    "an encoder that is no module",
    "Mine.build_encoder(): expected an nn.Module from batched observations to latents, got 7. Return a module…",
    lambda: encoder_of(lambda: 7),
    TypeError,
)
refused(
    "an encoder for other observations",
    "Mine.build_encoder(): expected a module that takes observations of shape (2, ...) of Box(-1.0, 1.0, (3,),"
    " float32), got RuntimeError: mat1 and mat2 shapes cannot be multiplied…Samples come as batches of "
    "tensors…",
    lambda: encoder_of(lambda: nn.Linear(5, 4)),
)
refused(
    "an encoder of doubles",
    "Mine.build_encoder(): expected a module that takes observations…, got …Float and Double. Samples come as "
    "batches of tensors…",
    lambda: encoder_of(lambda: nn.Linear(3, 4).double()),
)
refused(
    "an encoder that returns several things",
    "Mine.build_encoder(): expected one tensor of latents, got an EncoderOutput of tuple. Return the latent…",
    lambda: encoder_of(lambda: nn.GRU(3, 4)),
)
refused(
    "an encoder that drops the batch",
    "Mine.build_encoder(): expected latents of shape (2, D) for observations of shape (2, ...), got shape (6,) "
    "of torch.float32. Flatten the output, keep the batch dim…",
    lambda: encoder_of(lambda: nn.Flatten(0)),
)
refused(
    "a hook that gives a module for a config",
    "Mine, encoder of observation_space['state']: expected a ModelConfig from its hook, got "
    "Linear(in_features=3, out_features=4, bias=True)…to return a module override build_encoder().",
    lambda: module(
        NESTED,
        hooks={
            "_get_encoder_config": lambda catalog, space, config: (
                nn.Linear(3, 4)
                if isinstance(space, spaces.Tuple)
                else PPOCatalog._get_encoder_config(catalog, space, config)
            )
        },
    ),
    TypeError,
)
refused(
    "a config for other observations",
    "MLPEncoder: expected an input of shape (..., 5) and torch.float32, got shape (2, 3) and torch.float32. "
    "Give it what it was built for…",
    lambda: module(
        hooks={"_get_encoder_config": lambda catalog, space, config: MLPEncoderConfig(input_dims=(5,))},
    ),
)
refused(
    "a custom model that takes other arguments",
    "custom_model at observation_space: expected a class or function that can be called as (observation_space,"
    " depth=...), got …got an unexpected keyword argument 'depth'. Change its arguments, or "
    "custom_model_config.",
    lambda: module(custom_model=remembering, custom_model_config={"depth": 3}),
)
refused(
    "a custom model that makes no module",
    "custom_model at observation_space['state'][1]: expected an nn.Module from batched observations to "
    "latents, got 3. Return a module…",
    lambda: module(NESTED, leaf_overrides={"state.1": {"custom_model": lambda space: 3}}),
    TypeError,
)
refused(
    "a class without a signature as custom model",
    "custom_model at observation_space: expected a class or function that can be called as "
    "(observation_space), got <class 'dict'>…Change its arguments…",
    lambda: module(custom_model=dict),
)


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told_with_place_expectation_and_remedy(name: str) -> None:
    says, ask, error = CASES[name]
    with pytest.raises(error) as caught:
        ask()
    pattern = ".*".join(map(re.escape, says.split("…")))
    assert re.fullmatch(pattern, str(caught.value), re.DOTALL), str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def test_what_is_right_is_not_refused() -> None:
    """So that what is refused above is refused for its mistake alone."""
    assert encoder_of(Remembering).is_stateful()
    assert module(custom_model=remembering).is_stateful()
    assert module(NESTED, ROBOT, leaf_overrides={"camera.rgb": {"conv_dense_dim": 8}}, **LSTM).is_stateful()
    assert module(hooks={"build_pi_head": lambda catalog: nn.Linear(64, 3)}, **LSTM).is_stateful()
    assert module(action=ROBOT, custom_action_dist={"arm.grip": "Categorical"}).action_mask is None
    assert masked(spaces.Dict({"arm": spaces.Dict({"grip": spaces.MultiBinary(3)})}), ROBOT).action_mask is not None
