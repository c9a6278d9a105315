"""PPO and DQN over actions that the observation describes by vectors, with and without a mask."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from algorithms import Algorithm, AlgorithmConfig
from algorithms.dqn import DQNConfig, DQNLearner
from algorithms.dqn.module import FORBIDDEN, DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from catalog import ActionEmbeddings
from catalog.actions.masks import MASKED
from rlmodule import Columns, RLModuleSpec
from rlmodule.testing.data import differences, random_observations
from rlmodule.testing.learner_contract import LearnerContract
from rlmodule.testing.module_contract import RLModuleContract
from tests.parametric_envs import ParametricCartPole

ID = "default_policy"
KEY, MASK = "avail_actions", "action_mask"
FOUR = spaces.Discrete(4, start=-1)
X = spaces.Box(-np.inf, np.inf, (3,), np.float32)
VECTORS = spaces.Dict({"x": X, KEY: spaces.Box(-2, 2, (4, 2), np.float32)})
BOTH = spaces.Dict({**VECTORS.spaces, MASK: spaces.MultiBinary(4)})
MEMORY: dict[str, Any] = {"use_gru": True, "max_seq_len": 4, "lstm_cell_size": 8, "lstm_use_prev_action": True}
C51: dict[str, Any] = {"num_atoms": 5, "v_min": -2.0, "v_max": 4.0}
OF_DQN: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True},
    "c51": C51,
    "noisy": {"noisy": True},
    "rainbow": C51 | {"dueling": True, "noisy": True},
}


def ppo(observation_space: Space, catalog_class: type[PPOCatalog] = PPOCatalog, **model: Any) -> RLModuleSpec:
    return RLModuleSpec(PPOModule, observation_space, FOUR, {"fcnet_hiddens": [8], **model}, catalog_class)


def dqn(observation_space: Space, catalog_class: type[DQNCatalog] = DQNCatalog, **model: Any) -> RLModuleSpec:
    return RLModuleSpec(DQNModule, observation_space, FOUR, {"fcnet_hiddens": [8], **model}, catalog_class)


def built(spec: RLModuleSpec) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return spec.build()


class Fixed(nn.Module):
    """Gives the same outputs for every latent."""

    def __init__(self, *outputs: float) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(outputs))

    def forward(self, latent: Tensor) -> Tensor:
        return self.outputs.expand(*latent.shape[:-1], -1)


# --- modules ----------------------------------------------------------------------------------------------------------


class TestPPO(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return ppo(BOTH)


class TestPPOWithoutMask(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return ppo(VECTORS, normalize_observations=True, vf_share_layers=True)


class TestPPOWithMemory(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return ppo(BOTH, **MEMORY)


class TestRainbow(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return dqn(BOTH, **OF_DQN["rainbow"])


class TestDQNWithoutMask(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return dqn(VECTORS, dueling=True, normalize_observations=True)


class TestDQNWithMemory(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return dqn(BOTH, **MEMORY)


def by_hand() -> dict[str, Any]:
    """Two rows; products with the intent (2, -1) are 1, -1, 4, 0, and the second row forbids the first and last."""
    rows = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.5, -1.0], [0.0, 0.0]]).expand(2, 4, 2)
    allowed = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]], dtype=torch.int8)
    return {Columns.OBS: {"x": torch.randn(2, 3), KEY: rows, MASK: allowed}}


def test_logits_of_ppo_are_worked_by_hand() -> None:
    module, batch = built(ppo(BOTH)), by_hand()
    module.pi_head = Fixed(2.0, -1.0)
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        assert forward(batch)[Columns.ACTION_DIST_INPUTS].tolist() == [[1, -1, 4, 0], [MASKED, -1, 4, MASKED]]


FORBIDDEN_VALUE = float(torch.tensor(FORBIDDEN))  # in float32


def test_values_of_dqn_are_worked_by_hand() -> None:
    module, batch = built(dqn(BOTH)), by_hand()
    module.af_head = Fixed(2.0, -1.0)
    assert module.compute_q_values(batch).tolist() == [[1, -1, 4, 0], [FORBIDDEN_VALUE, -1, 4, FORBIDDEN_VALUE]]


def test_advantages_are_centred_over_allowed_actions() -> None:
    module, batch = built(dqn(BOTH, dueling=True)), by_hand()
    module.af_head, module.vf_head = Fixed(2.0, -1.0), Fixed(10.0)
    # the means are 4 / 4 and (-1 + 4) / 2
    assert module.compute_q_values(batch).tolist() == [[10, 8, 13, 9], [FORBIDDEN_VALUE, 7.5, 12.5, FORBIDDEN_VALUE]]


def test_each_atom_has_an_intent_of_its_own() -> None:
    module, batch = built(dqn(BOTH, num_atoms=2, v_min=0.0, v_max=1.0)), by_hand()
    module.af_head = Fixed(2.0, 5.0, -1.0, 3.0)  # the intents are (2, -1) and (5, 3)
    assert module.compute_q_outputs(batch)[0].tolist() == [[1, 8], [-1, 3], [4, 4.5], [0, 0]]
    expected = torch.tensor([1 / (1 + np.exp(-7)), 1 / (1 + np.exp(-4)), 1 / (1 + np.exp(-0.5)), 0.5])
    torch.testing.assert_close(module.compute_q_values(batch)[0], expected.float())


@pytest.mark.parametrize("name", list(OF_DQN))
def test_every_kind_of_dqn_follows_the_order_of_the_vectors(name: str) -> None:
    module = built(dqn(VECTORS, **OF_DQN[name])).eval()
    obs = random_observations(VECTORS, 6)
    order = torch.randperm(4)
    values, moved = (
        module.compute_q_values({Columns.OBS: obs | {KEY: rows}}) for rows in (obs[KEY], obs[KEY][:, order])
    )
    assert values.std(-1).min() > 0
    torch.testing.assert_close(moved, values[:, order])


def test_random_actions_are_drawn_from_allowed_ones() -> None:
    module, batch = built(dqn(BOTH)), by_hand()
    module.af_head = Fixed(2.0, -1.0)
    module.set_exploration(0.6)
    logits = module.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS]
    expected = torch.tensor([[0.15, 0.15, 0.55, 0.15], [0, 0.3, 0.7, 0]])
    torch.testing.assert_close(logits.softmax(-1), expected)


@pytest.mark.parametrize("spec", [ppo(BOTH), dqn(BOTH), dqn(BOTH, dueling=True, **C51)])
def test_one_choice_alone_gives_finite_numbers_and_gradients(spec: RLModuleSpec) -> None:
    module, batch = built(spec), by_hand()
    batch[Columns.OBS] |= {KEY: 1e30 * batch[Columns.OBS][KEY], MASK: torch.tensor([[0, 0, 0, 1]] * 2)}
    out = module.forward_train(batch)
    inputs = out.get(Columns.ACTION_DIST_INPUTS)
    if inputs is None:
        inputs = module.compute_q_values(batch, out[Columns.EMBEDDINGS])
    dist = module.action_dist_cls.from_logits(inputs)
    assert dist.log_probs.exp().tolist() == [[0, 0, 0, 1]] * 2
    (dist.logp(torch.tensor([3, 3])) + dist.entropy() + inputs[:, 3]).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


# --- catalogs of your own --------------------------------------------------------------------------------------------


class Reading(nn.Module):
    """An encoder of your own: it gets all fields, also those about the actions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3 + 2 + 1, 7)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        best = obs[KEY].amax(-2)
        return self.net(torch.cat([obs["x"], best, obs[MASK].float().mean(-1, keepdim=True)], -1))


