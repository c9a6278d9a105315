"""PPO's catalog and module: what is built for which settings, and what each forward pass gives."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from algorithms.dqn import DQNCatalog
from algorithms.ppo import PPOCatalog, PPOModule
from catalog import Catalog, ObservationNormalizer
from catalog.encoders.cnn import CNNEncoder
from rlmodule import Columns, RLModuleSpec, ValueFunctionAPI

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(4),
    "multi": spaces.MultiDiscrete([2, 3]),
    "gaussian": spaces.Box(-1, 1, (2,), np.float32),
}
WIDTHS = {"discrete": 4, "multi": 5, "gaussian": 4}


def build(
    action_space: spaces.Space = ACTIONS["discrete"],
    model_config: Mapping[str, Any] | None = None,
    *,
    observation_space: spaces.Space = BOX,
    inference_only: bool = False,
    catalog_class: type[PPOCatalog] = PPOCatalog,
) -> PPOModule:
    model = {"fcnet_hiddens": [8, 8], **(model_config or {})}
    spec = RLModuleSpec(PPOModule, observation_space, action_space, model, catalog_class, inference_only)
    module = spec.build()
    assert isinstance(module, PPOModule)
    return module


def output_layer(head: nn.Module) -> nn.Linear:
    return [m for m in head.modules() if isinstance(m, nn.Linear)][-1]


@pytest.mark.parametrize(("settings", "number"), [({}, 2), ({"vf_share_layers": True}, 1)])
def test_images_have_an_encoder_per_function_unless_they_share_one(settings: dict[str, Any], number: int) -> None:
    module = build(model_config=settings, observation_space=spaces.Box(0, 255, (12, 12, 3), np.uint8))
    assert sum(isinstance(part, CNNEncoder) for part in module.modules()) == number


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kind", list(ACTIONS))
@pytest.mark.parametrize("leading", [(5,), (7, 5)])
def test_forward_passes(kind: str, share: bool, leading: tuple[int, ...]) -> None:
    module = build(ACTIONS[kind], {"vf_share_layers": share})
    batch = {Columns.OBS: torch.randn(*leading, 3)}
    trained = module.forward_train(batch)
    for acting in (module.forward_inference(batch), module.forward_exploration(batch)):
        assert set(acting) == {Columns.ACTION_DIST_INPUTS}
        assert acting[Columns.ACTION_DIST_INPUTS].shape == (*leading, WIDTHS[kind])
        assert not acting[Columns.ACTION_DIST_INPUTS].requires_grad
        torch.testing.assert_close(acting[Columns.ACTION_DIST_INPUTS], trained[Columns.ACTION_DIST_INPUTS].detach())
    values = module.compute_values(batch)
    assert values.shape == leading
    torch.testing.assert_close(module.compute_values(batch, trained[Columns.EMBEDDINGS]), values)
    assert set(batch) == {Columns.OBS}


def test_embeddings_spare_the_encoder() -> None:
    module = build()
    embeddings = module.forward_train({Columns.OBS: torch.randn(2, 3)})[Columns.EMBEDDINGS]
    module.encoder = nn.Identity()  # type: ignore[assignment]
    assert module.compute_values({}, embeddings).shape == (2,)


@pytest.mark.parametrize("share", [False, True])
def test_who_trains_the_actor(share: bool) -> None:
    module = build(model_config={"vf_share_layers": share})
    assert (module.encoder.critic_encoder is None) is share
    module.compute_values({Columns.OBS: torch.randn(2, 3)}).sum().backward()
    touched = [p.grad is not None for p in module.encoder.actor_encoder.parameters()]
    assert touched == [share] * len(touched)
    assert all(p.grad is None for p in module.pi_head.parameters())


def test_none_means_separate_encoders() -> None:
    assert not build().encoder.shared


def test_free_log_std_does_not_depend_on_the_state() -> None:
    for free in (True, False):
        module = build(ACTIONS["gaussian"], {"free_log_std": free})
        nn.init.normal_(output_layer(module.pi_head).weight)
        log_std = module.forward_inference({Columns.OBS: torch.randn(6, 3)})[Columns.ACTION_DIST_INPUTS][:, 2:]
        assert torch.equal(log_std[0], log_std[1]) is free
        assert (not log_std.any()) is free  # one standard deviation to begin with


def test_state_dependent_log_std_is_bounded() -> None:
    module = build(ACTIONS["gaussian"], {"free_log_std": False, "log_std_clip_param": 0.5})
    nn.init.normal_(output_layer(module.pi_head).weight, std=100.0)
    inputs = module.forward_inference({Columns.OBS: torch.randn(6, 3)})[Columns.ACTION_DIST_INPUTS]
    assert inputs[:, 2:].abs().max() == 0.5
    assert inputs[:, :2].abs().max() > 0.5


@pytest.mark.parametrize("kind", list(ACTIONS))
def test_the_first_policy_hardly_depends_on_the_observation(kind: str) -> None:
    inputs = build(ACTIONS[kind]).forward_inference({Columns.OBS: torch.randn(50, 3)})[Columns.ACTION_DIST_INPUTS]
    assert inputs.abs().max() < 0.1
    assert inputs.std(0).max() > 0


def test_values_are_in_units_of_reward() -> None:
    module = build()
    batch = {Columns.OBS: torch.randn(4, 3)}
    raw = module.compute_values(batch)
    assert module.value_scale() == 1
    targets = torch.tensor([90.0, 110.0])
    module.update_value_statistics(targets)
    torch.testing.assert_close(module.compute_values(batch), 100 + 10 * raw)
    assert module.value_scale().item() == pytest.approx(10)
    plain = build(model_config={"normalize_values": False})
    before = plain.compute_values(batch)
    plain.update_value_statistics(targets)
    assert torch.equal(plain.compute_values(batch), before)
    assert plain.value_scale() == 1
    assert plain.value_normalizer is None


def test_value_statistics_follow_a_moving_target() -> None:
    module = build()
    for level in (0.0,) * 5 + (100.0,) * 30:
        module.update_value_statistics(level + torch.tensor([-1.0, 1.0]))
    assert module.value_normalizer is not None
    assert 90 < module.value_normalizer.mean.item() < 100


@pytest.mark.parametrize("kind", list(ACTIONS))
@pytest.mark.parametrize("asked", [None, True, False])
def test_who_gets_standardised_observations(kind: str, asked: bool | None) -> None:
    module = build(ACTIONS[kind], {"normalize_observations": asked})
    expected = kind == "gaussian" if asked is None else asked
    assert isinstance(module.observation_normalizer, ObservationNormalizer) is expected
    before = module.get_state()
    module.update_observation_statistics(torch.randn(10, 3) * 7 + 3)
    assert before.keys() == module.get_state().keys()


class Seeing(nn.Module):
    """An encoder that keeps what it saw."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        self.seen = torch.empty(0)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        self.seen = obs
        return obs


