"""Draw the pictures of the pages about spaces and environments. Run it as ``python docs/pictures/spaces.py``.

The episode of environments.png is played by the first code of docs/environments.md.
"""

from pathlib import Path
from typing import Any

import numpy as np
from drawing import (
    CATALOG,
    GREY,
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
    note,
    panel,
    save,
)


def action_masks(path: Path) -> None:
    """What a mask does to the logits of six actions, and to their probabilities."""
    axes = canvas(9, 3.6)
    logits = np.array([1.2, 0.3, 2.0, -0.4, 0.8, -1.1])
    mask = np.array([1, 1, 0, 1, 0, 1])
    masked = np.where(mask, logits, -1e9)
    before = np.exp(logits) / np.exp(logits).sum()
    after = np.exp(masked) / np.exp(masked).sum()
    names = ["logits of the net", "action_mask", "masked logits", "probabilities"]
    for name, y in zip(names, (3.1, 2.45, 1.8, 0.75), strict=True):
        heading(axes, 2.15, y, name, "right")
    for i, x in enumerate(2.4 + 1.08 * np.arange(6)):
        allowed = bool(mask[i])
        panel(axes, x, 3.1, 0.95, 0.42, MODULE, f"{logits[i]:.1f}")
        panel(axes, x, 2.45, 0.95, 0.42, RUNNER if allowed else WRONG, f"{mask[i]}")
        panel(axes, x, 1.8, 0.95, 0.42, MODULE if allowed else WRONG, f"{logits[i]:.1f}" if allowed else "-1e9")
        for left, share, colour in ((x + 0.08, before[i], GREY), (x + 0.5, after[i], RUNNER)):
            bar(axes, left, 0.36, 0.36, 1.9 * share, colour)
            note(axes, left + 0.18, 0.23, f"{share:.2f}" if share else "0")
    note(axes, 2.15, 0.5, "grey: without the mask\ngreen: with it", "right")
    save(axes, path)


def actions(path: Path) -> None:
    """How the action of docs/actions.md, a Dict of a choice and two numbers, is made and converted."""
    axes = canvas(9, 3.9)
    panel(axes, 0.1, 1.9, 1.35, 0.8, LEARNER, "policy head\n7 outputs")
    rows = [
        (2.85, "grip", "3 logits", "Categorical", "2", "add start", "2"),
        (0.95, "move", "2 means,\n2 log std", "DiagGaussian", "[0.5, 3.0]", "stretch to ±2,\nclip", "[1., 2.]"),
    ]
    for x, name in ((2.55, "inputs"), (4.15, "distribution"), (5.55, "sample"), (6.85, "converter")):
        heading(axes, x, 3.65, name, "center")
    for y, key, inputs, distribution, sample, converter, value in rows:
        arrow(axes, (1.45, 1.9 + (0.15 if y > 2 else -0.15)), (2.0, y))
        panel(axes, 2.0, y, 1.1, 0.62, MODULE, inputs)
        arrow(axes, (3.1, y), (3.45, y))
        panel(axes, 3.45, y, 1.4, 0.62, CATALOG, distribution)
        arrow(axes, (4.85, y), (5.1, y))
        panel(axes, 5.1, y, 0.9, 0.62, SLATE, sample)
        arrow(axes, (6.0, y), (6.25, y))
        panel(axes, 6.25, y, 1.2, 0.62, RUNNER, converter)
        arrow(axes, (7.45, y), (7.85, 1.9 + (0.25 if y > 2 else -0.25)))
        note(axes, 2.55, y + 0.45, f'"{key}"')
        note(axes, 7.75, y + 0.15 * np.sign(y - 1.9), value)
    panel(axes, 7.45, 1.9, 1.45, 0.72, SLATE, 'env.step({"grip": 2,\n"move": [1., 2.]})', size=8)
    note(axes, 4.15, 1.9, "log-probability, entropy and KL: the sum over the parts")
    save(axes, path)


def observations(path: Path) -> None:
    """The nets of a nested observation, as explain() names them, with the widths of their latents."""
    axes = canvas(9, 4.3)
    rows = [
        (3.65, "camera", "Box (84, 84, 3), bytes", "divided by 255", "CNN", 512),
        (2.85, "pose", "Box (6,)", "as float32", "MLP", 64),
        (2.05, "gear", "Discrete(5)", "one-hot", "MLP", 64),
        (1.25, "pair[0]", "MultiBinary(4)", "as float32", "MLP", 64),
        (0.45, "pair[1]", "MultiDiscrete([3, 3])", "one-hot per part", "MLP", 64),
    ]
    for x, name in ((0.1, "observation: Dict"), (2.95, "numbers"), (4.75, "encoder")):
        heading(axes, x, 4.12, name)
    for y, key, space, numbers, net, width in rows:
        panel(axes, 0.1, y, 2.5, 0.58, SLATE, f"{key}: {space}", size=9)
        arrow(axes, (2.6, y), (2.95, y))
        panel(axes, 2.95, y, 1.45, 0.58, RUNNER, numbers)
        arrow(axes, (4.4, y), (4.75, y))
        panel(axes, 4.75, y, 0.85, 0.58, CATALOG, net)
        end = (6.0, y) if key.startswith("pair") else (7.2, 2.85 - 0.3 + (y - 2.85) * 0.35)
        arrow(axes, (5.6, y), end)
        note(axes, 5.77, y + 0.2, f"{width}")
    panel(axes, 6.0, 0.85, 0.8, 1.3, CATALOG, "Tuple:\nfused\n128 → 64", size=9)
    arrow(axes, (6.8, 1.1), (7.2, 1.9))
    note(axes, 7.1, 1.35, "64")
    panel(axes, 7.2, 2.35, 0.85, 1.5, CATALOG, "Dict:\nfused\n704 → 64", size=9)
    arrow(axes, (8.05, 2.35), (8.35, 2.35))
    panel(axes, 8.3, 2.35, 0.62, 0.6, MODULE, "latent\n64", size=9)
    save(axes, path)