def test_nets_of_ones_own_fit_in() -> None:
    class Own(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return Reading()

        def build_pi_head(self) -> nn.Module:
            return nn.Linear(*self.latent_dims, self.action_head_dim)

    module, batch = built(ppo(BOTH, Own)), by_hand()
    latent = Reading()
    latent.load_state_dict(module.encoder.actor_encoder.net.state_dict())
    intents = module.pi_head(latent(batch[Columns.OBS]))
    logits = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
    torch.testing.assert_close(logits[0], batch[Columns.OBS][KEY][0] @ intents[0])


def test_a_head_for_actions_in_place_of_an_intent_is_refused() -> None:
    class Own(PPOCatalog):
        def build_pi_head(self) -> nn.Module:
            return nn.Linear(*self.latent_dims, self.get_action_dist_cls().required_input_dim(self.action_space))

    class OwnDQN(DQNCatalog):
        def build_af_head(self) -> nn.Module:
            return nn.Linear(*self.latent_dims, self.num_actions)

    text = r"\.build_{}_head\(\): expected outputs of shape \(1, 2\) for one latent, got .*\(1, 4\) .*action_head_dim"
    with pytest.raises(ValueError, match=f"Own{text.format('pi')}"):
        ppo(BOTH, Own).build()
    with pytest.raises(ValueError, match=f"OwnDQN{text.format('af')}"):
        dqn(BOTH, OwnDQN).build()
    assert ppo(BOTH, Own, action_embeddings_key=None).build()


class Described(PPOCatalog):
    """A net for the vectors of the actions."""

    def build_action_embeddings(self) -> ActionEmbeddings:
        return ActionEmbeddings(KEY, 6, nn.Sequential(nn.Linear(2, 6), nn.Tanh()))


class TestNetForTheVectors(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return ppo(BOTH, Described)


@pytest.mark.parametrize(("make", "catalog_class"), [(ppo, PPOCatalog), (dqn, DQNCatalog)])
@pytest.mark.parametrize(
    ("net", "got"),
    [
        (nn.Linear(2, 5), r"RuntimeError: .* map each vector to \d numbers"),
        (nn.Linear(3, 6), r"RuntimeError: .* map each vector to \d numbers"),
        (nn.Sequential(nn.Linear(2, 6), nn.Flatten(0, 1)), r"shape \(2, 8\) .*Keep the batch dim"),
    ],
)
def test_a_net_for_the_vectors_of_another_width_is_refused_when_it_is_built(
    make: Any, catalog_class: Any, net: nn.Module, got: str
) -> None:
    class Own(catalog_class):
        def build_action_embeddings(self) -> ActionEmbeddings:
            return ActionEmbeddings(KEY, 6, net)

    with pytest.raises(ValueError, match=rf"^Own\.build_action_embeddings\(\): expected .*, got {got}"):
        make(BOTH, Own).build()
    assert net.training


def test_embeddings_that_give_another_number_of_logits_are_refused() -> None:
    class Fewer(ActionEmbeddings):
        def forward(self, intents: Tensor, obs: Any) -> Tensor:
            return super().forward(intents, obs)[..., :3]

    class Own(PPOCatalog):
        def build_action_embeddings(self) -> ActionEmbeddings:
            return Fewer(KEY, 2)

    text = r"^Own\.build_action_embeddings\(\): expected logits of shape \(2, 4\) for two intents, got shape \(2, 3\)"
    with pytest.raises(ValueError, match=text):
        ppo(BOTH, Own).build()


@pytest.mark.parametrize(("make", "catalog_class"), [(ppo, PPOCatalog), (dqn, DQNCatalog)])
def test_explain_counts_the_net_for_the_vectors(make: Any, catalog_class: Any) -> None:
    class Own(catalog_class):
        def build_action_embeddings(self) -> ActionEmbeddings:
            return ActionEmbeddings(KEY, 6, nn.Sequential(nn.Linear(2, 6), nn.Tanh()))

    module = built(make(BOTH, Own))
    lines = [line.split() for line in module.catalog.explain().splitlines()]
    assert ["action", "embeddings", "ActionEmbeddings", "2", "→", "6", "18"] in lines  # 2 · 6 + 6
    assert ["all", f"{sum(p.numel() for p in module.parameters()):,}"] in lines
    plain = built(make(BOTH)).catalog.explain()
    assert "ActionEmbeddings" not in plain


def test_a_net_for_the_vectors_is_trained() -> None:
    learner = PPOLearner(PPOConfig(), ppo(BOTH, Described).as_multi(), run_seed=0)
    net = learner.module[ID].get_submodule("action_embeddings.net")
    before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    contract = TestPPOLearner()
    contract.update(learner, contract.make_data(learner, 0))
    assert len(differences(before, dict(net.named_parameters()))) == 2


# --- learners ---------------------------------------------------------------------------------------------------------


def transitions(rows: int, seed: int) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed)
    obs, following = (random_observations(BOTH, rows, seed + i) for i in range(2))
    for part in (obs, following):
        part[MASK][:, 2] = 1
    return {
        Columns.OBS: obs,
        Columns.NEXT_OBS: following,
        Columns.ACTIONS: torch.full((rows,), 2),
        Columns.REWARDS: torch.randn(rows, generator=rng),
        Columns.DISCOUNTS: torch.where(torch.rand(rows, generator=rng) < 0.7, 0.9, 0.0),
    }


def dqn_learner(**settings: Any) -> DQNLearner:
    model = {name: settings[name] for name in settings if name in {**OF_DQN["rainbow"]}}
    spec = dqn(BOTH, **model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return DQNLearner(DQNConfig(**settings), spec.as_multi(), run_seed=1)


class TestPPOLearner(LearnerContract):
    def make(self) -> PPOLearner:
        return PPOLearner(PPOConfig(minibatch_size=16, num_epochs=2), ppo(BOTH).as_multi(), run_seed=1)


class TestDQNLearner(LearnerContract):
    def make(self) -> DQNLearner:
        return dqn_learner()

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return transitions(16, seed)


class TestRainbowLearner(TestDQNLearner):
    def make(self) -> DQNLearner:
        return dqn_learner(**OF_DQN["rainbow"])


@pytest.mark.parametrize("double_q", [True, False])
def test_targets_are_made_of_the_vectors_that_follow(double_q: bool) -> None:
    learner, data = dqn_learner(double_q=double_q), transitions(12, 0)
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for net in (learner.module, learner.target):
            for parameter in net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=rng))
    got = learner.compute_targets(ID, data)
    theirs, mine = (values_by_hand(net[ID], data[Columns.NEXT_OBS]) for net in (learner.target, learner.module))
    best = (mine if double_q else theirs).argmax(-1)
    for row in range(12):
        expected = data[Columns.REWARDS][row] + data[Columns.DISCOUNTS][row] * theirs[row, best[row]]
        torch.testing.assert_close(got[row], expected)
    stale = data | {Columns.NEXT_OBS: data[Columns.NEXT_OBS] | {KEY: data[Columns.OBS][KEY]}}
    assert not torch.allclose(learner.compute_targets(ID, stale), got)


