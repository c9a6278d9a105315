"""Draw curves.png: two settings compared over five seeds. Run it as ``python docs/pictures/curves.py``.

``curves/`` holds what is drawn: run folders of PPO on CartPole-v1 with the default learning rate and with 1e-3, of
50,000 env steps each, evaluated over 20 episodes after every iteration. Of their logs only these evaluations are kept.
"""

from pathlib import Path

from algorithms.run.plotting import plot_runs

RUNS = Path(__file__).with_suffix("")


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    plot_runs([RUNS / "lr-0.0003", RUNS / "lr-0.001"], path)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
