"""The Catalog: the tree at construction, nets on demand, and every hook on its own."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from algorithms.ppo import PPOCatalog
from catalog import (
    Bernoulli,
    Catalog,
    Categorical,
    DefaultModelConfig,
    DiagGaussian,
    Distribution,
    Encoder,
    EncoderOutput,
    FreeLogStdMLPHeadConfig,
    MLPEncoderConfig,
    ModelConfig,
    MultiCategorical,
    ObservationNormalizer,
    SquashedGaussian,
)

VECTOR = spaces.Box(-1, 1, (4,))
TWO = spaces.Discrete(2)
TORQUES = spaces.Box(-2, 2, (3,))


def linear_catalog(*layers: nn.Module, **model_config: Any) -> Catalog:
    """A catalog whose encoder is the given layers."""

    class Injected(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Sequential(*layers)

    return Injected(VECTOR, TWO, model_config)


# the tree -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observation_space", "input_dim"),
    [(VECTOR, 4), (spaces.Discrete(7, start=3), 7), (spaces.MultiDiscrete([[2], [3]]), 5)],
    ids=str,
)
def test_observation_spaces_choose_encoders(observation_space: Space, input_dim: int) -> None:
    catalog = Catalog(observation_space, TWO, {"fcnet_hiddens": [16, 12]})
    assert isinstance(catalog.encoder_config, MLPEncoderConfig)
    assert catalog.encoder_config.input_dims == (input_dim,)
    assert catalog.latent_dims == (12,)
    assert catalog.build_actor_critic_encoder().actor_encoder is not catalog.build_encoder()


@pytest.mark.parametrize(
    ("action_space", "dist_cls", "width"),
    [
        (spaces.Discrete(5, start=2), Categorical, 5),
        (spaces.MultiDiscrete([2, 3]), MultiCategorical, 5),
        (TORQUES, DiagGaussian, 6),
        (spaces.Box(-1, 1, (2, 3)), DiagGaussian, 12),
        (spaces.Box(-1, 1, ()), DiagGaussian, 2),
    ],
    ids=str,
)
def test_action_spaces_choose_distributions(action_space: Space, dist_cls: type[Distribution], width: int) -> None:
    chosen = Catalog(VECTOR, action_space).get_action_dist_cls()
    assert issubclass(chosen, dist_cls)
    assert chosen.required_input_dim(action_space) == width
    assert chosen.from_logits(torch.zeros(4, width)).sample().shape == (4, *(action_space.shape or ()))


def test_encode_head_sample_step_by_hand() -> None:
    catalog = Catalog(VECTOR, TWO)
    head = nn.Linear(catalog.latent_dims[0], 2)
    latent = catalog.build_encoder()(torch.zeros(1, 4)).latent
    action = catalog.get_action_dist_cls().from_logits(head(latent)).sample()
    assert TWO.contains(catalog.build_action_converter()(action)[0].numpy())


def test_a_misspelt_setting_stops_the_catalog() -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'free_log_std'\?"):
        Catalog(VECTOR, TWO, {"free_logstd": True})


def test_open_settings_are_closed_and_given_ones_kept() -> None:
    assert Catalog(VECTOR, TWO).model_config.vf_share_layers is False
    given = DefaultModelConfig(vf_share_layers=True, normalize_observations=True)
    assert PPOCatalog(VECTOR, TWO, given).model_config == given
    assert PPOCatalog(VECTOR, TWO, given).setting_reasons == {}


@pytest.mark.parametrize(
    ("observation_space", "action_space", "given", "expected"),
    [
        (VECTOR, TORQUES, None, True),
        (VECTOR, TWO, None, False),
        (VECTOR, TWO, True, True),
        (VECTOR, TORQUES, False, False),
        (TWO, TORQUES, None, False),
    ],
    ids=["box", "discrete", "asked for", "declined", "nothing to standardise"],
)
def test_ppo_standardises_float_observations_of_box_actions(
    observation_space: Space, action_space: Space, given: bool | None, expected: bool
) -> None:
    catalog = PPOCatalog(observation_space, action_space, {"normalize_observations": given})
    assert isinstance(catalog.build_observation_normalizer(), ObservationNormalizer) is expected
    assert catalog.normalizes_observations is expected


def test_a_custom_encoder_gets_raw_observations_unless_asked() -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Linear(4, 5)

    assert Mine(VECTOR, TORQUES).build_observation_normalizer() is None
    assert Mine(VECTOR, TORQUES, {"normalize_observations": True}).build_observation_normalizer() is not None


# hooks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "calls"), [(True, 1), (False, 2)])
def test_build_encoder_alone_injects_any_module(shared: bool, calls: int) -> None:
    class Mine(PPOCatalog):
        called = 0

        def build_encoder(self) -> nn.Module:
            self.called += 1
            return nn.Sequential(nn.Linear(4, 10), nn.ReLU())

    catalog = Mine(VECTOR, TORQUES, {"vf_share_layers": shared})
    with pytest.raises(RuntimeError, match="latent_dims"):
        _ = catalog.latent_dims
    encoder = catalog.build_actor_critic_encoder()
    assert catalog.called == calls
    assert catalog.latent_dims == (10,)
    out = encoder(torch.randn(6, 4))
    assert out.actor.shape == (6, 10)
    assert out.critic is not None
    assert torch.equal(out.actor, out.critic) is shared
    assert catalog.build_pi_head()(out.actor).shape == (6, 6)
    assert catalog.build_vf_head()(out.critic).shape == (6, 1)


@pytest.mark.parametrize(("space", "width"), [(spaces.Box(0, 1, (3, 8, 8)), 5), (VECTOR, 64)], ids=["mine", "default"])
def test_build_encoder_may_fall_through_to_the_tree(space: spaces.Box, width: int) -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            if self.observation_space.shape == (3, 8, 8):
                return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
            return super().build_encoder()

    catalog = Mine(space, TWO)
    out = catalog.build_actor_critic_encoder()(torch.zeros((2, *space.shape)))
    assert out.actor.shape == (2, width)
    assert catalog.latent_dims == (width,)


def test_falling_through_with_a_space_the_tree_does_not_know_raises_then() -> None:
    class Mine(Catalog):
        def build_encoder(self) -> nn.Module:
            return super().build_encoder()

    catalog = Mine(spaces.Box(-1, 1, (1, 1, 1, 2, 3)), TWO)
    with pytest.raises(ValueError, match="observation_space: expected a space with a branch"):
        catalog.build_encoder()


class BagConfig(ModelConfig):
    """An encoder config of a user's own, with a list for its dims."""

    @property
    def output_dims(self) -> Any:
        return [6]

    def build(self) -> nn.Module:
        return nn.Linear(4, 6)


