"""A script written for Stable-Baselines3, in the words of here; each comment is the line that stood there.

Run it as ``python examples/migrated_from_sb3.py``.
"""

import time

import gymnasium as gym

from algorithms import Algorithm, Callbacks
from algorithms.ppo import PPOConfig


class Longest(Callbacks):  # class Longest(BaseCallback): def _on_step(self): ...
    """Reports the longest episode so far."""

    steps = 0

    def on_episode_end(self, *, algorithm, episode):
        self.steps = max(self.steps, episode.length)
        algorithm.metrics.log_value("longest_episode", self.steps)  # self.logger.record("longest_episode", self.steps)


config = (
    PPOConfig()  # PPO("MlpPolicy", env,
    .environment("CartPole-v1")  # env = make_vec_env("CartPole-v1",
    .env_runners(num_envs_per_env_runner=8)  # n_envs=8)
    .training(lr=3e-4, train_batch_size_per_learner=8 * 256)  # learning_rate=3e-4, n_steps=256,
    .training(minibatch_size=64, num_epochs=10, lambda_=0.95)  # batch_size=64, n_epochs=10, gae_lambda=0.95,
    .rl_module(model_config={"fcnet_hiddens": [64, 64]})  # policy_kwargs={"net_arch": [64, 64]},
    .reporting(run_dir=time.strftime("runs/migrated-%Y%m%d-%H%M%S"))  # tensorboard_log="runs",
    .debugging(seed=1)  # seed=1)
    .evaluation(evaluation_interval=5)  # EvalCallback(eval_env, eval_freq=1280, best_model_save_path="runs",
    .callbacks(Longest)  # callback_on_new_best=StopTrainingOnRewardThreshold(475))
)

with config.build() as algo:
    algo.learn(num_env_steps=200_000, target_return=475, progress=True)  # model.learn(200_000, progress_bar=True)
    checkpoint = algo.save("runs/migrated_from_sb3")  # model.save("runs/migrated_from_sb3")

with Algorithm.from_checkpoint(checkpoint, callbacks_class=None) as algo:  # model = PPO.load("runs/migrated_from_sb3")
    played = algo.evaluate(num_episodes=10)["env_runners"]  # evaluate_policy(model, env, n_eval_episodes=10)
    print(f"mean return {played['episode_return_mean']:g}")

    env = gym.make("CartPole-v1")
    obs, info = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        action, state = algo.policy.act(obs)  # action, state = model.predict(obs, deterministic=True)
        obs, reward, terminated, truncated, info = env.step(action)
        total, over = total + float(reward), terminated or truncated
    print(f"one episode: return {total:g}")
