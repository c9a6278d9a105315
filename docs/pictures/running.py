"""Draw the pictures of the pages about runs. Run it as ``python docs/pictures/running.py``.

evaluate-and-deploy.png shows evaluations of ``curves/ppo.json``, which ``curves/measure.py`` measured.
"""

import json
from itertools import pairwise
from pathlib import Path

from drawing import (
    CATALOG,
    HERE,
    LEARNER,
    MODULE,
    RUNNER,
    SLATE,
    WRONG,
    arrow,
    bar,
    canvas,
    draw_all,
    heading,
    line,
    note,
    panel,
    save,
)

from algorithms.ppo import PPOConfig
from catalog.settings import sections_of, settings_of

MONO = "monospace"


def callbacks(path: Path) -> None:
    """What a run does from left to right, and which callback it calls after it."""
    axes = canvas(9, 3.95)
    stages = [
        (0.1, 1.0, SLATE, "build()", "on_environment_created"),
        (1.35, 1.15, RUNNER, "sample", "on_sample_end"),
        (2.75, 1.15, LEARNER, "learn", ""),
        (4.15, 1.3, MODULE, "evaluate", "on_evaluate_end"),
        (5.7, 0.95, SLATE, "result", "on_train_result"),
        (6.9, 0.75, SLATE, "log", ""),
        (7.9, 1.0, CATALOG, "checkpoint", "on_checkpoint"),
    ]
    panel(axes, 1.2, 3.15, 7.75, 1.0, "")
    note(axes, 5.1, 3.8, "one iteration: train(), again and again")
    for left, width, colour, name, _ in stages:
        panel(axes, left, 3.15, width, 0.6, colour, name, weight="bold")
    for (left, width, *_), (to, *_) in pairwise(stages):
        arrow(axes, (left + width, 3.15), (to, 3.15))
    called = [
        (0.1, 1.95, 2.0, "on_environment_created", "once per vector of envs"),
        (1.6, 1.6, 1.25, "on_sample_end", "with the rollout"),
        (1.6, 1.6, 0.5, "on_episode_end", "for each that ended in it"),
        (3.65, 1.95, 2.0, "on_environment_created", "before the first evaluation"),
        (3.83, 1.6, 1.25, "on_episode_end", "for each that counts"),
        (3.83, 1.6, 0.5, "on_evaluate_end", "with its metrics"),
        (5.65, 1.6, 1.25, "on_train_result", "before logging"),
        (7.35, 1.6, 1.25, "on_checkpoint", "once it is written"),
    ]
    for left, width, y, name, when in called:
        panel(axes, left, y, width, 0.36, LEARNER, name, size=8.5, font=MONO)
        note(axes, left + width / 2, y - 0.3, when)
    for x, y in ((0.6, 2.2), (2.4, 1.45), (4.63, 2.2), (6.3, 1.45), (8.3, 1.45)):
        line(axes, (x, 2.82), (x, y))
    save(axes, path)


def command_line(path: Path) -> None:
    """What the commands take and leave."""
    axes = canvas(9, 4.2)
    panel(axes, 0.15, 3.55, 1.3, 0.6, SLATE, "ENV", weight="bold")
    for y, name, what in ((3.55, "doctor", "is it right?"), (2.85, "explain", "which nets?")):
        panel(axes, 2.2, y, 1.2, 0.46, RUNNER, name, font=MONO)
        note(axes, 3.5, y, what, "left")
    panel(axes, 2.2, 1.95, 1.2, 0.6, LEARNER, "train", font=MONO, weight="bold")
    panel(axes, 2.2, 0.85, 1.2, 0.46, LEARNER, "tune", font=MONO)
    note(axes, 2.8, 0.45, "many trials")
    for y in (3.55, 2.85, 1.95, 0.85):
        arrow(axes, (1.45, 3.55 if y == 3.55 else 3.3), (2.2, y))
    panel(
        axes,
        4.45,
        1.5,
        1.8,
        1.9,
        CATALOG,
        "run folder\n\nrun.json\nprogress.jsonl\ncheckpoint/\nbest_checkpoint/",
        size=9,
    )
    arrow(axes, (3.4, 2.1), (4.45, 2.1))
    arrow(axes, (4.45, 1.85), (3.4, 1.85))
    arrow(axes, (3.4, 0.85), (4.45, 1.0))
    ways = [
        ("evaluate", "returns, videos", MODULE),
        ("record", "a data set", MODULE),
        ("export", "ONNX, a folder", MODULE),
        ("push", "the Hub", MODULE),
        ("inspect", "what is in it", SLATE),
        ("plot", "learning curves", RUNNER),
        ("compare", "which is better", RUNNER),
    ]
    for i, (name, what, colour) in enumerate(ways):
        y = 3.85 - 0.57 * i
        panel(axes, 6.75, y, 1.05, 0.42, colour, name, font=MONO)
        note(axes, 7.88, y, what, "left")
        arrow(axes, (6.25, 1.5 + 0.25 * (3 - i)), (6.75, y))
    note(axes, 3.92, 1.56, "--load,\n--resume auto")
    save(axes, path)