def test_an_encoder_config_may_be_overridden_for_some_spaces() -> None:
    class Mine(PPOCatalog):
        def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
            if observation_space.shape == (4,):
                return BagConfig()
            return super()._get_encoder_config(observation_space, model_config)

    catalog = Mine(VECTOR, TWO)
    assert catalog.latent_dims == (6,)
    assert catalog.build_actor_critic_encoder()(torch.zeros(3, 4)).actor.shape == (3, 6)
    assert catalog.build_pi_head()(torch.zeros(3, 6)).shape == (3, 2)
    assert Mine(spaces.Discrete(3), TWO).latent_dims == (64,)


def test_a_distribution_may_be_overridden_for_some_spaces() -> None:
    class Mine(PPOCatalog):
        def _get_dist_cls_from_action_space(self, action_space: Space) -> type[Distribution]:
            if isinstance(action_space, spaces.Box):
                return SquashedGaussian
            return super()._get_dist_cls_from_action_space(action_space)

    catalog = Mine(VECTOR, TORQUES)
    assert catalog.get_action_dist_cls() is SquashedGaussian
    assert catalog.build_pi_head()(torch.zeros(2, 64)).shape == (2, 6)
    assert isinstance(catalog.encoder_config, MLPEncoderConfig)
    assert Mine(VECTOR, TWO).get_action_dist_cls() is Categorical


