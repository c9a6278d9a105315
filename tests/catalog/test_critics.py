"""Ensembles of critics, against one net after the other, and the catalog that chooses them."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.activations import Init
from catalog.critics import ActionCriticCatalog, num_joint_actions
from catalog.encoders.dense import DenseEnsemble, DenseStack
from catalog.encoders.mlp import MLPEncoderConfig
from catalog.encoders.preprocessing import Vectorize
from catalog.past import sampled_space
from catalog.spaces import zero_batch
from rlmodule.testing.data import clone, differences

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)
ARM = spaces.Dict(
    bend=spaces.Box(-2, 2, (1, 2), np.float32),
    grip=spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 3])]),
    lamps=spaces.MultiBinary(2),
)


def member(ensemble: DenseEnsemble, index: int, **layers: Any) -> DenseStack:
    """One net of ``ensemble``, as an ordinary stack with the same weights."""
    net = DenseStack(**layers).to(next(ensemble.parameters()).dtype)
    with torch.no_grad():
        for own, all_members in zip([*net.linears, *net.norms], [*ensemble.linears, *ensemble.norms], strict=True):
            if isinstance(own, nn.BatchNorm1d):  # weights side by side
                own.weight.copy_(all_members.weight.view(ensemble.members, -1)[index])
                own.bias.copy_(all_members.bias.view(ensemble.members, -1)[index])
                continue
            weight = all_members.weight[index]
            own.weight.copy_(weight.T if own.weight.dim() == 2 else weight[0])
            if not isinstance(own, nn.RMSNorm):
                own.bias.copy_(all_members.bias[index, 0])
    return net


@pytest.mark.parametrize("norm", [None, "layer", "rms", "batch"])
@pytest.mark.parametrize(
    ("hidden", "blocks"), [((), None), ((5,), None), ((6, 4), None), ((4, 4, 4), "simba"), ((4, 4), "bro")]
)
@pytest.mark.parametrize("output_dim", [1, 2])
def test_an_ensemble_is_its_nets_one_after_the_other(
    hidden: tuple[int, ...], blocks: Any, norm: Any, output_dim: int
) -> None:
    layers: dict[str, Any] = {"input_dim": 3, "hidden_dims": hidden, "activation": "relu", "norm": norm}
    layers |= {"blocks": blocks, "init": Init(), "output_dim": output_dim}
    ensemble = DenseEnsemble(3, **layers).double()  # a bias before a batch norm has a gradient of rounding alone
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.add_(torch.randn_like(parameter))
    nets = [member(ensemble, index, **layers) for index in range(3)]
    x = torch.randn(3, 7, 3, dtype=torch.float64)
    together = ensemble.run(x)
    alone = torch.stack([net.run(rows) for net, rows in zip(nets, x, strict=True)])
    torch.testing.assert_close(together, alone)
    together.square().sum().backward()
    alone.square().sum().backward()
    for index, net in enumerate(nets):
        for own, stacked in zip(net.linears, ensemble.linears, strict=True):
            torch.testing.assert_close(own.weight.grad.T, stacked.weight.grad[index], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(own.bias.grad, stacked.bias.grad[index, 0], rtol=1e-6, atol=1e-6)


def test_members_start_with_weights_of_their_own() -> None:
    layers: dict[str, Any] = {"input_dim": 4, "hidden_dims": (8,), "activation": "relu", "norm": "layer"}
    ensemble = DenseEnsemble(2, **layers, init=Init(kernel="orthogonal_"), output_dim=1)
    for linear in ensemble.linears:
        assert not torch.equal(linear.weight[0], linear.weight[1])
    rows = ensemble.linears[0].weight[1].T
    torch.testing.assert_close(rows.T @ rows, torch.eye(4) * (rows.T @ rows)[0, 0], atol=1e-5, rtol=0)  # orthogonal


def test_frozen_weights_get_no_gradient_and_follow_the_real_ones() -> None:
    layers: dict[str, Any] = {"input_dim": 2, "hidden_dims": (4,), "activation": "relu", "norm": "layer"}
    ensemble = DenseEnsemble(2, **layers, init=Init(), output_dim=1)
    x = torch.randn(2, 5, 2, requires_grad=True)
    for _ in range(2):
        frozen = ensemble.run(x, ensemble.layers_of(frozen=True))
        assert torch.equal(frozen, ensemble.run(x))
        frozen.sum().backward()
        assert x.grad is not None
        assert all(parameter.grad is None for parameter in ensemble.parameters())
        with torch.no_grad():
            for parameter in ensemble.parameters():
                parameter.add_(1)


def test_a_copy_of_an_ensemble_has_its_own_weights() -> None:
    ensemble = DenseEnsemble(2, input_dim=2, hidden_dims=(3,), activation="relu", init=Init())
    other, x = copy.deepcopy(ensemble), torch.randn(2, 5, 2)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other.run(x).any()
    assert ensemble.run(x).any()


def test_actions_become_one_vector_whether_choices_are_numbers_or_codes() -> None:
    code = Vectorize(sampled_space(ARM))
    assert code.width == 2 + 3 + 5 + 2
    bend = torch.tensor([[[0.5, -0.25]]])
    actions = {
        "bend": bend,
        "grip": (torch.tensor([2]), torch.tensor([[1, 0]])),
        "lamps": torch.tensor([[1, 0]], dtype=torch.int8),
    }
    expected = torch.tensor([[0.5, -0.25, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0]])
    assert torch.equal(code(actions), expected)
    soft = {
        "bend": bend,
        "grip": (torch.tensor([[0, 0, 1.0]]), torch.tensor([[0, 1.0, 1, 0, 0]])),
        "lamps": torch.tensor([[1.0, 0]]),
    }
    assert torch.equal(code(soft), expected)


class All(ActionCriticCatalog):
    """Values every joint action."""

    @property
    def values_all(self) -> bool:
        return True


def critics_of(catalog: ActionCriticCatalog) -> nn.Module:
    catalog.build_actor_critic_encoder()
    return catalog.build_qf()


@pytest.mark.parametrize(
    ("space", "count"),
    [
        (spaces.Discrete(4, start=2), 4),
        (spaces.MultiDiscrete([2, 3, 2]), 12),
        (spaces.MultiDiscrete([16, 16]), 256),
        (spaces.MultiDiscrete([16, 17]), 0),
        (spaces.Box(-1, 1, (2,), np.int8), 9),
        (spaces.MultiBinary(3), 0),
        (VECTOR, 0),
        (ARM, 0),
    ],
    ids=str,
)
def test_joint_actions_are_counted(space: spaces.Space, count: int) -> None:
    assert num_joint_actions(space) == count


def test_the_value_of_an_action_is_that_at_its_place_among_all() -> None:
    space = spaces.MultiDiscrete([2, 3])
    critics = critics_of(All(VECTOR, space))
    latent, every = torch.randn(6, 3), torch.tensor([*itertools.product(range(2), range(3))])
    values = critics(latent)
    assert values.shape == (2, 6, 6)
    assert torch.equal(critics(latent, every), values.diagonal(dim1=-2, dim2=-1))


def test_critics_give_a_frozen_pass_a_gradient_for_the_actions_alone() -> None:
    critics = critics_of(ActionCriticCatalog(VECTOR, spaces.Box(-1, 1, (2,), np.float32)))
    latent, actions = torch.randn(5, 3, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    values = critics(latent, actions, frozen=True)
    assert values.shape == (2, 5)
    assert torch.equal(values, critics(latent, actions))
    values.sum().backward()
    assert actions.grad is not None
    assert bool((actions.grad != 0).any())
    assert latent.grad is None
    assert all(parameter.grad is None for parameter in critics.parameters())


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_the_first_critics_alone_have_the_values_they_have_together(norm: str, frozen: bool) -> None:
    critics = critics_of(ActionCriticCatalog(VECTOR, spaces.Box(-1, 1, (2,), np.float32), {"fcnet_norm": norm}))
    critics.eval()
    latent, actions = torch.randn(5, 3), torch.randn(5, 2)
    torch.testing.assert_close(
        critics(latent, actions, frozen=frozen, num_critics=1), critics(latent, actions)[:1], rtol=1e-6, atol=1e-6
    )


def linears(net: nn.Module) -> list[tuple[int, int]]:
    return [(part.in_features, part.out_features) for part in net.modules() if isinstance(part, nn.Linear)]


@pytest.mark.parametrize(
    ("space", "settings", "expected"),
    [
        (VECTOR, {}, [(5, 256), (256, 256), (256, 1)]),
        (VECTOR, {"fcnet_hiddens": [8], "head_fcnet_hiddens": [7]}, [(5, 8), (8, 7), (7, 1)]),
        (VECTOR, {"functions": {"value": {"fcnet_hiddens": [9]}}}, [(5, 9), (9, 1)]),
        (VECTOR, {"vf_share_layers": True, "fcnet_hiddens": [8]}, [(10, 8), (8, 1)]),
        (
            VECTOR,
            {"vf_share_layers": True, "fcnet_hiddens": [8], "functions": {"value": {"fcnet_hiddens": [9]}}},
            [(10, 9), (9, 1)],
        ),
        (IMAGE, {"conv_dense_dim": 6, "fcnet_hiddens": [8]}, [(8, 8), (8, 1)]),
        (VECTOR, {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [8]}, [(6, 8), (8, 1)]),
        (spaces.Discrete(4), {"fcnet_hiddens": [8]}, [(6, 8), (8, 1)]),
    ],
    ids=str,
)
def test_vectors_are_read_with_the_action_and_all_else_is_encoded_first(
    space: spaces.Space, settings: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    catalog = ActionCriticCatalog(space, spaces.Box(-1, 1, (2,), np.float32), settings)
    encoder, critics = catalog.build_actor_critic_encoder(), catalog.build_qf()
    assert linears(critics) == expected
    if space is VECTOR and encoder.critic_encoder is not None:
        assert not [*encoder.critic_encoder.parameters()]
    assert "critics" in catalog.explain()
    assert "without effect" not in catalog.explain()


@pytest.mark.parametrize(("name", "shared"), [("fcnet_hiddens", True), ("lstm_cell_size", False)])
def test_a_memory_is_shared_unless_the_critics_have_another_one(name: str, shared: bool) -> None:
    value = {"fcnet_hiddens": [9], "lstm_cell_size": 5}
    settings = {"use_lstm": True, "lstm_cell_size": 4, "functions": {"value": {name: value[name]}}}
    catalog = ActionCriticCatalog(VECTOR, spaces.Box(-1, 1, (2,), np.float32), settings)
    encoder, critics = catalog.build_actor_critic_encoder(), catalog.build_qf()
    assert encoder.shared == shared
    assert (linears(critics) == [(6, 9), (9, 1)]) == shared


def test_an_ensemble_refuses_an_input_of_another_width() -> None:
    ensemble = DenseEnsemble(2, input_dim=8, hidden_dims=[], activation="relu", init=Init(), output_dim=1)
    with pytest.raises(ValueError, match=r"DenseEnsemble: expected an input of shape \(\.\.\., 8\)"):
        ensemble.run(torch.zeros(2, 5, 1))


def test_an_activation_with_parameters_cannot_be_computed_together() -> None:
    settings: dict[str, Any] = {"fcnet_activation": "prelu"}
    catalog = ActionCriticCatalog(VECTOR, spaces.Box(-1, 1, (2,), np.float32), settings)
    catalog.build_actor_critic_encoder()
    with pytest.raises(ValueError, match=r"activation of DenseEnsemble: expected one without parameters, .* got PReLU"):
        catalog.build_qf()
    settings["functions"] = {"value": {"fcnet_activation": "relu"}}
    catalog = ActionCriticCatalog(VECTOR, spaces.Box(-1, 1, (2,), np.float32), settings)
    catalog.build_actor_critic_encoder()
    catalog.build_qf()


@pytest.mark.parametrize(
    ("space", "settings", "expected"),
    [
        (VECTOR, {}, (3, 2)),
        (spaces.Discrete(4), {}, (4, 2)),
        (VECTOR, {"vf_share_layers": True, "fcnet_hiddens": [8]}, (8, 2)),
        (IMAGE, {"conv_dense_dim": 6}, (6, 2)),
    ],
    ids=str,
)
def test_a_further_output_on_the_trunk_of_the_critics_is_as_wide_as_it(
    space: spaces.Space, settings: dict[str, Any], expected: tuple[int, int]
) -> None:
    given = settings | {"functions": {"risk": {"output_dim": 2, "trunk": "value"}}}
    catalog = ActionCriticCatalog(space, spaces.Box(-1, 1, (2,), np.float32), given)
    latents = catalog.build_actor_critic_encoder()(zero_batch(space, (5,)))
    extra = catalog.build_extra_outputs()
    assert extra is not None
    assert linears(extra) == [expected]
    assert extra(None, {"value": latents.critic})["risk"].shape == (5, 2)


class Returned(ActionCriticCatalog):
    """Returns a config of its own."""

    def _get_encoder_config(self, observation_space: spaces.Space, model_config: Any) -> MLPEncoderConfig:
        return MLPEncoderConfig(input_space=observation_space, hidden_layer_dims=(6,))


class Changed(ActionCriticCatalog):
    """Changes the config that the tree chose."""

    def _get_encoder_config(self, observation_space: spaces.Space, model_config: Any) -> Any:
        config: Any = super()._get_encoder_config(observation_space, model_config)
        return dataclasses.replace(config, hidden_layer_dims=(6,))


class Narrowed(ActionCriticCatalog):
    """Asks the tree with other settings."""

    def _get_encoder_config(self, observation_space: spaces.Space, model_config: Any) -> Any:
        return super()._get_encoder_config(observation_space, dataclasses.replace(model_config, fcnet_hiddens=(6,)))


@pytest.mark.parametrize("cls", [Returned, Changed, Narrowed])
def test_dense_layers_that_a_hook_chose_come_before_the_action(cls: type[ActionCriticCatalog]) -> None:
    catalog = cls(VECTOR, spaces.Box(-1, 1, (2,), np.float32), {"fcnet_hiddens": [8]})
    encoder, critics = catalog.build_actor_critic_encoder(), catalog.build_qf()
    assert encoder.critic_encoder is not None
    assert linears(encoder.actor_encoder) == linears(encoder.critic_encoder) == [(3, 6)]
    assert linears(critics) == [(8, 8), (8, 1)]


@pytest.mark.parametrize(("blocks", "wide"), [("simba", 32), ("bro", 8)])
def test_critics_have_the_blocks_and_norms_of_the_settings(blocks: str, wide: int) -> None:
    given = {"fcnet_hiddens": (8, 8), "fcnet_blocks": blocks, "fcnet_norm": "rms"}
    catalog = ActionCriticCatalog(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)), given)
    encoder = catalog.build_actor_critic_encoder()
    critics = catalog.build_qf()
    assert [tuple(p.shape) for p in critics.parameters() if p.dim() == 3 and p.shape[1] > 1] == [
        (2, 5, 8),
        (2, 8, wide),
        (2, wide, 8),
        (2, 8, 1),
    ]
    for net in (encoder.actor_encoder, critics):
        assert {type(m) for m in net.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)} == {nn.RMSNorm}


def test_batch_norms_of_critics_are_those_of_critics_apart() -> None:
    members = 3
    layers: dict[str, Any] = {"input_dim": 4, "hidden_dims": (6, 6), "activation": "relu", "init": Init()}
    layers |= {"blocks": "simba", "norm": "batch"}
    ensemble = DenseEnsemble(members, **layers)
    nets = [member(ensemble, i, **layers) for i in range(members)]
    for _ in range(3):
        x = torch.randn(members, 7, 4)
        torch.testing.assert_close(
            ensemble.run(x), torch.stack([net.run(rows) for net, rows in zip(nets, x, strict=True)])
        )
    for ours, *theirs in zip(ensemble.norms, *(net.norms for net in nets), strict=True):
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(
                ours.get_buffer(name), torch.cat([norm.get_buffer(name) for norm in theirs]), rtol=1e-4, atol=1e-5
            )
    x = torch.randn(members, 7, 4)
    frozen = ensemble.run(x, ensemble.layers_of(frozen=True))  # in training, too
    for net in (ensemble, *nets):
        net.eval()
    apart = torch.stack([net.run(rows) for net, rows in zip(nets, x, strict=True)])
    torch.testing.assert_close(ensemble.run(x), apart)
    torch.testing.assert_close(frozen, apart)
    torch.testing.assert_close(ensemble.run(x[:2], ensemble.layers_of(2)), apart[:2])


def test_a_frozen_pass_leaves_the_statistics_of_batch_norm() -> None:
    critics = critics_of(ActionCriticCatalog(VECTOR, spaces.Box(-1, 1, (2,), np.float32), {"fcnet_norm": "batch"}))
    before = clone(dict(critics.named_buffers()))
    latent, actions = torch.randn(5, 3), torch.randn(5, 2, requires_grad=True)
    critics(latent, actions, frozen=True).sum().backward()
    assert differences(dict(critics.named_buffers()), before) == []
    assert actions.grad is not None
    assert all(parameter.grad is None for parameter in critics.parameters())
    critics(latent, actions)
    assert len(differences(dict(critics.named_buffers()), before)) == 4  # two norms, two statistics


@pytest.mark.parametrize("num_critics", [1, 2, 5])
def test_num_critics_says_how_many_critics_there_are(num_critics: int) -> None:
    catalog = ActionCriticCatalog(VECTOR, spaces.Box(-1, 1, (2,), np.float32), {"num_critics": num_critics})
    values: Tensor = critics_of(catalog)(torch.randn(5, 3), torch.randn(5, 2))
    assert values.shape == (num_critics, 5)


def test_log_stds_are_bounded_as_published() -> None:
    catalog = ActionCriticCatalog(VECTOR, spaces.Box(-1, 1, (2,), np.float32))
    catalog.build_actor_critic_encoder()
    head = catalog.build_pi_head()
    assert head(torch.full((1, 256), 1e6))[..., :2].abs().amax() > 1e3
    for scale in (-1e6, 1e6):
        log_stds = head(torch.full((1, 256), scale))[..., 2:]
        assert bool(((log_stds == -20) | (log_stds == 2)).all())
