"""Settings by function: other nets for the value than for the policy, and further outputs, without writing a module."""

import re
from typing import Any

import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from algorithms.dqn import DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOModule
from catalog import Catalog, Encoder, EncoderOutput
from rlmodule import Columns
from rlmodule.modules.recurrent import initial_states

VECTOR, TWO = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)


def catalog(functions: dict[str, Any], **settings: Any) -> PPOCatalog:
    return PPOCatalog(VECTOR, TWO, {"fcnet_hiddens": [16], "functions": functions, **settings})


def module(functions: dict[str, Any], **settings: Any) -> PPOModule:
    torch.manual_seed(0)
    config = {"fcnet_hiddens": [16], "functions": functions, **settings}
    return PPOModule(observation_space=VECTOR, action_space=TWO, model_config=config, catalog_class=PPOCatalog)


def widths(net: nn.Module) -> list[tuple[int, int]]:
    return [(layer.in_features, layer.out_features) for layer in net.modules() if isinstance(layer, nn.Linear)]


# --- other architectures per function ---


def test_the_value_function_may_have_another_architecture_than_the_policy() -> None:
    net = module(
        {
            "policy": {"fcnet_hiddens": [8], "head_fcnet_hiddens": [5]},
            "value": {"fcnet_hiddens": [32, 24], "fcnet_activation": "relu", "head_fcnet_hiddens": []},
        }
    )
    assert widths(net.encoder.actor_encoder) == [(4, 8)]
    assert net.encoder.critic_encoder is not None
    assert widths(net.encoder.critic_encoder) == [(4, 32), (32, 24)]
    assert widths(net.pi_head) == [(8, 5), (5, 2)]
    assert widths(net.vf_head) == [(24, 1)]
    assert net.compute_values({Columns.OBS: torch.zeros(3, 4)}).shape == (3,)


def test_a_shared_encoder_still_allows_other_heads() -> None:
    net = module({"value": {"head_fcnet_hiddens": [7]}}, vf_share_layers=True)
    assert widths(net.vf_head) == [(16, 7), (7, 1)]
    assert widths(net.pi_head) == [(16, 2)]


def test_the_settings_of_one_function_leave_the_others_alone() -> None:
    chosen = catalog({"value": {"fcnet_hiddens": [32]}})
    assert chosen.latent_dims == chosen.for_function("policy").latent_dims == (16,)
    assert chosen.for_function("value").latent_dims == (32,)
    assert chosen.for_function("value").model_config.fcnet_hiddens == (32,)
    assert chosen.model_config.fcnet_hiddens == (16,)


def test_a_custom_encoder_sees_the_settings_of_the_function_it_is_built_for() -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Linear(4, self.model_config.fcnet_hiddens[-1])

    mine = Mine(VECTOR, TWO, {"fcnet_hiddens": [16], "functions": {"value": {"fcnet_hiddens": [32]}}})
    out = mine.build_actor_critic_encoder()(torch.zeros(2, 4))
    assert out.critic is not None
    assert (out.actor.shape, out.critic.shape) == ((2, 16), (2, 32))
    assert mine.build_vf_head()(out.critic).shape == (2, 1)


# --- further outputs ---


def test_any_number_of_further_outputs_with_sizes_of_their_own() -> None:
    net = module({"curiosity": {"output_dim": 10}, "next.reward": {"output_dim": 1, "head_fcnet_hiddens": [6]}})
    out = net.forward_train({Columns.OBS: torch.randn(3, 4)})[Columns.EXTRA_OUTPUTS]
    assert {name: tuple(value.shape) for name, value in out.items()} == {"curiosity": (3, 10), "next.reward": (3, 1)}
    assert Columns.EXTRA_OUTPUTS not in net.forward_inference({Columns.OBS: torch.randn(3, 4)})