def test_get_action_dist_cls_may_be_overridden() -> None:
    class Mine(Categorical):
        @staticmethod
        def required_input_dim(space: Space) -> int:
            return 9

    class MyCatalog(PPOCatalog):
        def get_action_dist_cls(self) -> type[Distribution]:
            return Mine

    assert MyCatalog(VECTOR, TWO).build_pi_head()(torch.zeros(2, 64)).shape == (2, 9)


SHAPED = [
    (spaces.Box(-1, 1, ()), DiagGaussian),
    (spaces.Box(-1, 1, (2, 3)), SquashedGaussian),
    (spaces.MultiBinary((2, 2)), Bernoulli),
]


@pytest.mark.parametrize("hook", ["_get_dist_cls_from_action_space", "get_action_dist_cls", "action_dist_cls"])
@pytest.mark.parametrize(("space", "dist_cls"), SHAPED, ids=str)
def test_a_distribution_of_a_hook_is_bound_to_the_space(space: Space, dist_cls: type[Distribution], hook: str) -> None:
    def decide(self: Catalog, *args: Any) -> None:
        Catalog._determine_components_hook(self)
        self.action_dist_cls = dist_cls

    hooks = {"_determine_components_hook": decide} if hook == "action_dist_cls" else {hook: lambda *args: dist_cls}
    catalog = type("Mine", (PPOCatalog,), hooks)(VECTOR, space)
    inputs = torch.zeros(5, catalog.action_head_dim)
    assert catalog.bound_dist_cls.from_logits(inputs).sample().shape == (5, *(space.shape or ()))
    assert catalog.bound_dist_cls is PPOCatalog(VECTOR, space, {"custom_action_dist": dist_cls}).bound_dist_cls


def test_a_distribution_of_a_hook_for_another_space_is_refused() -> None:
    class Mine(PPOCatalog):
        def get_action_dist_cls(self) -> type[Distribution]:
            return DiagGaussian

    with pytest.raises(ValueError, match=r"action_space: expected a Box of floats, for DiagGaussian, got Discrete"):
        Mine(VECTOR, TWO)


@pytest.mark.parametrize("hook", ["_get_dist_cls_from_action_space", "get_action_dist_cls"])
def test_a_hook_that_returns_no_distribution_is_named(hook: str) -> None:
    with pytest.raises(TypeError, match=rf"Mine\.{hook}\(\).*: expected a subclass of catalog\.Distribution, got None"):
        type("Mine", (PPOCatalog,), {hook: (lambda self, space: None) if "space" in hook else lambda self: None})(
            VECTOR, TWO
        )


def test_a_catalog_may_decide_on_an_encoder_only() -> None:
    class Encodes(Catalog):
        def _determine_components_hook(self) -> None:
            self.encoder_config = MLPEncoderConfig(input_dims=(4,), hidden_layer_dims=(5,))

        def get_action_dist_cls(self) -> type[Distribution]:
            return Categorical

    catalog = Encodes(VECTOR, TWO)
    assert catalog.build_encoder()(torch.zeros(2, 4)).latent.shape == (2, 5)
    assert catalog.bound_dist_cls is Categorical


def test_a_hook_that_decides_nothing_is_named() -> None:
    class Forgetful(PPOCatalog):
        def _determine_components_hook(self) -> None:
            self.width = 64

    with pytest.raises(TypeError, match=r"Forgetful\._determine_components_hook\(\): .* Call super\(\)\._determine"):
        Forgetful(VECTOR, TWO).get_action_dist_cls()


def test_a_distribution_without_its_methods_is_refused_and_these_are_named() -> None:
    class Half(Distribution):
        def logp(self, actions: Any) -> Tensor:
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"custom_action_dist: expected .* got Half .* Write entropy\(\), kl\(\)"):
        PPOCatalog(VECTOR, TWO, {"custom_action_dist": Half})


def test_heads_may_be_overridden_one_by_one() -> None:
    class MyPolicy(PPOCatalog):
        def build_pi_head(self) -> nn.Module:
            return nn.Linear(self.latent_dims[0], 2, bias=False)

    class MyValue(PPOCatalog):
        def build_vf_head(self) -> nn.Module:
            return nn.Linear(self.latent_dims[0], 1, bias=False)

    def count(net: nn.Module) -> int:
        return sum(p.numel() for p in net.parameters())

    # 64·2 (+ 2 biases) for the policy, 64 (+ 1) for the value
    assert [count(MyPolicy(VECTOR, TWO).build_pi_head()), count(MyPolicy(VECTOR, TWO).build_vf_head())] == [128, 65]
    assert [count(MyValue(VECTOR, TWO).build_pi_head()), count(MyValue(VECTOR, TWO).build_vf_head())] == [130, 64]


