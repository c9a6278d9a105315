"""Draw the pictures of the pages for users of other libraries. Run it as ``python docs/pictures/coming.py``."""

from pathlib import Path

from drawing import (
    CATALOG,
    GREY,
    HERE,
    LEARNER,
    MODULE,
    RUNNER,
    SLATE,
    arrow,
    canvas,
    draw_all,
    heading,
    line,
    note,
    panel,
    save,
)

ROOT = HERE.parents[1]
MONO = "monospace"


def coming_from_sb3(path: Path) -> None:
    """What a script for Stable-Baselines3 is made of, and where each piece is here."""
    axes = canvas(9, 4.5)
    heading(axes, 0.1, 4.3, "Stable-Baselines3")
    heading(axes, 5.0, 4.3, "here")
    rows = [
        ('make_vec_env("CartPole-v1", n_envs=8)', ".environment, .env_runners", RUNNER),
        ("VecNormalize, a second file", "normalisers, inside the module", MODULE),
        ('"MlpPolicy", policy_kwargs', "the catalog, .rl_module", MODULE),
        ("PPO(…, n_steps=256), per environment", ".training(…=8 * 256), of all together", LEARNER),
        ("EvalCallback, evaluate_policy", ".evaluation, evaluate()", CATALOG),
        ("learn(100_000)", "learn(num_env_steps=100_000)", LEARNER),
        ("predict(obs), sampled by default", "policy.act(obs), the most likely by default", MODULE),
        ('save("cartpole"): a zip with pickle', 'save("cartpole"): a folder without pickle', SLATE),
    ]
    for i, (theirs, ours, colour) in enumerate(rows):
        y = 3.85 - 0.5 * i
        panel(axes, 0.1, y, 4.1, 0.42, "", theirs, size=9, font=MONO)
        arrow(axes, (4.2, y), (5.0, y))
        panel(axes, 5.0, y, 3.9, 0.42, colour, ours, size=8.6, font=MONO)
    save(axes, path)


def coming_from_rllib(path: Path) -> None:
    """The words that RLlib and this library share, and those that differ."""
    axes = canvas(9, 4.3)
    heading(axes, 0.1, 4.1, "the same words, the same parts")
    same = [
        ("AlgorithmConfig", SLATE),
        ("Catalog", CATALOG),
        ("RLModule", MODULE),
        ("EnvRunner", RUNNER),
        ("Learner", LEARNER),
    ]
    for i, (name, colour) in enumerate(same):
        panel(axes, 0.1 + 1.78 * i, 3.6, 1.68, 0.5, colour, name, size=9.5, weight="bold")
    heading(axes, 0.1, 3.05, "RLlib")
    heading(axes, 4.75, 3.05, "here")
    rows = [
        ("algo = config.build_algo(); algo.stop()", "with config.build() as algo:"),
        ("connector pipelines", "a wrapper, an encoder, preprocess_train_data"),
        ("MeanStdFilter", 'model_config={"normalize_observations": True}'),
        ("a module of your own, for PPO's encoder", "a hook of the catalog: build_encoder()"),
        ("metrics_logger.log_value(name, …, window=100)", "algorithm.metrics.log_value(name, value)"),
    ]
    for i, (theirs, ours) in enumerate(rows):
        y = 2.6 - 0.53 * i
        panel(axes, 0.1, y, 4.0, 0.44, "", theirs, size=8.3, font=MONO)
        arrow(axes, (4.1, y), (4.75, y))
        panel(axes, 4.75, y, 4.15, 0.44, SLATE, ours, size=8.3, font=MONO)
    save(axes, path)


BLOCKS = [
    ("Args", "PPOConfig", "algorithms/ppo/ppo.py", SLATE),
    ("make_env, SyncVectorEnv", "make_vector_env", "rlmodule/envs/make.py", RUNNER),
    ("Agent", "PPOCatalog, PPOModule", "algorithms/ppo/module.py", MODULE),
    ("storage", "Rollout", "rlmodule/data/rollout.py", RUNNER),
    ("loop over num_steps", "EnvRunner.sample", "rlmodule/sampling/accounts.py", RUNNER),
    ("bootstrap and GAE", "generalized_advantages", "algorithms/ops/returns.py", LEARNER),
    ("epochs, minibatches", "update_from_episodes", "rlmodule/learning/episode_learner.py", LEARNER),
    ("ratio, losses", "compute_row_losses", "algorithms/actor_critic.py", LEARNER),
    ("clip_grad_norm_, step", "gradient_step", "rlmodule/learning/learner.py", LEARNER),
]
"""Block of CleanRL's ppo.py → what it is called here, its file, and a colour."""