@pytest.mark.parametrize(
    "model_config",
    [
        {"custom_model": Seeing},
        {"leaf_overrides": {"a": {"custom_model": Seeing}}},
        {"functions": {"policy": {"custom_model": Seeing}}},
        {"functions": {"value": {"leaf_overrides": {"a": {"custom_model": Seeing}}}}},
        {"functions": {"more": {"output_dim": 2, "trunk": "own", "custom_model": Seeing}}},
    ],
    ids=str,
)
def test_a_custom_model_gets_what_the_env_gives_wherever_it_stands(model_config: dict[str, Any]) -> None:
    nested = "leaf_overrides" in str(model_config)
    module = build(ACTIONS["gaussian"], model_config, observation_space=spaces.Dict(a=BOX) if nested else BOX)
    obs = torch.full((2, 3), 50.0)
    batch = {Columns.OBS: {"a": obs} if nested else obs}
    module.forward_train(batch)
    module.compute_values(batch)
    nets = [net for net in module.modules() if isinstance(net, Seeing)]
    assert nets
    assert all(torch.equal(net.seen, obs) for net in nets)
    assert "False, since a custom encoder gets raw observations" in " ".join(module.catalog.explain().split())


@pytest.mark.parametrize("function", ["value", "more"])
def test_a_custom_model_of_another_function_leaves_the_policy_its_standardised_observations(function: str) -> None:
    more = {"output_dim": 2, "trunk": "own"} if function == "more" else {}
    module = build(ACTIONS["gaussian"], {"functions": {function: {"custom_model": Seeing, **more}}})
    obs = torch.randn(50, 3) * 10 + 5
    module.update_observation_statistics(obs)
    batch = {Columns.OBS: obs}
    seen: list[torch.Tensor] = []
    module.encoder.actor_encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    module.forward_train(batch)
    torch.testing.assert_close(seen[0].mean(0), torch.zeros(3), atol=0.1, rtol=0)
    assert all(torch.equal(net.seen, obs) for net in module.modules() if isinstance(net, Seeing))
    text = " ".join(module.explain().split())
    assert "standardised by running mean and std: normalize_observations = True, PPO's default for Box" in text
    assert "standardised no: normalize_observations = False, since a custom encoder gets raw observations" in text


@pytest.mark.parametrize("catalog_class", [Catalog, DQNCatalog])
def test_a_catalog_without_its_heads_is_refused(catalog_class: type[Catalog]) -> None:
    spec = RLModuleSpec(PPOModule, BOX, ACTIONS["discrete"], {}, catalog_class)
    got = (
        rf"^catalog of PPOModule: expected a PPOCatalog, got {catalog_class.__name__}\. Derive yours from PPOCatalog\.$"
    )
    with pytest.raises(TypeError, match=got):
        spec.build()


