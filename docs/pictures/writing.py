"""Draw the pictures of the pages about losses and algorithms. Run it as ``python docs/pictures/writing.py``."""

from itertools import pairwise
from pathlib import Path

from drawing import (
    CATALOG,
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

MONO = "monospace"


def custom_loss(path: Path) -> None:
    """PPO's update as a pipeline, with the methods to override in brown."""
    axes = canvas(9, 4.35)
    panel(axes, 0.1, 3.6, 1.2, 0.6, SLATE, "rollout\n[T, N, …]")
    panel(axes, 1.75, 3.6, 2.3, 0.6, LEARNER, "preprocess_train_data\nchange columns, add some", size=8.5)
    panel(axes, 4.5, 3.6, 2.1, 0.6, LEARNER, "make_train_batch\nvalues, advantages", size=8.5)
    panel(axes, 7.05, 3.6, 1.85, 0.6, SLATE, "minibatches\n[B, …]")
    for start, end in ((1.3, 1.75), (4.05, 4.5), (6.6, 7.05)):
        arrow(axes, (start, 3.6), (end, 3.6))
    arrow(axes, (7.97, 3.3), (7.97, 2.75))
    note(axes, 7.85, 3.02, "for each, num_epochs times", "right")
    panel(axes, 7.05, 2.45, 1.85, 0.6, MODULE, "forward_train\nthe module", size=8.5)
    arrow(axes, (7.05, 2.45), (6.6, 2.45))
    panel(axes, 3.3, 2.05, 3.3, 1.4, LEARNER)
    axes.text(4.95, 2.53, "compute_loss_for_module", color="white", size=9.5, weight="bold", ha="center", va="center")
    panel(axes, 3.42, 2.08, 1.48, 0.5, CATALOG, "compute_policy_\nobjective", size=8)
    panel(axes, 5.0, 2.08, 1.48, 0.5, CATALOG, "value_error", size=8)
    axes.text(4.95, 1.58, "policy, value and entropy terms → loss", color="white", size=8.5, ha="center", va="center")
    panel(axes, 3.3, 1.0, 3.3, 0.42, LEARNER, "compute_extra_losses, of the module", size=8.5)
    arrow(axes, (3.3, 2.05), (2.4, 1.95))
    arrow(axes, (3.3, 1.0), (2.4, 1.6))
    note(axes, 2.85, 1.55, "+")
    panel(axes, 0.1, 1.8, 2.3, 0.75, SLATE, "backward, clip, step")
    panel(axes, 0.1, 0.95, 2.3, 0.5, LEARNER, "configure_optimizer_\nfor_module", size=8.5)
    arrow(axes, (1.25, 1.2), (1.25, 1.43))
    panel(axes, 7.05, 1.0, 1.85, 0.42, LEARNER, "should_stop", size=8.5)
    note(axes, 7.97, 0.65, "after an epoch")
    note(axes, 0.1, 0.25, "brown, violet: methods that you may override", "left")
    save(axes, path)


def on_policy(path: Path) -> None:
    """One iteration of REINFORCE, and who wrote which part of it."""
    axes = canvas(9, 3.8)
    heading(axes, 0.1, 3.6, "Reinforce.training_step")
    panel(axes, 0.1, 2.95, 1.7, 0.6, SLATE, "self.sample()", font=MONO)
    panel(axes, 2.5, 2.95, 1.6, 0.6, RUNNER, "rollout\n(32, 8): steps, envs", size=8.8)
    panel(axes, 4.8, 2.95, 4.1, 0.6, SLATE, "learner_group.update_from_episodes", font=MONO)
    arrow(axes, (1.8, 2.95), (2.5, 2.95))
    arrow(axes, (4.1, 2.95), (4.8, 2.95))
    heading(axes, 0.1, 2.25, "ReinforceLearner")
    panel(axes, 0.1, 1.35, 3.0, 1.2, LEARNER)
    axes.text(1.6, 1.75, "make_train_batch", color="white", size=10, weight="bold", ha="center", va="center")
    text = "value_pass, advantages, targets\npack: the 256 valid rows\nonce per iteration, no gradient"
    axes.text(1.6, 1.2, text, color="white", size=8.8, ha="center", va="center", linespacing=1.3)
    panel(axes, 3.65, 1.35, 3.1, 1.2, LEARNER)
    axes.text(5.2, 1.75, "compute_loss_for_module", color="white", size=10, weight="bold", ha="center", va="center")
    text = "-logp · advantages\n+ ½ · (value - target)²\nfor every minibatch [B]"
    axes.text(5.2, 1.2, text, color="white", size=8.8, ha="center", va="center", linespacing=1.3)
    panel(axes, 7.3, 1.35, 1.6, 1.2, SLATE, "gradient_step\nclip, Adam", size=9)
    arrow(axes, (6.85, 2.65), (2.3, 1.95))
    arrow(axes, (3.1, 1.35), (3.65, 1.35))
    arrow(axes, (6.75, 1.35), (7.3, 1.35))
    arrow(axes, (8.1, 1.95), (8.1, 2.65))
    note(axes, 8.5, 2.3, "metrics")
    panel(
        axes,
        0.1,
        0.3,
        6.65,
        0.42,
        LEARNER,
        "ReinforceConfig: names the algorithm, the learner, the module; sets the defaults",
        size=9,
    )
    note(axes, 7.0, 0.3, "brown: you write it", "left")
    save(axes, path)


def off_policy(path: Path) -> None:
    """How three-step windows cut an episode, and the way of a batch through a learner with replay."""
    rewards, gamma, n_step = [1.0, 2.0, 4.0, 8.0], 0.5, 3
    axes = canvas(9, 4.5)
    heading(axes, 0.1, 4.3, "n_step=3, gamma=0.5: an episode of four steps, truncated")
    for t in range(5):
        panel(axes, 0.1 + 1.15 * t, 3.75, 0.6, 0.5, (SLATE, RUNNER)[t == 4], f"obs {t}", size=8.8)
        if t < 4:
            arrow(axes, (0.7 + 1.15 * t, 3.75), (1.25 + 1.15 * t, 3.75))
            note(axes, 0.97 + 1.15 * t, 3.93, f"{rewards[t]:g}")
    for t in range(4):
        y, last = 3.25 - 0.32 * t, min(t + n_step, 4)
        panel(axes, 0.1 + 1.15 * t, y, 1.15 * (last - t) + 0.6, 0.26, MODULE)
        total = sum(gamma**k * rewards[t + k] for k in range(last - t))
        sums = " + ".join(f"{gamma**k:g} · {rewards[t + k]:g}" if k else f"{rewards[t]:g}" for k in range(last - t))
        note(axes, 5.5, y, f"{sums} = {total:g}" if last - t > 1 else sums, "left")
        note(axes, 7.95, y, f"{gamma ** (last - t):g}")
        note(axes, 8.6, y, f"obs {last}")
    for x, name in ((6.2, "rewards"), (7.95, "discount"), (8.6, "next")):
        note(axes, x, 3.75, name)
    panel(axes, 0.1, 1.15, 1.35, 0.9, CATALOG, "replay ring\nrows × envs")
    steps = [
        (1.95, 1.5, SLATE, "sample\na batch [B]"),
        (3.9, 1.7, LEARNER, "compute_targets\nunder no_grad"),
        (6.05, 1.6, LEARNER, "compute_loss_\nfor_module"),
        (8.1, 0.8, SLATE, "step"),
    ]
    for left, width, colour, text in steps:
        panel(axes, left, 1.15, width, 0.9, colour, text, size=9)
    for (left, width, *_), (to, *_) in pairwise([(0.1, 1.35), *steps]):
        arrow(axes, (left + width, 1.15), (to, 1.15))
    arrow(axes, (6.85, 0.7), (1.2, 0.7), bend=-0.12)
    note(axes, 4.0, 0.22, "td_error: new priorities")
    arrow(axes, (8.5, 1.6), (4.75, 1.6), bend=0.16)
    note(axes, 6.8, 2.02, "target nets follow")
    note(axes, 8.9, 0.22, "brown: you write it", "right")
    save(axes, path)


KINDS = {
    "on-policy": (
        "rollouts, then forgotten",
        RUNNER,
        ("EpisodeLearner", "make_train_batch\ncompute_loss_for_module"),
        ("EpisodeLearnerConfig", "settings: EpisodeTraining"),
        ("Algorithm", "training_step"),
    ),
    "off-policy": (
        "a replay buffer",
        CATALOG,
        ("ReplayLearner", "compute_targets\ncompute_loss_for_module"),
        ("ReplayConfig", "settings: ReplayTraining"),
        ("ReplayAlgorithm", "before_sampling, at most"),
    ),
    "from data": (
        "a data set",
        MODULE,
        ("BatchLearner", "compute_loss_for_module"),
        ("DataConfig", "settings: DataTraining"),
        ("DataAlgorithm", "nothing"),
    ),
}
"""Kind of algorithm → what it learns from, its colour, and for each of its three parts the base and what you write."""


def write_your_own(path: Path) -> None:
    """The three kinds of algorithms: their bases, and what you write."""
    axes = canvas(9, 3.9)
    for y, name in ((2.75, "learner"), (1.65, "config"), (0.62, "algorithm")):
        heading(axes, 1.15, y, name, "right")
    for i, (kind, (source, colour, *parts)) in enumerate(KINDS.items()):
        left = 1.35 + 2.55 * i
        panel(axes, left, 3.55, 2.4, 0.55, colour, f"{kind}: {source}", size=8.6, weight="bold")
        for y, (base, yours) in zip((2.75, 1.65, 0.62), parts, strict=True):
            panel(axes, left, y + 0.24, 2.4, 0.4, SLATE, base, font=MONO, size=9)
            panel(axes, left, y - 0.22, 2.4, 0.46, LEARNER if yours != "nothing" else "", yours, font=MONO, size=8.2)
    note(axes, 1.15, 2.35, "brown: you write", "right")
    save(axes, path)


def streams(path: Path) -> None:
    """When two runners and a learner work, with PPO and with IMPALA; computed from how long each takes."""
    fast, slow, learn, end = 6, 14, 7, 52
    axes = canvas(9, 4.3)
    left, unit = 1.15, 7.75 / end

    def work(y: float, start: float, length: float, colour: str, text: str) -> None:
        width = min(length, end - start)
        if width > 0:
            panel(
                axes,
                left + unit * start + 0.015,
                y,
                unit * width - 0.03,
                0.38,
                colour,
                text if width == length else "",
                size=8.5,
            )

    def lanes(top: float, title: str) -> list[float]:
        heading(axes, 0.1, top + 0.42, title)
        ys = [top, top - 0.47, top - 0.94]
        for y, name in zip(ys, ("runner 1", "runner 2", "learner"), strict=True):
            note(axes, left - 0.1, y, name, "right")
        return ys

    ys = lanes(3.6, "PPO: all wait for the slowest")
    for i, start in enumerate(range(0, end, slow + learn)):
        work(ys[0], start, fast, RUNNER, f"a{i + 1}")
        work(ys[1], start, slow, MODULE, f"b{i + 1}")
        work(ys[2], start + slow, learn, LEARNER, f"a{i + 1} b{i + 1}")
    ys = lanes(1.65, "IMPALA and APPO: no runner waits for another")
    arrivals: list[tuple[int, str]] = []
    for y, length, colour, name in ((ys[0], fast, RUNNER, "a"), (ys[1], slow, MODULE, "b")):
        for i, start in enumerate(range(0, end, length)):
            work(y, start, length, colour, f"{name}{i + 1}")
            arrivals.append((start + length, f"{name}{i + 1}"))
    arrivals.sort()
    free = 0
    for (_, first), (ready, second) in zip(arrivals[::2], arrivals[1::2], strict=False):
        start = max(free, ready)
        work(ys[2], start, learn, LEARNER, f"{first} {second}")
        free = start + learn
    arrow(axes, (left, 0.25), (8.9, 0.25))
    note(axes, left - 0.1, 0.25, "time", "right")
    save(axes, path)


def self_play(path: Path) -> None:
    """A league: the policy that learns, and the past selves that are its opponents."""
    axes = canvas(9, 3.7)
    heading(axes, 0.1, 3.5, "League(every=2, max_snapshots=3)")
    for i in range(5):
        x = 0.1 + 1.15 * i
        panel(axes, x, 2.75, 0.85, 0.55, LEARNER, f"after {i}" if i else "start", size=9)
        if i < 4:
            arrow(axes, (x + 0.85, 2.75), (x + 1.15, 2.75))
        if i % 2 == 0:
            arrow(axes, (x + 0.42, 2.47), (x + 0.42, 1.85))
            panel(axes, x - 0.1 * (i > 0), 1.55, 1.5, 0.55, MODULE, f"default_policy_{i}\na frozen copy", size=8.3)
    note(axes, 0.1, 0.95, "A snapshot too many? The one that is drawn least goes, never the newest.", "left")
    line(axes, (6.45, 0.15), (6.45, 3.5))
    heading(axes, 6.7, 3.5, "an episode")
    panel(axes, 6.7, 2.75, 2.2, 0.55, LEARNER, "one agent, drawn:\ndefault_policy", size=9)
    panel(axes, 6.7, 1.55, 2.2, 0.55, MODULE, "all others:\none opponent", size=9)
    note(axes, 7.8, 2.15, "against")
    arrow(axes, (5.95, 1.55), (6.7, 1.55))
    note(
        axes,
        6.7,
        0.75,
        "drawn: the newest, itself, or one\nby (1 - win rate) ** power:\nthe hard ones more often",
        "left",
    )
    save(axes, path)


PICTURES = {
    "custom-loss": custom_loss,
    "on-policy": on_policy,
    "off-policy": off_policy,
    "write-your-own": write_your_own,
    "streams": streams,
    "self-play": self_play,
}

if __name__ == "__main__":
    draw_all(PICTURES)
