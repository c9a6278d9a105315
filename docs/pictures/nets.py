"""Draw the pictures of the pages about nets. Run it as ``python docs/pictures/nets.py``."""

from pathlib import Path

import numpy as np
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

from catalog import DefaultModelConfig

MONO = "monospace"


def attention(path: Path) -> None:
    """Which steps a step sees, with a memory of four."""
    axes = canvas(9, 3.6)
    memory, start = 4, 5
    heading(axes, 0.2, 3.25, "attention_memory=4: a step sees itself and the four before it, within its episode")
    for t in range(14):
        x = 0.2 + 0.62 * t
        second = t >= start
        panel(axes, x, 1.45, 0.54, 0.5, (MODULE, RUNNER)[second], f"{t - start * second}", size=10)
    for t in (3, 6, 12):
        first = max(t - memory, start if t >= start else 0)
        for s in range(first, t):
            gap = t - s
            arrow(axes, (0.47 + 0.62 * t, 1.7), (0.47 + 0.62 * s, 1.7), bend=0.25 + 0.04 * gap)
    line(axes, (0.16 + 0.62 * start, 0.85), (0.16 + 0.62 * start, 2.6))
    note(axes, 0.2 + 0.62 * start, 2.72, "a new episode begins", "left")
    for t, text in ((3, "sees 0 to 3"), (6, "sees 0 and 1"), (12, "sees 3 to 7")):
        note(axes, 0.47 + 0.62 * t, 1.05, text)
    panel(axes, 0.2, 0.5, 6.74, 0.4, "", "a sequence that trains", size=9)
    panel(axes, 7.02, 0.5, 1.86, 0.4, "", "the next one", size=9)
    note(axes, 6.98, 0.15, "its state carries the last 4")
    save(axes, path)


def autoregressive_actions(path: Path) -> None:
    """The parts of the robot's action, each drawn in sight of those before it."""
    axes = canvas(9, 3.7)
    panel(axes, 0.1, 1.95, 1.5, 0.9, LEARNER, "policy head\n27 outputs, 16\nof them context", size=9)
    parts = [("tool", "3 choices"), ("grip[0]", "2 choices"), ("grip[1]", "2 choices"), ("move", "2 numbers")]
    given = ["P(tool)", "P(grip[0] | tool)", "P(grip[1] | tool, grip[0])", "P(move | all before)"]
    for i, ((name, kind), text) in enumerate(zip(parts, given, strict=True)):
        x = 2.2 + 1.75 * i
        panel(axes, x, 1.95, 1.3, 0.8, (MODULE, RUNNER)[i == 3], f"{name}\n{kind}")
        note(axes, x + 0.65, 1.35 - 0.26 * (i % 2), text)
        for j in range(i + 1, 4):
            bend = -0.25 - 0.05 * (j - i)
            arrow(axes, (x + 0.65 + 0.1 * (j - i), 2.35), (2.2 + 1.75 * j + 0.65 - 0.12 * (j - i), 2.35), bend=bend)
    arrow(axes, (1.6, 1.95), (2.2, 1.95))
    note(axes, 5.5, 3.55, "each arrow: a masked dense net (MADE) adds to the inputs of a later part")
    panel(axes, 2.2, 0.45, 3.05, 0.5, SLATE, "acting: a pass per part", size=9)
    panel(axes, 5.7, 0.45, 3.05, 0.5, SLATE, "learning: one pass for all parts", size=9)
    save(axes, path)


def custom_encoder(path: Path) -> None:
    """What changes with an encoder of your own, and what stays."""
    axes = canvas(9, 3.9)
    panel(axes, 0.1, 2.0, 1.35, 0.9, SLATE, "observation\n[B, 32]")
    arrow(axes, (1.45, 2.0), (2.0, 2.0))
    panel(axes, 2.0, 2.0, 2.4, 3.2, LEARNER)
    axes.text(3.2, 3.38, "the encoder: yours", color="white", size=10.5, weight="bold", ha="center", va="center")
    ways = [
        "settings\nfcnet_hiddens, conv_filters",
        "a module\nbuild_encoder()",
        "a net for a kind of space\na rule in the tree",
    ]
    for i, text in enumerate(ways):
        panel(axes, 2.15, 2.8 - 0.88 * i, 2.1, 0.74, CATALOG, text, size=8.8)
    arrow(axes, (4.4, 2.0), (5.0, 2.0))
    note(axes, 4.68, 2.25, "[B, D]")
    for y, head, out in (
        (2.75, "policy head", "distribution, mask,\nconverter"),
        (1.25, "value head", "value of the\nobservation"),
    ):
        panel(axes, 5.4, y, 1.25, 0.7, MODULE, head)
        arrow(axes, (5.0, 2.0), (5.4, y))
        arrow(axes, (6.65, y), (7.05, y))
        panel(axes, 7.05, y, 1.8, 0.7, MODULE, out, size=9)
    note(axes, 7.1, 3.55, "blue: stays as it is")
    note(axes, 7.1, 0.5, "so do the loss, memory,\nruns, checkpoints and exports")
    save(axes, path)