def coming_from_cleanrl(path: Path) -> None:
    """The blocks of CleanRL's ppo.py from top to bottom, and the files that have them here; raises if one has not."""
    axes = canvas(9, 4.6)
    panel(axes, 0.1, 2.15, 2.7, 4.2, "")
    heading(axes, 0.1, 4.43, "ppo.py, top to bottom")
    heading(axes, 3.5, 4.43, "here, a file each")
    for i, (block, name, file, colour) in enumerate(BLOCKS):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(word.rpartition(".")[2] in text for word in name.split(", ")), file
        y = 3.97 - 0.455 * i
        panel(axes, 0.2, y, 2.5, 0.38, colour, block, size=9)
        arrow(axes, (2.8, y), (3.5, y))
        panel(axes, 3.5, y, 2.4, 0.38, colour, name, size=9)
        axes.text(6.0, y, file, color=GREY, size=8.5, va="center", family=MONO)
    save(axes, path)


def coming_from_d3rlpy(path: Path) -> None:
    """The same run from data with d3rlpy and here, step by step."""
    axes = canvas(9, 3.4)
    steps = [
        ("data", "MDPDataset(…)", "Dataset.\nfrom_arrays(…)", CATALOG),
        ("algorithm", "DiscreteBCConfig()\n.create()", "BCConfig()\n.offline(data=data)\n.build()", SLATE),
        ("learn", "fit(dataset,\nn_steps=5_000)", "learn(\nnum_updates=5_000)", LEARNER),
        ("act", "predict(x)", "policy.\nact_batch(obs)", MODULE),
        ("keep", 'save("bc.d3")', 'save("bc")', RUNNER),
    ]
    for y, name in ((2.3, "d3rlpy"), (0.85, "here")):
        heading(axes, 0.1, y, name)
    for i, (step, theirs, ours, colour) in enumerate(steps):
        left = 0.9 + 1.62 * i
        heading(axes, left + 0.75, 3.1, step, "center")
        panel(axes, left, 2.3, 1.5, 0.95, "", theirs, size=8, font=MONO)
        panel(axes, left, 0.85, 1.5, 0.95, colour, ours, size=8, font=MONO)
        arrow(axes, (left + 0.75, 1.82), (left + 0.75, 1.33))
    save(axes, path)


def connectors(path: Path) -> None:
    """Above, RLlib's pipelines; below, the five places where the same is done here."""
    axes = canvas(9, 4.5)
    heading(axes, 0.1, 4.3, "RLlib")
    theirs = [
        (0.1, 0.9, "env"),
        (1.35, 1.6, "env-to-module\npieces"),
        (3.3, 1.0, "module"),
        (4.65, 1.6, "module-to-env\npieces"),
        (6.6, 1.3, "learner\npieces"),
        (8.1, 0.8, "learner"),
    ]
    for left, width, text in theirs:
        panel(axes, left, 3.65, width, 0.62, LEARNER if "pieces" in text else "", text, size=9)
    for start, end in ((1.0, 1.35), (2.95, 3.3), (4.3, 4.65), (7.9, 8.1)):
        arrow(axes, (start, 3.65), (end, 3.65))
    line(axes, (0.1, 2.95), (8.9, 2.95))
    heading(axes, 0.1, 2.7, "here")
    ours = [
        (0.1, 2.0, SLATE, "environment", "1  wrapper: what the task\nshows, takes, pays"),
        (2.75, 2.75, MODULE, "module", "2  encoder: how the net reads\n3  settings: what happened before"),
        (6.15, 2.75, CATALOG, "learner", "4  preprocess_train_data:\nwhat the loss is computed from"),
    ]
    for left, width, colour, name, text in ours:
        panel(axes, left, 1.75, width, 1.2, colour)
        axes.text(left + width / 2, 2.13, name, color="white", size=10.5, weight="bold", ha="center", va="center")
        axes.text(left + width / 2, 1.6, text, color="white", size=8.8, ha="center", va="center", linespacing=1.35)
    arrow(axes, (2.1, 1.9), (2.75, 1.9))
    arrow(axes, (2.75, 1.6), (2.1, 1.6))
    arrow(axes, (5.5, 1.75), (6.15, 1.75))
    note(axes, 5.82, 1.98, "rollout")
    panel(
        axes,
        2.75,
        0.5,
        6.15,
        0.5,
        SLATE,
        "5  callbacks: what you want to see, on_sample_end with every rollout",
        size=9,
    )
    arrow(axes, (5.82, 1.6), (5.82, 0.77))
    save(axes, path)


PICTURES = {
    "coming-from-sb3": coming_from_sb3,
    "coming-from-rllib": coming_from_rllib,
    "coming-from-cleanrl": coming_from_cleanrl,
    "coming-from-d3rlpy": coming_from_d3rlpy,
    "connectors": connectors,
}

if __name__ == "__main__":
    draw_all(PICTURES)