def test_a_catalog_may_decide_on_a_distribution_only() -> None:
    class NoEncoder(Catalog):
        def _determine_components_hook(self) -> None:
            self.action_dist_cls = self._get_dist_cls_from_action_space(self.action_space)

    catalog = NoEncoder(spaces.Text(4), TWO)
    assert catalog.get_action_dist_cls() is Categorical
    assert catalog.encoder_config is None


@pytest.mark.parametrize("memory", [False, True])
def test_the_hook_may_put_another_encoder_config_in_the_place_of_the_tree_s(memory: bool) -> None:
    class Mine(PPOCatalog):
        def _determine_components_hook(self) -> None:
            super()._determine_components_hook()
            self.encoder_config = MLPEncoderConfig(
                input_dims=(4,), hidden_layer_dims=(self.model_config.fcnet_hiddens[0],)
            )

    catalog = Mine(
        VECTOR, TWO, {"fcnet_hiddens": [5, 6], "use_lstm": memory, "functions": {"value": {"fcnet_hiddens": [7]}}}
    )
    assert (catalog.latent_dims, catalog.for_function("value").latent_dims) == ((5,), (7,))
    text = re.sub(r"\s+", " ", catalog.explain())
    for label, width in (("encoder", 5), ("for value", 7)):
        decided = f"{label} Mine._determine_components_hook(); the table alone says: Box of rank 0 or 1 → MLP"
        config = f"config MLPEncoderConfig(input_dims=(4,), hidden_layer_dims=({width},))"
        assert f"{decided} {config} latent ({width},)" in text
    assert "followed by" not in text


# probing --------------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Returns latents of a given shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, obs: Tensor) -> Tensor:
        return torch.zeros(self.shape)


@pytest.mark.parametrize("shape", [(2,), (5,), (2, 5, 2), (3, 5)], ids=str)
def test_latents_of_another_rank_or_batch_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"Injected\.build_encoder\(\): expected latents of shape \(2, D\)") as error:
        linear_catalog(Net(*shape)).build_actor_critic_encoder()
    assert str(shape) in str(error.value)


class Cut(nn.Linear):
    """A layer whose output has no gradient."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).detach()


def test_an_encoder_that_gets_no_gradient_is_warned_of() -> None:
    with pytest.warns(
        UserWarning, match=r"Injected\.build_encoder\(\): expected latents with a gradient.*no loss of heads"
    ):
        linear_catalog(Cut(4, 3)).build_trunk()
    linear_catalog(nn.Linear(4, 3).requires_grad_(False)).build_trunk()  # is meant to stay as it is


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
def test_latents_of_a_dtype_that_no_head_takes_raise(dtype: torch.dtype) -> None:
    class Other(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).to(dtype)

    with pytest.raises(ValueError, match=rf"expected latents of .* got shape .* of {dtype}\. .*float32 as heads take"):
        linear_catalog(Other(4, 3)).build_actor_critic_encoder()


def test_rows_that_are_put_side_by_side_are_no_latent() -> None:
    with pytest.raises(ValueError, match=r"expected latents of shape \(2, D\).*got shape \(1, 6\)"):
        linear_catalog(nn.Linear(4, 3), nn.Flatten(0), nn.Unflatten(0, (1, -1))).build_actor_critic_encoder()


class Remembers(Encoder):
    """Begins with the state it is given, and hands on what it saw last."""

    def __init__(self, initial: Any) -> None:
        super().__init__()
        self.initial = initial

    def get_initial_state(self) -> Any:
        return self.initial

    def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(obs, obs[-1])


class Remembering(PPOCatalog):
    """Its encoder has the state that is set last."""

    initial: Any = None

    def build_encoder(self) -> nn.Module:
        return Remembers(self.initial)


@pytest.mark.parametrize(
    "initial", [np.zeros(4), 0.0, {"a": torch.zeros(4), "b": None}], ids=["array", "float", "None"]
)
def test_an_initial_state_is_of_tensors(initial: Any) -> None:
    catalog = Remembering(VECTOR, TWO)
    catalog.initial = torch.zeros(4)
    assert catalog.build_actor_critic_encoder().actor_is_stateful
    catalog.initial = initial
    with pytest.raises(
        ValueError, match=r"Remembering\.build_encoder\(\): expected a tensor, .* from get_initial_state"
    ):
        catalog.build_actor_critic_encoder()


class SeesMore(Encoder):
    """Remembers what it saw, was done and given."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space, self.cell = space, nn.Linear(6, 6)

    def get_initial_state(self) -> Tensor:
        return torch.zeros(6)

    def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
        seen = torch.cat([obs["obs"], obs["prev_action"].unsqueeze(-1), obs["prev_reward"].unsqueeze(-1)], -1)
        return EncoderOutput(self.cell(seen), seen[-1])