def atari(path: Path) -> None:
    """From the frames of a game to the observation (4, 84, 84)."""
    axes = canvas(9, 3.9)
    heading(axes, 0.2, 3.65, "frames of the game: each action holds for four")
    for t in range(16):
        x, step, kept = 0.2 + 0.525 * t, t // 4, t % 4 >= 2
        panel(axes, x, 3.05, 0.44, 0.6, (MODULE, RUNNER)[step % 2] if kept else "", f"{t + 1}", size=9)
    for step in range(4):
        x = 0.2 + 0.525 * (4 * step + 2) + 0.48
        arrow(axes, (x, 2.75), (x, 2.35))
        panel(axes, x - 0.68, 2.05, 1.36, 0.52, (MODULE, RUNNER)[step % 2], "the brighter,\ngrey, 84 × 84", size=8.5)
        arrow(axes, (x, 1.8), (4.0 + 0.42 * step, 1.15))
    for step in range(4):
        panel(axes, 3.65 + 0.42 * step, 0.8 - 0.05 * step, 0.62, 0.62, (MODULE, RUNNER)[step % 2], "84²", size=9)
    arrow(axes, (5.75, 0.72), (6.4, 0.72))
    panel(axes, 6.4, 0.72, 2.4, 0.62, CATALOG, "observation\n(4, 84, 84), bytes")
    note(axes, 0.2, 0.95, "frameskip=4", "left")
    note(axes, 0.2, 0.7, "stack_num=4", "left")
    note(axes, 0.2, 0.45, "the next step drops the oldest of the four", "left")
    save(axes, path)


def environments(path: Path) -> None:
    """An episode of the first environment of docs/environments.md: what is seen, done and paid."""
    page = (HERE.parent / "environments.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    env = names["Catch"](size=6)
    obs, _ = env.reset(seed=3)
    axes = canvas(9, 2.9)
    reward, over, pixel = 0.0, False, 0.185
    for t in range(6):
        x = 1.25 + 1.4 * t
        panel(axes, x - 3.15 * pixel, 1.9, 6.3 * pixel, 6.3 * pixel, "")
        caught = env.row == 5 and env.ball == env.catcher
        bar(axes, x + (env.catcher - 3) * pixel, 1.9 - 3 * pixel, pixel, pixel, RUNNER if caught else MODULE)
        if not caught:
            bar(axes, x + (env.ball - 3) * pixel, 1.9 + (2 - env.row) * pixel, pixel, pixel, LEARNER)
        note(axes, x, 1.05, "[" + ", ".join(f"{value:.1f}" for value in obs) + "]")
        note(axes, x, 0.73, "" if t == 0 else f"{reward:+.0f}" if reward else "0")
        note(axes, x, 0.41, "" if t == 0 else str(over))
        if over:
            break
        action = 1 + int(np.sign(env.ball - env.catcher))
        arrow(axes, (x + 0.58, 1.9), (x + 0.84, 1.9))
        note(axes, x + 0.7, 2.7, ("left", "stay", "right")[action])
        obs, reward, over, _, _ = env.step(action)
    for y, name in ((2.7, "action"), (1.05, "obs"), (0.73, "reward"), (0.41, "terminated")):
        note(axes, 0.03, y, name, "left")
    note(
        axes,
        0.03,
        0.12,
        "blue: the catcher    brown: the ball    green: caught    obs: row and column of the ball, the catcher",
        "left",
    )
    save(axes, path)


def batched_envs(path: Path) -> None:
    """Which tensors go round, with the numbers of the first code of docs/batched-envs.md."""
    axes = canvas(9, 3.7)
    panel(axes, 0.2, 1.85, 8.6, 3.5, "")
    note(axes, 4.5, 3.42, "one device: a CPU or a GPU")
    panel(axes, 0.5, 2.3, 2.2, 0.9, RUNNER, "simulator\n4,096 environments, one call")
    panel(axes, 4.05, 2.3, 1.7, 0.9, MODULE, "policy\none forward pass")
    arrow(axes, (2.7, 2.5), (4.05, 2.5))
    arrow(axes, (4.05, 2.1), (2.7, 2.1))
    note(axes, 3.37, 2.72, "obs [4096, …]")
    note(axes, 3.37, 1.88, "actions [4096, …]")
    arrow(axes, (1.6, 1.85), (1.6, 1.3))
    note(axes, 2.2, 1.55, "24 steps")
    for step in range(24):
        panel(axes, 0.5 + 0.135 * step, 0.85, 0.115, 0.75, (MODULE, RUNNER)[step % 2])
    note(axes, 2.1, 0.3, "rollout [24, 4096, …]: 98,304 rows")
    arrow(axes, (3.75, 0.85), (4.6, 0.85))
    for part in range(4):
        panel(axes, 4.65 + 0.44 * part, 0.85, 0.4, 0.75, CATALOG, "¼")
    note(axes, 5.5, 0.3, "4 minibatches of 24,576 rows")
    arrow(axes, (6.4, 0.85), (7.0, 0.85))
    panel(axes, 7.0, 0.85, 1.6, 0.75, LEARNER, "learner\n5 epochs")
    arrow(axes, (7.8, 1.22), (5.75, 2.3), bend=0.25)
    note(axes, 7.55, 2.1, "weights")
    save(axes, path)


PICTURES = {
    "action-masks": action_masks,
    "actions": actions,
    "observations": observations,
    "atari": atari,
    "environments": environments,
    "batched-envs": batched_envs,
}

if __name__ == "__main__":
    draw_all(PICTURES)