@pytest.mark.parametrize(
    ("given", "reached"),
    [({}, "actor"), ({"trunk": "policy"}, "actor"), ({"trunk": "value"}, "critic"), ({"trunk": "own"}, "own")],
    ids=["default", "policy", "value", "own"],
)
def test_a_further_output_sits_on_the_encoder_it_asks_for(given: dict[str, str], reached: str) -> None:
    net = module({"x": {"output_dim": 3, **given}})
    net.forward_train({Columns.OBS: torch.randn(3, 4)})[Columns.EXTRA_OUTPUTS]["x"].sum().backward()
    hit = {name.split(".")[1] for name, p in net.named_parameters() if p.grad is not None and "encoder" in name}
    expected = {"actor": {"actor_encoder"}, "critic": {"critic_encoder"}, "own": {"encoders"}}[reached]
    assert hit == expected


def test_the_head_of_a_further_output_is_as_wide_as_the_trunk_it_shares() -> None:
    net = module({"value": {"fcnet_hiddens": [8]}, "risk": {"output_dim": 1, "trunk": "value"}})
    assert net.extra_outputs is not None
    assert widths(net.extra_outputs) == [(8, 1)]
    assert net.forward_train({Columns.OBS: torch.randn(3, 4)})[Columns.EXTRA_OUTPUTS]["risk"].shape == (3, 1)


def test_an_output_called_value_is_one_like_any_other_where_there_is_no_value_function() -> None:
    functions = {name: {"output_dim": 3, "trunk": "own", "fcnet_hiddens": [5]} for name in ("value", "other")}
    extra = DQNCatalog(VECTOR, TWO, {"functions": functions}).build_extra_outputs()
    assert extra is not None
    assert extra.trunks == {"value": "value", "other": "other"}
    assert widths(extra) == [(5, 3), (5, 3), (4, 5), (4, 5)]
    with pytest.raises(ValueError, match=r"functions\['value'\]\['fcnet_hiddens'\].*encoder of q.*Set 'trunk': 'own'"):
        DQNCatalog(VECTOR, TWO, {"functions": {"value": {"output_dim": 3, "fcnet_hiddens": [5]}}})


@pytest.mark.parametrize("compared", ["a stateful encoder", "a stateless one"])
def test_a_trunk_of_its_own_has_no_state(compared: str) -> None:
    class Last(Encoder):
        def __init__(self, space: Space) -> None:
            super().__init__()

        def get_initial_state(self) -> Tensor:
            return torch.zeros(4)

        def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
            return EncoderOutput(obs, obs[-1])

    whole, own = ({"custom_model": Last}, {}) if compared == "a stateful encoder" else ({}, {"custom_model": Last})
    with pytest.raises(ValueError, match=r"functions\['x'\]\['trunk'\]: expected an encoder without a state.*got Last"):
        module({"x": {"output_dim": 2, "trunk": "own", **own}}, **whole)


def test_an_encoder_that_asks_the_tree_after_all_hears_what_is_wrong_for_its_function() -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return super().build_encoder()

    settings = {"functions": {"value": {"leaf_overrides": {"zz": {"fcnet_hiddens": [8]}}}}}
    with pytest.raises(ValueError, match=r"leaf_overrides\['zz'\]: expected a path into observation_space"):
        Mine(VECTOR, TWO, settings).build_actor_critic_encoder()


def test_an_encoder_of_ones_own_may_look_different() -> None:
    net = module({"x": {"output_dim": 3, "trunk": "own", "fcnet_hiddens": [9, 9]}})
    assert net.extra_outputs is not None
    assert widths(net.extra_outputs) == [(9, 3), (4, 9), (9, 9)]


def test_an_own_encoder_beside_a_recurrent_net_has_no_state() -> None:
    net = module({"x": {"output_dim": 3, "trunk": "own"}}, use_lstm=True, lstm_use_prev_reward=True)
    obs = {"obs": torch.randn(5, 2, 4), "prev_reward": torch.randn(5, 2)}
    batch = {Columns.OBS: obs, Columns.STARTS: torch.zeros(5, 2, dtype=torch.bool)}
    assert net.forward_train(batch)[Columns.EXTRA_OUTPUTS]["x"].shape == (5, 2, 3)