class FromHook(PPOCatalog):
    def build_encoder(self) -> nn.Module:
        return SeesMore(self.input_space)


@pytest.mark.parametrize("kind", [PPOCatalog, FromHook], ids=["custom_model", "build_encoder"])
def test_a_memory_of_ones_own_may_see_previous_actions_and_rewards(kind: type[PPOCatalog]) -> None:
    own: dict[str, Any] = {"output_dim": 3, "trunk": "own", "custom_model": None}
    settings: dict[str, Any] = {"custom_model": SeesMore, "functions": {"x": own}} if kind is PPOCatalog else {}
    catalog = kind(VECTOR, TWO, {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, **settings})
    encoder = catalog.build_actor_critic_encoder()
    assert encoder.actor_encoder.space == catalog.input_space
    assert isinstance(catalog.input_space, spaces.Dict)
    assert list(catalog.input_space.spaces) == ["obs", "prev_action", "prev_reward"]
    assert catalog.latent_dims == (6,)
    extra = catalog.build_extra_outputs()
    if extra is not None:  # which has no memory, and reads the env's observation
        assert extra(torch.zeros(2, 4), {"policy": torch.zeros(2, 6)})["x"].shape == (2, 3)


@pytest.mark.parametrize("dims", [(7,), (6, 1), ()], ids=str)
def test_output_dims_that_are_not_those_of_the_net_raise(dims: tuple[int, ...]) -> None:
    class Wrong(BagConfig):
        output_dims = dims

    class Mine(Catalog):
        def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
            return Wrong()

    with pytest.raises(ValueError, match=r"expected latents of shape \(2, .*got shape \(2, 6\)"):
        Mine(VECTOR, TWO).build_actor_critic_encoder()


@pytest.mark.parametrize("settings", [{}, {"fusionnet_hiddens": ()}, {"use_lstm": True}], ids=str)
def test_a_part_that_is_wider_than_its_output_dims_is_named(settings: dict[str, Any]) -> None:
    class Wrong(BagConfig):
        output_dims = (5,)

    class Mine(Catalog):
        def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
            is_arm = observation_space == VECTOR
            return Wrong() if is_arm else super()._get_encoder_config(observation_space, model_config)

    space = spaces.Dict(robot=spaces.Dict(arm=VECTOR, grip=TWO), goal=spaces.Discrete(3))
    expected = (
        r"encoder of observation_space\['robot'\]\['arm'\]: expected latents of shape \(2, 5\).*got shape \(2, 6\)"
    )
    with pytest.raises(ValueError, match=expected):
        Mine(space, TWO, settings).build_actor_critic_encoder()


def test_output_dims_that_are_a_number_raise() -> None:
    class Wrong(BagConfig):
        output_dims = 6

    class Mine(Catalog):
        def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
            return Wrong()

    with pytest.raises(TypeError, match=r"Wrong\.output_dims: expected a tuple, .* got 6\. Write \(6,\)\."):
        Mine(VECTOR, TWO)