@torch.no_grad()
def values_by_hand(module: Any, obs: Mapping[str, Tensor]) -> Tensor:
    intents = module.af_head(module.encoder({"x": obs["x"]}).latent)
    values = torch.stack([(obs[KEY][:, action] * intents).sum(-1) for action in range(4)], -1)
    return torch.where(obs[MASK].bool(), values, -torch.inf)


# --- with envs --------------------------------------------------------------------------------------------------------


class Clock(gym.Env[Any, Any]):
    """The vectors of the actions tell the step; one action of three is allowed, another one at each step."""

    observation_space: ClassVar[spaces.Space] = spaces.Dict(
        x=spaces.Box(-1, 1, (2,)), avail_actions=spaces.Box(0, np.inf, (3, 2)), action_mask=spaces.MultiBinary(3)
    )
    action_space: ClassVar[spaces.Space] = spaces.Discrete(3)

    def _look(self) -> Any:
        allowed = np.zeros(3, np.int8)
        allowed[self.t % 3] = 1
        return {"x": np.zeros(2, np.float32), KEY: np.full((3, 2), self.t, np.float32), MASK: allowed}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        assert action == self.t % 3
        self.t += 1
        return self._look(), 1.0, False, self.t == 7, {}


SMALL: dict[str, AlgorithmConfig] = {
    "PPO": PPOConfig(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2),
    "DQN": DQNConfig(
        train_batch_size_per_learner=16,
        num_steps_sampled_before_learning_starts=32,
        num_env_steps_per_iteration=64,
        replay_capacity=256,
    ),
}