def loggers(path: Path) -> None:
    """One iteration's result on its way to all loggers of a run."""
    axes = canvas(9, 3.8)
    result = [
        "result = algo.train()\n",
        '"training_iteration": 7',
        '"env_runners":\n  "episode_return_mean": …',
        '"learners":\n  "default_policy":\n    "entropy": …',
    ]
    panel(axes, 0.1, 1.95, 2.65, 2.2, SLATE, "\n".join(result), size=8.5, font=MONO, align="left")
    arrow(axes, (2.75, 1.95), (3.2, 1.95))
    paths = "training_iteration\nenv_runners/episode_return_mean\nlearners/default_policy/entropy"
    panel(axes, 3.2, 1.95, 2.55, 0.9, MODULE, paths, size=7.8, font=MONO)
    note(axes, 4.47, 1.3, "each number under its path;\nthe x axis is env steps")
    ways = [
        ('"jsonl"', "progress.jsonl: everything", RUNNER),
        ('"tensorboard"', "events.out.tfevents…", RUNNER),
        ('"csv"', "progress.csv: a row each", CATALOG),
        ('"wandb"', "W&B's server, or ./wandb/", CATALOG),
        ('"mlflow"', "an MLflow server", CATALOG),
        ("your class", "log(values, env_steps)", LEARNER),
    ]
    for i, (name, where, colour) in enumerate(ways):
        y = 3.5 - 0.62 * i
        arrow(axes, (5.75, 1.95 + 0.12 * (2.5 - i)), (6.15, y))
        panel(axes, 6.15, y, 2.75, 0.52, colour, f"{name}\n{where}", size=8.5)
    note(axes, 0.1, 0.25, "green: the default, with a run_dir", "left")
    save(axes, path)


def metrics(path: Path) -> None:
    """The sections of a result, next to the phase of the iteration that fills them."""
    axes = canvas(9, 3.4)
    phases = [
        (
            0.1,
            RUNNER,
            "sample",
            "env_runners",
            ["episode_return_mean", "episode_len_mean", "num_env_steps_sampled", "…_lifetime"],
        ),
        (2.35, LEARNER, "learn", "learners/<policy>", ["policy_loss", "vf_loss", "entropy", "gradient_norm"]),
        (
            4.6,
            MODULE,
            "evaluate",
            "evaluation/env_runners",
            ["episode_return_mean", "episode_return_std", "num_episodes"],
        ),
        (6.85, CATALOG, "your callbacks", "custom_metrics", ["NAME, the mean of the", "values that you log"]),
    ]
    for left, colour, phase, section, names in phases:
        panel(axes, left, 3.0, 2.05, 0.55, colour, phase, weight="bold")
        arrow(axes, (left + 1.02, 2.72), (left + 1.02, 2.4))
        text = section + "\n\n" + "\n".join(f"{name}" for name in names)
        panel(axes, left, 1.6, 2.05, 1.55, colour, text, size=8, font=MONO)
        if left < 6:
            arrow(axes, (left + 2.05, 3.0), (left + 2.25, 3.0))
    panel(axes, 0.1, 0.4, 4.3, 0.45, SLATE, "timers/env_step, forward, update, …: the seconds", size=8.5)
    panel(axes, 4.6, 0.4, 4.3, 0.45, SLATE, "training_iteration, time_total_s: the run so far", size=8.5)
    save(axes, path)


SHOWN = {
    "environment": (RUNNER, ["env", "env_config"]),
    "env_runners": (RUNNER, ["num_env_runners", "num_envs_per_env_runner"]),
    "fault_tolerance": (RUNNER, ["restart_failed_env_runners", "max_restarts_in_a_row"]),
    "rl_module": (MODULE, ["model_config", "rl_module_spec"]),
    "multi_agent": (MODULE, ["policies", "policy_mapping_fn"]),
    "training": (LEARNER, ["lr", "gamma", "train_batch_size_per_learner"]),
    "learners": (LEARNER, ["num_learners", "num_gpus_per_learner"]),
    "debugging": (LEARNER, ["seed"]),
    "evaluation": (CATALOG, ["evaluation_interval", "evaluation_duration"]),
    "callbacks": (CATALOG, ["on_train_result", "on_episode_end"]),
    "reporting": (SLATE, ["run_dir", "loggers"]),
    "checkpointing": (SLATE, ["checkpoint_interval", "keep_best_checkpoint"]),
}
"""Section of a config → its colour and some of its settings."""