@pytest.mark.parametrize("settings", [{}, {"head_fcnet_hiddens": [4]}], ids=["plain", "another head"])
def test_an_own_encoder_sees_no_earlier_steps(settings: dict[str, Any]) -> None:
    functions = {"x": {"output_dim": 3, "trunk": "own", **settings}}
    net = module(functions, lstm_use_prev_action=True, lstm_use_prev_reward=True)
    obs = {"obs": torch.randn(5, 4), "prev_action": torch.tensor([0, 1, 1, 0, 1]), "prev_reward": torch.randn(5)}
    out = net.forward_train({Columns.OBS: obs})[Columns.EXTRA_OUTPUTS]["x"]
    assert net.extra_outputs is not None
    parts = net.extra_outputs.parts()
    encoder, head = parts["'x' encoder"], parts["'x' head"]
    assert widths(encoder) == [(4, 16)]
    assert torch.equal(out, head(encoder(obs["obs"]).latent))
    assert "for x Box of rank 0 or 1 → MLP" in re.sub(r"\s+", " ", net.explain())


class SingleProcess(nn.Module):
    """Of observations [B, 4], and of no others, latents that do not depend on the rest of the batch."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, obs: Tensor) -> Tensor:
        batch, features = obs.shape
        return self.net(obs.view(batch, 1, features).flatten(1))


@pytest.mark.parametrize("memory", ["use_lstm", "use_attention"])
@pytest.mark.parametrize("kind", [PPOModule, DQNModule])
@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
def test_a_net_of_ones_own_beside_a_memory_gets_one_batch_dim(kind: Any, memory: str, part: bool) -> None:
    torch.manual_seed(0)
    settings = {"leaf_overrides": {"x": {"custom_model": SingleProcess}}} if part else {"custom_model": SingleProcess}
    functions: dict[str, Any] = {"c": {"output_dim": 2, "trunk": "own"}}
    if kind is PPOModule:
        functions["value"] = {memory: False}
    net: Any = kind(
        observation_space=spaces.Dict(x=VECTOR) if part else VECTOR,
        action_space=TWO,
        model_config={**settings, memory: True, "functions": functions},
        catalog_class=PPOCatalog if kind is PPOModule else DQNCatalog,
    )
    obs = torch.randn(5, 2, 4)
    starts = torch.zeros(5, 2, dtype=torch.bool)
    batch = {Columns.STARTS: starts, Columns.STATE_IN: initial_states(net, 2)}
    out = net.forward_train({**batch, Columns.OBS: {"x": obs} if part else obs})
    row = {"x": obs[3, 1:]} if part else obs[3, 1:]
    parts = net.extra_outputs.parts()
    encoder, head = parts["'c' encoder"], parts["'c' head"]
    assert out[Columns.EXTRA_OUTPUTS]["c"].shape == (5, 2, 2)
    torch.testing.assert_close(out[Columns.EXTRA_OUTPUTS]["c"][3, 1:], head(encoder(row).latent))
    if kind is PPOModule:
        torch.testing.assert_close(out[Columns.EMBEDDINGS][3, 1:], net.encoder.critic_encoder(row).latent)


@pytest.mark.parametrize("trunk", ["policy", "own"])
def test_further_outputs_are_loaded_by_name_whatever_their_order(trunk: str) -> None:
    names = ["values", "b.c", "a", "b%2Ec"]
    outputs = [{name: {"output_dim": 3, "trunk": trunk} for name in order} for order in (names, names[::-1])]
    torch.manual_seed(0)
    one, two = map(module, outputs)
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.add_(1)
    two.set_state(one.get_state())
    batch = {Columns.OBS: torch.randn(5, 4)}
    out, again = (net.forward_train(batch)[Columns.EXTRA_OUTPUTS] for net in (one, two))
    assert all(torch.equal(out[name], again[name]) for name in names)
    assert not torch.equal(out["b.c"], out["b%2Ec"])
    # what an optimizer keeps of each number, it keeps by its place
    assert [name for name, _ in one.named_parameters()] == [name for name, _ in two.named_parameters()]


def test_further_outputs_are_not_carried_to_where_only_acting_is_done() -> None:
    assert "extra_outputs" in module({"x": {"output_dim": 3}}).get_non_inference_attributes()


# --- mistakes ---


@pytest.mark.parametrize(
    ("functions", "settings", "message"),
    [
        (
            {"vlaue": {"fcnet_hiddens": [8]}},
            {},
            r"functions\['vlaue'\]: expected policy or value or an output_dim.*'value'",
        ),
        ({"value": {"output_dim": 2}}, {}, r"functions\['value'\]: expected no output_dim"),
        ({"value": {"trunk": "policy"}}, {}, r"functions\['value'\]\['trunk'\]: expected none: vf_share_layers"),
        (
            {"x": {"output_dim": 2, "trunk": "y"}},
            {},
            r"functions\['x'\]\['trunk'\]: expected one of policy, value, own",
        ),
        ({"x": {"output_dim": 0}}, {}, r"functions\['x'\]\['output_dim'\]: expected finite int, >= 1, got 0"),
        ({"x": {"output_dim": 2, "fcnet_hiddens": [8]}}, {}, r"functions\['x'\]\['fcnet_hiddens'\].*'trunk': 'own'"),
        (
            {"value": {"fcnet_hiddens": [8]}},
            {"vf_share_layers": True},
            r"functions\['value'\]\['fcnet_hiddens'\].*vf_share_layers=False",
        ),
        ({"value": {"fcnet_hidens": [8]}}, {}, r"functions\['value'\].*Did you mean 'fcnet_hiddens'\?"),
        ({"value": {"fcnet_hiddens": [0]}}, {}, r"fcnet_hiddens: expected finite tuple\[int, \.\.\.\], >= 1, got 0 in"),
        ({"value": {"max_seq_len": 5}}, {}, r"functions\['value'\]: expected settings of encoders and heads"),
    ],
)
def test_mistakes_name_the_function_and_the_remedy(
    functions: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.compile(message)):
        catalog(functions, **settings)


def test_an_unknown_path_within_the_settings_of_a_function_is_found_at_once() -> None:
    with pytest.raises(ValueError, match=r"leaf_overrides\['zz'\]: expected a path into observation_space"):
        catalog({"value": {"leaf_overrides": {"zz": {"fcnet_hiddens": [8]}}}})


def test_only_the_value_function_may_be_recurrent() -> None:
    chosen = catalog({"policy": {"use_lstm": False}}, use_lstm=True)
    encoder = chosen.build_actor_critic_encoder()
    assert chosen.model_config.vf_share_layers is False
    assert (encoder.actor_is_stateful, encoder.critic_is_stateful) == (False, True)
    assert "the critic's own memory runs wherever the policy acts" in re.sub(r"\s+", " ", chosen.explain())


def test_a_catalog_without_functions_knows_further_outputs_only() -> None:
    with pytest.raises(ValueError, match=r"functions\['policy'\]: expected an output_dim"):
        Catalog(VECTOR, TWO, {"functions": {"policy": {"fcnet_hiddens": [8]}}})
    assert Catalog(VECTOR, TWO, {"functions": {"x": {"output_dim": 3}}}).extra_outputs == {"x": 3}


def test_explain_tells_the_other_tree_and_the_further_heads() -> None:
    text = re.sub(r"\s+", " ", catalog({"value": {"fcnet_hiddens": [32]}, "x": {"output_dim": 3}}).explain())
    assert "for value Box of rank 0 or 1 → MLP" in text
    assert "fcnet_hiddens = (32,) (set)" in text
    assert "'x' head MLPHead 16 → 3 51" in text