def functions(path: Path) -> None:
    """Encoders and heads of docs/functions.md's further outputs."""
    axes = canvas(9, 3.9)
    panel(axes, 0.1, 1.95, 1.2, 0.9, SLATE, "observation\n4")
    trunks = [
        (3.1, "actor encoder\n4 → 64 → 64"),
        (1.6, "critic encoder\n4 → 64 → 64"),
        (0.45, "'next_obs' encoder\n4 → 32"),
    ]
    for y, text in trunks:
        arrow(axes, (1.3, 1.95), (2.1, y))
        panel(axes, 2.1, y, 2.0, 0.7, CATALOG, text)
    heads = [
        (3.5, 3.1, "policy head  64 → 2", MODULE, "acts"),
        (2.75, 3.1, "'curiosity' head  64 → 10", LEARNER, 'trunk "policy", the default'),
        (1.95, 1.6, "value head  64 → 1", MODULE, "advantages"),
        (1.2, 1.6, "'risk' head  64 → 16 → 1", LEARNER, 'trunk "value"'),
        (0.45, 0.45, "'next_obs' head  32 → 4", LEARNER, 'trunk "own"'),
    ]
    for y, trunk, text, colour, what in heads:
        arrow(axes, (4.1, trunk), (4.7, y))
        panel(axes, 4.7, y, 2.3, 0.52, colour, text)
        note(axes, 7.1, y, what, "left")
    save(axes, path)


def parametric_actions(path: Path) -> None:
    """The product of docs/parametric-actions.md: rows that the observation holds, times the intent of the net."""
    axes = canvas(9, 3.4)
    rows, intent = np.array([[1.0, 2.0], [0.0, 4.0], [0.0, 0.0]]), np.array([3.0, -1.0])
    panel(axes, 0.1, 2.6, 1.9, 0.7, SLATE, "other fields\nof the observation", size=9)
    arrow(axes, (2.0, 2.6), (2.4, 2.6))
    panel(axes, 2.4, 2.6, 1.6, 0.7, MODULE, "encoder, head", size=9.5)
    arrow(axes, (4.0, 2.6), (4.4, 2.6))
    for i, number in enumerate(intent):
        panel(axes, 4.4 + 0.62 * i, 2.6, 0.56, 0.46, MODULE, f"{number:g}")
    note(axes, 4.98, 3.0, "intent")
    panel(axes, 0.1, 1.15, 1.9, 0.7, SLATE, "avail_actions\na row for each action", size=9)
    arrow(axes, (2.0, 1.15), (3.5, 1.15))
    for i, row in enumerate(rows):
        y = 1.75 - 0.6 * i
        for j, number in enumerate(row):
            panel(axes, 4.4 + 0.62 * j, y, 0.56, 0.46, SLATE, f"{number:g}")
        note(axes, 4.25, y, f"action {i}", "right")
        note(axes, 6.15, y, "·  intent  =")
        panel(axes, 6.7, y, 0.75, 0.46, LEARNER, f"{row @ intent:g}")
    note(axes, 7.07, 2.2, "logit")
    arrow(axes, (4.98, 2.35), (4.98, 2.02))
    note(axes, 7.55, 0.55, "nothing in this row:\nthe mask forbids it", "left")
    save(axes, path)