def test_heads_before_a_custom_encoder_raise() -> None:
    with pytest.raises(
        RuntimeError, match=r"Injected\.latent_dims: .*Call build_trunk\(\) or build_actor_critic_encoder\(\) before"
    ):
        linear_catalog(nn.Linear(4, 3)).build_pi_head()  # type: ignore[attr-defined]


def test_probing_leaves_batch_norm_and_mode_alone() -> None:
    norm = nn.BatchNorm1d(4)
    encoder = linear_catalog(norm, nn.Linear(4, 3), vf_share_layers=True).build_actor_critic_encoder()
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 0
    assert encoder.training
    assert norm.training


def test_probing_leaves_buffers_alone_that_change_in_eval_mode() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, input: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(input)

    net = Counting()
    linear_catalog(net, vf_share_layers=True).build_actor_critic_encoder()
    assert net.calls == 0


# PPO's heads ----------------------------------------------------------------------------------------------------------


def first_outputs(catalog: PPOCatalog, scale: float) -> Tensor:
    encoder, head = catalog.build_actor_critic_encoder(), catalog.build_pi_head()
    obs = scale * torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return head(encoder(obs).actor)


@pytest.mark.parametrize("hiddens", [(), (32,)])
def test_the_first_policy_is_near_uniform_whatever_the_observation(hiddens: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    catalog = PPOCatalog(VECTOR, spaces.Discrete(4), {"head_fcnet_hiddens": hiddens})
    # a latent of 64 tanh units is at most 8 long, through hidden layers of gain √2; times 0.01: |logit| ≤ 0.08·√2
    probs = first_outputs(catalog, 1000).softmax(-1)
    assert (probs - 0.25).abs().max() < 0.05


def test_the_first_gaussian_is_near_standard_whatever_the_observation() -> None:
    torch.manual_seed(0)
    for free in (True, False):
        outputs = first_outputs(PPOCatalog(VECTOR, TORQUES, {"free_log_std": free}), 1000)
        assert outputs.abs().max() < 0.12


def test_the_value_head_starts_with_gain_one_and_no_bias() -> None:
    linear = next(m for m in PPOCatalog(VECTOR, TWO).build_vf_head().modules() if isinstance(m, nn.Linear))
    assert linear.weight.norm().item() == pytest.approx(1, rel=1e-5)
    assert linear.bias.tolist() == [0]


def test_free_log_std_chooses_the_head() -> None:
    free = PPOCatalog(VECTOR, TORQUES).build_pi_head()
    assert type(free) is type(FreeLogStdMLPHeadConfig(input_dims=(64,), output_layer_dim=6).build())
    bound = PPOCatalog(VECTOR, TORQUES, {"free_log_std": False, "log_std_clip_param": 0.5}).build_pi_head()
    latents = 1e6 * torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    assert bound(latents)[:, 3:].abs().max() == 0.5
    assert bound(latents)[:, :3].abs().max() > 0.5


def test_a_categorical_head_is_never_clipped() -> None:
    head = PPOCatalog(VECTOR, TWO, {"free_log_std": False, "log_std_clip_param": 1e-3}).build_pi_head()
    assert head(torch.full((1, 64), 1e4)).abs().max() > 1e-3


def test_hidden_layers_of_the_heads_follow_the_settings() -> None:
    catalog = PPOCatalog(VECTOR, TWO, {"head_fcnet_hiddens": [5, 3]})
    for head, out in ((catalog.build_pi_head(), 2), (catalog.build_vf_head(), 1)):
        widths = [m.out_features for m in head.modules() if isinstance(m, nn.Linear)]
        assert widths == [5, 3, out]


def test_a_sample_of_the_first_policy_steps_the_env() -> None:
    space = spaces.Box(np.float32([-3, 0]), np.float32([1, math.inf]))
    catalog = PPOCatalog(VECTOR, space)
    encoder, head = catalog.build_actor_critic_encoder(), catalog.build_pi_head()
    with torch.no_grad():
        dist = catalog.get_action_dist_cls().from_logits(head(encoder(torch.randn(64, 4)).actor))
        actions = catalog.build_action_converter()(dist.sample())
    assert all(space.contains(action) for action in actions.numpy())


def test_standardising_what_is_no_float_box_is_refused_if_asked_for() -> None:
    assert not Catalog(spaces.Discrete(3), TWO).normalizes_observations
    with pytest.raises(ValueError, match=r"normalize_observations: expected a Box of floats.*got Discrete\(3\)"):
        Catalog(spaces.Discrete(3), TWO, {"normalize_observations": True})


def test_a_distribution_for_a_path_that_is_not_there_is_refused() -> None:
    action_space = spaces.Dict(move=TORQUES, jump=TWO)
    with pytest.raises(ValueError, match=r"custom_action_dist\['mvoe'\].*Did you mean 'move'\?"):
        Catalog(VECTOR, action_space, {"custom_action_dist": {"mvoe": "SquashedGaussian"}})
    chosen = Catalog(VECTOR, action_space, {"custom_action_dist": {"move": "SquashedGaussian"}})
    names = [node.result.__name__ for node in chosen.action_node.walk() if node.result is not None]
    assert names == ["MultiDistribution", "SquashedGaussian", "Categorical"]


@pytest.mark.parametrize("build", ["build_encoder", "build_actor_critic_encoder", "build_pi_head", "build_vf_head"])
def test_the_framework_is_not_asked_for(build: str) -> None:
    with pytest.raises(TypeError, match=rf"{build}\(\): .*got framework=\. Leave it out"):
        getattr(PPOCatalog(VECTOR, TWO), build)(framework="torch")


def test_one_net_for_two_encoders_is_refused() -> None:
    net = nn.Linear(4, 5)

    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return net

    with pytest.raises(
        ValueError, match=r"Mine\.build_encoder\(\): expected a new encoder at each call.*same one twice"
    ):
        Mine(VECTOR, TWO).build_actor_critic_encoder()
    assert Mine(VECTOR, TWO, {"vf_share_layers": True}).build_actor_critic_encoder().shared
    net.requires_grad_(False)  # what is not trained may have two places
    assert not Mine(VECTOR, TWO).build_actor_critic_encoder().shared


@pytest.mark.parametrize("wrong", [Catalog, {"fcnet_hiddens": [8]}, None], ids=["class", "dict", "None"])
def test_what_is_no_space_is_said_to_be_none(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"Catalog\(observation_space=\): expected a gymnasium\.Space"):
        Catalog(wrong, TWO)
    with pytest.raises(TypeError, match=r"Catalog\(action_space=\): expected a gymnasium\.Space"):
        Catalog(VECTOR, wrong)


def test_a_mask_that_is_asked_for_and_not_there_is_missed() -> None:
    observation_space = spaces.Dict(x=VECTOR, action_mask=spaces.MultiBinary(2))
    with pytest.raises(ValueError, match=r"action_mask_key: expected a field.*'action_mask'.*got 'mask'"):
        Catalog(observation_space, TWO, {"action_mask_key": "mask"})
    with pytest.raises(ValueError, match=r"action_mask_key: expected a field of the observation \(it has none\)"):
        Catalog(VECTOR, TWO, {"action_mask_key": "mask"})


def test_an_error_of_any_kind_inside_a_net_is_explained() -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm2d(8))

    with pytest.raises(
        ValueError, match=r"build_encoder\(\): expected a module that takes observations.*expected 4D input"
    ):
        Mine(VECTOR, TWO).build_actor_critic_encoder()


def test_an_encoder_with_a_memory_of_its_own_takes_no_other() -> None:
    class Memory(Encoder):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(4, 3)

        def get_initial_state(self) -> Tensor:
            return torch.zeros(3)

        def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
            latent = self.dense(obs)
            return EncoderOutput(latent, latent[-1])

    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return Memory()

    class Wrapped(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return super().build_encoder()

    assert Mine(VECTOR, TWO).build_actor_critic_encoder().actor_is_stateful
    with pytest.raises(ValueError, match=r"tokenizer_config: expected an encoder without a state.*got Memory"):
        Mine(VECTOR, TWO, {"use_gru": True}).build_actor_critic_encoder()
    assert Wrapped(VECTOR, TWO, {"use_gru": True}).build_actor_critic_encoder().actor_is_stateful