def test_standardised_observations_reach_both_functions() -> None:
    module = build(model_config={"normalize_observations": True})
    sample = torch.randn(200, 3)
    near, far = {Columns.OBS: sample}, {Columns.OBS: 1000 * sample + 500}
    fresh = module.forward_train(near)[Columns.ACTION_DIST_INPUTS], module.compute_values(near)
    module.update_observation_statistics(far[Columns.OBS])
    moments = sample.mean(0), sample.std(0, unbiased=False)
    reference = {Columns.OBS: (sample - moments[0]) / moments[1]}
    again = build(model_config={"normalize_observations": True})
    again.set_state(
        {
            name: value if "moments" not in name else again.get_state()[name]
            for name, value in module.get_state().items()
        }
    )
    for got, want, old in (
        (module.forward_train(far)[Columns.ACTION_DIST_INPUTS], again.forward_train(reference), fresh[0]),
        (module.compute_values(far), {Columns.ACTION_DIST_INPUTS: again.compute_values(reference)}, fresh[1]),
    ):
        torch.testing.assert_close(got, want[Columns.ACTION_DIST_INPUTS], rtol=1e-3, atol=1e-4)
        assert not torch.allclose(got, old, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("share", [False, True])
def test_inference_only_copies_drop_the_critic(share: bool) -> None:
    full = build(ACTIONS["gaussian"], {"vf_share_layers": share})
    copy = build(ACTIONS["gaussian"], {"vf_share_layers": share}, inference_only=True)
    assert not [name for name in copy.get_state() if "vf_head" in name or "critic" in name or "value_norm" in name]
    assert set(copy.get_state()) == set(full.get_state(inference_only=True))
    copy.set_state(full.get_state())
    batch = {Columns.OBS: torch.randn(4, 3)}
    torch.testing.assert_close(
        copy.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS],
        full.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS],
    )
    with pytest.raises(RuntimeError, match="inference-only"):
        copy.forward_train(batch)


def test_a_copy_that_shares_tensors_follows_every_change() -> None:
    full = build(ACTIONS["gaussian"])
    copy = build(ACTIONS["gaussian"], inference_only=True)
    copy.share_tensors_of(full)
    batch = {Columns.OBS: torch.randn(4, 3)}
    full.update_observation_statistics(torch.randn(20, 3) + 5)
    with torch.no_grad():
        output_layer(full.pi_head).weight.add_(1.0)
        full.pi_head.log_std.add_(1.0)
    torch.testing.assert_close(
        copy.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS],
        full.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS],
    )


def test_heads_get_their_hidden_layers() -> None:
    module = build(model_config={"head_fcnet_hiddens": [6]})
    for head, out in ((module.pi_head, 4), (module.vf_head, 1)):
        widths = [(m.in_features, m.out_features) for m in head.modules() if isinstance(m, nn.Linear)]
        assert widths == [(8, 6), (6, out)]


def test_a_custom_encoder_sets_the_width_of_the_heads() -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Sequential(nn.Linear(3, 13), nn.ReLU())

    module = build(ACTIONS["gaussian"], catalog_class=Mine)
    assert module.catalog.latent_dims == (13,)
    assert not isinstance(module.observation_normalizer, ObservationNormalizer)  # it gets what the env gives
    assert module.compute_values({Columns.OBS: torch.randn(2, 3)}).shape == (2,)
    assert module.encoder.critic_encoder is not None


def test_a_custom_head() -> None:
    class Mine(PPOCatalog):
        def build_vf_head(self) -> nn.Module:
            return nn.Linear(8, 1, bias=False)

    assert [*build(catalog_class=Mine).vf_head.state_dict()] == ["weight"]


@pytest.mark.parametrize("space", [spaces.Discrete(5, start=2), spaces.MultiDiscrete([2, 3])])
def test_categorical_observations(space: spaces.Space) -> None:
    module = build(observation_space=space)
    assert module.observation_normalizer is None
    assert build(ACTIONS["gaussian"], observation_space=space).observation_normalizer is None
    batch = {Columns.OBS: torch.as_tensor(np.stack([space.sample() for _ in range(4)]))}
    assert module.forward_train(batch)[Columns.ACTION_DIST_INPUTS].shape == (4, 4)


def test_explain_names_every_part() -> None:
    text = build(ACTIONS["gaussian"]).catalog.explain()
    for part in ("PPOCatalog", "actor encoder", "critic encoder", "policy head", "value head", "DiagGaussian"):
        assert part in text


def test_it_is_what_the_learner_requires() -> None:
    assert isinstance(build(), ValueFunctionAPI)