@pytest.mark.parametrize("name", list(SMALL))
def test_with_one_choice_at_each_step_training_stays_finite(name: str) -> None:
    config = SMALL[name].copy().environment(Clock).env_runners(num_envs_per_env_runner=2).debugging(seed=1)
    with config.build() as algo:
        for _ in range(2):
            algo.train()
        state = algo.get_module().get_state()
    assert all(tensor.isfinite().all() for tensor in state.values())


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_replay_hands_out_the_vectors_of_each_step_and_of_what_followed(n_step: int) -> None:
    seen: list[dict[str, Any]] = []

    class Recording(DQNLearner):
        def compute_targets(self, module_id: str, batch: Any) -> Tensor:
            seen.append(batch)
            return super().compute_targets(module_id, batch)

    config = SMALL["DQN"].copy().environment(Clock).env_runners(num_envs_per_env_runner=2).debugging(seed=1)
    with config.training(n_step=n_step).learners(learner_class=Recording).build() as algo:
        algo.train()
    assert seen
    for batch in seen:
        now, then = (batch[name][KEY][:, 0, 0] for name in (Columns.OBS, Columns.NEXT_OBS))
        torch.testing.assert_close(batch[Columns.DISCOUNTS], config.gamma ** (then - now))  # fewer steps at an end
        assert int((then - now).max()) == n_step
        assert torch.equal(batch[Columns.ACTIONS], now.long() % 3)


@pytest.mark.parametrize("name", list(SMALL))
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "all allowed"])
def test_it_trains_saves_loads_and_acts(name: str, masked: bool, tmp_path: Path) -> None:
    config = SMALL[name].copy().environment(ParametricCartPole, env_config={"masked": masked}).debugging(seed=1)
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode="async" if masked else "sync")
    env = ParametricCartPole(masked=masked)
    obs, _ = env.reset(seed=0)
    with config.build() as algo:
        algo.train()
        algo.save(tmp_path / "run")
        action, _ = algo.policy.act(obs)
    with Algorithm.from_checkpoint(tmp_path / "run", env=ParametricCartPole) as again:
        assert again.policy.act(obs)[0] == action
    assert env.allowed[action]


LEARNING: dict[str, tuple[AlgorithmConfig, int]] = {
    "PPO": (PPOConfig(lr=1e-3), 4000),
    "DQN": (DQNConfig(lr=1e-3, dueling=True), 3500),
}


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", list(LEARNING))
def test_it_learns_what_the_vectors_mean(name: str) -> None:
    config, num_env_steps = LEARNING[name]
    config = config.copy().environment(ParametricCartPole).evaluation(evaluation_duration=10).debugging(seed=0)
    with config.build() as algo:
        algo.learn(num_env_steps=num_env_steps)
        assert algo.evaluate()["env_runners"]["episode_return_mean"] >= 60  # without their meaning 22