def configuration(path: Path) -> None:
    """The sections of PPO's config, each with some of its settings; raises if one is not there."""
    sections = {name: settings_of(section) for name, section in sections_of(PPOConfig).items()}
    assert sections.keys() == SHOWN.keys()
    axes = canvas(9, 3.95)
    for i, (name, (colour, settings)) in enumerate(SHOWN.items()):
        assert sections[name].keys() >= {*settings}, name
        left, y = 0.1 + 2.98 * (i % 3), 3.41 - 0.97 * (i // 3)
        more = len(sections[name]) - len(settings)
        panel(axes, left, y, 2.84, 0.88, colour)
        axes.text(left + 0.1, y + 0.29, f".{name}(…)", color="white", size=10, weight="bold", family=MONO, va="center")
        shown = "\n".join(settings[:2]) if len(settings) < 3 else f"{settings[0]}, {settings[1]}\n{settings[2]}"
        axes.text(left + 0.1, y - 0.14, shown, color="white", size=8.5, family=MONO, va="center", linespacing=1.3)
        if more:
            axes.text(left + 2.74, y + 0.29, f"+ {more}", color="white", size=8.5, ha="right", va="center")
    save(axes, path)


def evaluate_and_deploy(path: Path) -> None:
    """Evaluations of a run of PPO on CartPole, one after each iteration, and the two checkpoints that are kept."""
    results = json.loads((HERE / "curves" / "ppo.json").read_text(encoding="utf-8"))["PPO"][1]
    target = next(i for i, (_, value) in enumerate(results) if value >= 475)
    axes = canvas(9, 3.4)
    bottom, unit = 0.65, 2.2 / 500
    for i, (steps, value) in enumerate(results[: target + 1]):
        left = 1.15 + 0.68 * i
        bar(axes, left, bottom, 0.5, unit * value, RUNNER if i == target else MODULE)
        axes.text(
            left + 0.25, bottom + unit * value - 0.15, f"{value:.0f}", color="white", size=9, ha="center", va="center"
        )
        note(axes, left + 0.25, 0.47, f"{steps:,}")
    line(axes, (1.05, bottom + unit * 475), (6.8, bottom + unit * 475))
    note(axes, 0.98, bottom + unit * 475, "target_return", "right")
    note(axes, 0.98, 1.6, "mean return\nof an\nevaluation", "right")
    note(axes, 3.8, 0.2, "env steps")
    arrow(axes, (6.5, bottom + unit * 400), (7.0, 2.5))
    panel(axes, 7.0, 2.5, 1.9, 0.62, RUNNER, "best_checkpoint/\nthe best so far", size=9)
    arrow(axes, (6.5, 1.1), (7.0, 1.2))
    panel(axes, 7.0, 1.2, 1.9, 0.62, SLATE, "checkpoint/\nthe end of the run", size=9)
    save(axes, path)


def deploy(path: Path) -> None:
    """What a policy holds, and the four ways in which it leaves a run."""
    axes = canvas(9, 3.9)
    panel(axes, 0.1, 2.0, 2.5, 3.3, CATALOG)
    axes.text(1.35, 3.4, "the module of a run", color="white", size=11, weight="bold", ha="center", va="center")
    parts = ["observation normaliser", "nets and memory", "action mask", "distribution", "action converter"]
    for i, part in enumerate(parts):
        panel(axes, 0.3, 2.9 - 0.52 * i, 2.1, 0.42, MODULE, part)
    ways = [
        (3.35, SLATE, "algo.policy", "the script that trained"),
        (2.45, RUNNER, "policy.save(), Policy.load()", "Python, with torch and this package"),
        (1.55, RUNNER, 'policy.export("x.onnx")', "onnxruntime: robots, servers, browsers"),
        (0.65, RUNNER, 'policy.export("x.pt2")', "Python with torch alone, compiled C++"),
    ]
    for y, colour, name, where in ways:
        arrow(axes, (2.6, 2.0 + 0.3 * (y - 2.0)), (3.3, y))
        panel(axes, 3.3, y, 2.55, 0.6, colour, name, weight="bold", size=9)
        arrow(axes, (5.85, y), (6.2, y))
        note(axes, 6.27, y, where, "left")
    save(axes, path)


def faq(path: Path) -> None:
    """The parts of the first error of docs/faq.md, in its own words."""
    page = (HERE.parent / "faq.md").read_text(encoding="utf-8")
    error = " ".join(page.partition("```text\n")[2].partition("```")[0].split())
    where, _, rest = error.removeprefix("TypeError: ").partition(": expected ")
    expected, _, rest = rest.partition(", got ")
    got, _, remedy = rest.partition(". ")
    first, second = remedy.split(". ")
    axes = canvas(9, 2.75)
    parts = [
        (2.35, SLATE, "where", where),
        (1.73, MODULE, "expected", expected.replace("...", "… (all names of the section)")),
        (1.11, WRONG, "got", got),
        (0.4, RUNNER, "remedy", f"{first}.\n{second}"),
    ]
    for y, colour, name, text in parts:
        heading(axes, 1.15, y, name, "right")
        panel(axes, 1.35, y, 7.5, 0.68 if "\n" in text else 0.5, colour, text, size=10.5, font=MONO, align="left")
    save(axes, path)


def ray_tune(path: Path) -> None:
    """The search of docs/ray-tune.md: a grid of six trials, each with its own policies and CPUs."""
    axes = canvas(9, 3.9)
    space = [
        "env_config.num_agents\n  grid 2, 3, 4\n",
        "model_config.fcnet_hiddens\n  grid [64, 64], [256]\n",
        "lr\n  loguniform 1e-4 … 1e-2",
    ]
    panel(axes, 0.1, 2.0, 2.35, 2.3, SLATE, "\n".join(space), size=8.5, font=MONO, align="left")
    note(axes, 1.27, 3.4, "search space")
    for i, agents in enumerate((2, 3, 4)):
        for j, hiddens in enumerate(("[64, 64]", "[256]")):
            left, y = 3.0 + 2.05 * j, 3.2 - 1.2 * i
            panel(axes, left, y, 1.9, 1.05, CATALOG, "")
            text = f"{agents} agents, {hiddens}"
            axes.text(left + 0.95, y + 0.33, text, color="white", size=9, weight="bold", ha="center", va="center")
            for k in range(agents):
                panel(axes, left + 0.95 - 0.21 * agents + 0.42 * k + 0.03, y - 0.02, 0.36, 0.3, MODULE, f"π{k}", size=9)
            axes.text(left + 0.95, y - 0.36, "lr: drawn", color="white", size=8.5, ha="center", va="center")
        arrow(axes, (2.45, 2.0 + 0.4 * (1 - i)), (3.0, 3.2 - 1.2 * i))
        arrow(axes, (6.95, 3.2 - 1.2 * i), (7.35, 2.0 + 0.3 * (1 - i)))
    panel(axes, 7.35, 2.0, 1.55, 1.1, RUNNER, "best.config\nbest.checkpoint", size=9, font=MONO)
    note(axes, 5.0, 0.12, "six trials, each with CPUs reserved together: its own, those of its runners and learners")
    save(axes, path)


def reproducibility(path: Path) -> None:
    """The random streams that one seed gives, and what stays untouched."""
    axes = canvas(9, 3.8)
    panel(axes, 0.1, 2.2, 1.3, 0.8, LEARNER, "seed = 1", weight="bold", size=11)
    streams = [
        ("module", "initial weights", MODULE),
        ("learner", "order of minibatches", MODULE),
        ("env", "resets, one per environment", RUNNER),
        ("action", "action noise, one per environment", RUNNER),
        ("replay", "draws from replay", CATALOG),
        ("evaluation_env", "resets of evaluations", CATALOG),
    ]
    for i, (name, use, colour) in enumerate(streams):
        y = 3.5 - 0.53 * i
        arrow(axes, (1.4, 2.2 + 0.1 * (2.5 - i)), (2.1, y))
        panel(axes, 2.1, y, 4.0, 0.42, colour)
        axes.text(2.2, y, name, color="white", size=9.5, weight="bold", va="center")
        axes.text(3.6, y, use, color="white", size=9.5, va="center")
        arrow(axes, (6.1, y), (6.75, 2.2 + 0.1 * (2.5 - i)))
    panel(axes, 6.75, 2.65, 2.1, 0.7, RUNNER, "the run", weight="bold")
    panel(axes, 6.75, 1.75, 2.1, 0.7, RUNNER, "its repetition:\nequal to the bit")
    panel(axes, 2.1, 0.28, 4.0, 0.42, "", "random, numpy.random, torch.manual_seed: not read", size=9)
    save(axes, path)


PICTURES = {
    "callbacks": callbacks,
    "command-line": command_line,
    "loggers": loggers,
    "metrics": metrics,
    "configuration": configuration,
    "evaluate-and-deploy": evaluate_and_deploy,
    "deploy": deploy,
    "faq": faq,
    "ray-tune": ray_tune,
    "reproducibility": reproducibility,
}

if __name__ == "__main__":
    draw_all(PICTURES)
