"""A frozen lake where nothing but the goal pays, without curiosity and with it: the same for PPO and for DQN.

PPO does not find the goal without it; features on an encoder of their own find it more surely than shared ones. DQN
finds it by its random actions, and curiosity rather holds it up.

PPO has a setting that needs no such code, ``PPOConfig().training(rnd_coeff=0.01)``. It rewards what has hardly been
seen, which is the thing to try first, for any observations and actions. Curiosity is for what that would never get used
to, such as a screen of noise: its features need to hold only what the actions decide.

Run it as ``python examples/curiosity/train.py`` or ``python examples/curiosity/train.py --algo dqn --share``.
"""

from argparse import ArgumentParser

from icm import CuriousDQNLearner, CuriousDQNModule, CuriousPPOLearner, CuriousPPOModule

from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from rlmodule import RLModuleSpec

parser = ArgumentParser(description=__doc__)
parser.add_argument("--algo", choices=["ppo", "dqn"], default="ppo")
parser.add_argument("--share", action="store_true", help="curiosity sits on the algorithm's encoder, not on its own")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

if args.algo == "ppo":
    config, module_class, learner_class = PPOConfig(), CuriousPPOModule, CuriousPPOLearner
else:
    config, module_class, learner_class = DQNConfig(n_step=1), CuriousDQNModule, CuriousDQNLearner
config.environment("FrozenLake-v1", env_config={"map_name": "8x8", "is_slippery": False}).debugging(seed=args.seed)

nets = {"fcnet_hiddens": [64, 64]}
features = {"output_dim": 32} if args.share else {"output_dim": 32, "trunk": "own"}
spec = RLModuleSpec(module_class=module_class, model_config=nets | {"functions": {"curiosity": features}})
tried = {
    "without curiosity": config.copy().rl_module(model_config=nets),
    "with curiosity": config.copy().rl_module(rl_module_spec=spec).learners(learner_class=learner_class),
}
for name, config in tried.items():
    with config.build() as algo:
        print(f"{name}: {sum(parameter.numel() for parameter in algo.get_module().parameters()):,} parameters")
        result = algo.learn(num_env_steps=40_000, progress=True)
    print(f"{name}: {result['env_runners']['episode_return_mean']:.0%} of the last 100 episodes reached the goal")
learned = result["learners"]["default_policy"]
print(f"errors of the inverse model: {learned['inverse_model_loss']:.4f}")
print(f"errors of the forward model: {learned['forward_model_loss']:.4f}")
