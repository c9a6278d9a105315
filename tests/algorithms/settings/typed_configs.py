"""What type checkers and editors know of configs, without stubs; ``test_typing.py`` has pyright check it.

A line that ends with ``# error`` is a mistake that a checker has to find; each of the others is correct.
"""

# pyright: strict, reportUnusedExpression=false

from typing_extensions import assert_type

from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig, PPOTraining
from algorithms.settings import Section, setting
from catalog import DefaultModelConfig


class MyTraining(PPOTraining):
    """An author's own settings."""

    bonus: float = setting(0.0, "Reward added to each step.", ge=0)


class MyConfig(MyTraining, PPOConfig):
    """A config with them."""

    training = Section(MyTraining)
    gamma = 0.98


config = PPOConfig().environment("CartPole-v1").training(lr=1e-3, clip_param=0.2).env_runners(num_env_runners=2)
assert_type(config, PPOConfig)
assert_type(config.callbacks().evaluation(evaluation_interval=5).rl_module(model_config={"use_lstm": True}), PPOConfig)
assert_type(config.lr, float | list[list[float]])
assert_type(MyConfig(gamma=0.9, bonus=1.0).training(bonus=0.5, num_epochs=3).debugging(seed=1), MyConfig)
assert_type(DQNConfig().training(dueling=True).replay(replay_capacity=10).training(lr=[[0, 1e-3]]), DQNConfig)
assert_type(DQNConfig.rainbow(v_min=0.0, v_max=1.0).copy().freeze(), DQNConfig)
assert_type(PPOConfig.training(config, num_epochs=3), PPOConfig)
DefaultModelConfig(fcnet_hiddens=(8,), use_lstm=True)

config.training(clip_parm=0.2)  # error
config.training(clip_param="0.2")  # error
config.training(1e-3)  # error
config.training(bonus=0.5)  # error
config.environment("CartPole-v1", {})  # error
config.env_runners(lr=1e-3)  # error
config.replay(replay_capacity=10)  # error
print(config.learning_rate)  # error
PPOConfig(learning_rate=1e-3)  # error
MyConfig().training(bonus="much")  # error
DefaultModelConfig(fcnet_hidens=(8,))  # error