def shared_parts(path: Path) -> None:
    """Left, the shared parts of the first code of docs/shared-parts.md; right, a central critic."""
    axes = canvas(9, 3.9)
    heading(axes, 0.1, 3.75, "policies with shared parts, brown")
    for i in range(3):
        x = 0.1 + 1.45 * i
        panel(axes, x, 3.2, 1.3, 0.42, MODULE, "policy head", size=9)
        panel(axes, x, 1.85, 1.3, 0.42, SLATE, f"cart_{i}: obs", size=9)
        panel(axes, x, 1.15, 1.3, 0.42, MODULE, "critic encoder", size=9)
        for start, end in ((2.05, 2.32), (2.73, 3.0), (1.65, 1.35), (0.95, 0.65)):
            arrow(axes, (x + 0.65, start), (x + 0.65, end))
    panel(axes, 0.1, 2.52, 4.2, 0.42, LEARNER, "trunk: one actor encoder for three")
    panel(axes, 0.1, 0.45, 2.75, 0.42, LEARNER, "values: one value head for two", size=9)
    panel(axes, 3.0, 0.45, 1.3, 0.42, MODULE, "value head", size=9)
    line(axes, (4.6, 0.1), (4.6, 3.8))
    heading(axes, 4.9, 3.75, "a central critic")
    panel(axes, 4.9, 2.75, 1.7, 0.5, SLATE, "obs of an agent", size=9)
    panel(axes, 7.1, 2.75, 1.75, 0.5, SLATE, "state of the env", size=9)
    panel(axes, 4.9, 1.9, 1.7, 0.5, MODULE, "actor encoder", size=9)
    panel(axes, 7.1, 1.9, 1.75, 0.5, LEARNER, "critic encoder", size=9)
    panel(axes, 4.9, 1.05, 1.7, 0.5, MODULE, "policy", size=9)
    panel(axes, 7.1, 1.05, 1.75, 0.5, LEARNER, "value", size=9)
    for x in (5.75, 7.97):
        arrow(axes, (x, 2.5), (x, 2.15))
        arrow(axes, (x, 1.65), (x, 1.3))
    arrow(axes, (6.5, 2.5), (7.3, 2.15))
    note(axes, 5.75, 0.5, "acts alone:\nrunners, act(), exports")
    note(axes, 7.97, 0.5, "only while it learns:\ncritic_only_keys")
    save(axes, path)


PLACES = [
    (
        0.1,
        SLATE,
        "observation",
        ["flatten_observations", "normalize_observations", "matrix_observations", "discrete_embedding_dim"],
    ),
    (2.35, CATALOG, "encoder", ["fcnet_hiddens", "fcnet_activation", "conv_filters", "fusionnet_hiddens"]),
    (4.6, MODULE, "memory", ["use_lstm, use_gru", "use_attention", "max_seq_len", "lstm_cell_size"]),
    (
        6.85,
        LEARNER,
        "heads, distribution",
        ["head_fcnet_hiddens", "free_log_std", "custom_action_dist", "autoregressive_actions"],
    ),
]
"""Left edge, colour and name of each part of a module, with settings that shape it."""


def model_settings(path: Path) -> None:
    """Which settings shape which part of a module; raises if a setting is not there."""
    axes = canvas(9, 3.35)
    known = DefaultModelConfig.__dataclass_fields__
    for left, colour, name, settings in PLACES:
        assert not {one for text in settings for one in text.split(", ")} - known.keys(), name
        panel(axes, left, 2.85, 2.05, 0.6, colour, name, weight="bold")
        panel(axes, left, 1.75, 2.05, 1.2, colour, "\n".join(settings), size=8.3, font=MONO)
        if left < 6:
            arrow(axes, (left + 2.05, 2.85), (left + 2.25, 2.85))
    assert {"leaf_overrides", "functions", "vf_share_layers"} <= known.keys()
    for y, left, width, text in (
        (0.8, 0.1, 4.3, "leaf_overrides: other settings for a part of a Dict"),
        (0.8, 4.6, 4.3, "functions: other settings for policy, value, …"),
        (0.28, 0.1, 8.8, "vf_share_layers: one encoder for policy and value function, or one each"),
    ):
        panel(axes, left, y, width, 0.4, "", text, size=9)
    save(axes, path)


PICTURES = {
    "attention": attention,
    "autoregressive-actions": autoregressive_actions,
    "custom-encoder": custom_encoder,
    "functions": functions,
    "parametric-actions": parametric_actions,
    "shared-parts": shared_parts,
    "model-settings": model_settings,
}

if __name__ == "__main__":
    draw_all(PICTURES)
