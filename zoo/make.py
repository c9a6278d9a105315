"""Make the folders of the zoo: ``python -m zoo.make``, or for some of the policies ``python -m zoo.make ppo-taxi``.

It trains the policies that are not trained yet, and goes on where it was interrupted. Then it writes for each policy
its checkpoint, its score, a film and a card.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from algorithms import Algorithm
from algorithms.cli.evaluate import objects_without_training
from algorithms.run.checkpoints import read_checkpoint
from rlmodule.checkpoint import KIND
from rlmodule.modules.hub import model_card, score_of
from rlmodule.sealed_folder import read_manifest
from zoo.policies import ALLOW, COMMANDS, DATA, EPISODES, FLAGS, env_of, evaluate_command

RUNS, ZOO = Path("runs/zoo"), Path("zoo")
LARGEST_FILM = 48_000
"""Most bytes of a film, so that all folders stay below 5 MB."""

_SIZES = ((240, 10), (200, 10), (160, 10), (160, 8), (120, 8), (120, 6), (96, 5))
"""Width and frames per second of a film, the largest first."""


def train(name: str) -> None:
    """Train the policy ``name``, or go on with its training. Keep the CPU seconds next to the folder of the run."""
    run = RUNS / name
    if name in DATA and not run.exists():
        rlmodule(*shlex.split(DATA[name]))
    seconds = run.with_suffix(".cpu.json")
    spent = json.loads(seconds.read_text()) if seconds.exists() else 0.0
    before = _cpu_seconds()
    command = f"{COMMANDS[name]} {FLAGS} --resume auto --no-hints --run-dir {run}"
    rlmodule(*shlex.split(command))
    seconds.write_text(json.dumps(spent + _cpu_seconds() - before))


def publish(name: str) -> None:
    """Write the folder of the trained policy ``name``."""
    folder, best = ZOO / name, RUNS / name / "best_checkpoint"
    allow = [ALLOW] if ALLOW in env_of(name) else []
    # without the paths of the run, and without its replay buffer
    objects = objects_without_training(read_checkpoint(best, replay=False), allow)
    with Algorithm.from_checkpoint(best, allow=allow, **objects) as algorithm:
        algorithm.save(folder / "checkpoint")
    printed = rlmodule(*shlex.split(evaluate_command(name)), "--episodes", str(EPISODES), "--json")
    evaluation = json.loads(printed)
    (folder / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n", encoding="utf-8")
    film = write_film(name)
    about = read_manifest(best, KIND)
    steps, of_run = (read_manifest(run, KIND)["about"]["env_steps"] for run in (best, best.with_name("checkpoint")))
    amount = f"{steps:,} env steps" if steps == of_run else f"{of_run:,} env steps, the best after {steps:,}"
    if about["about"]["updates"]:
        amount = f"{about['about']['updates']:,} updates from data: `rlmodule {DATA[name]}`"
    minutes = json.loads((RUNS / name).with_suffix(".cpu.json").read_text()) / 60
    score, result = score_of(evaluation, name)
    rows = {
        "Return": result,
        "Env": f"`{env_of(name)}`",
        "Made by": f"`rlmodule {COMMANDS[name]} {FLAGS}`",
        "Seeds tried": "1",
        "Training": f"{amount}, {minutes:.1f} CPU minutes",
        "Episodes": f"`rlmodule {evaluate_command(name)} --episodes {EPISODES}`: no training had this seed",
        "Versions": ", ".join(f"{package} {number}" for package, number in about["versions"].items()),
    }
    load = "rlmodule.agents.MultiAgentPolicy.load" if algorithm.config.is_multi_agent else "rlmodule.Policy.load"
    card = model_card(f"zoo/{name}", load, score, env_of(name), rows) + f"\n![An episode]({film})\n"
    (folder / "README.md").write_text(card, encoding="utf-8")


def write_film(name: str) -> str:
    """Write a film of an episode, or if the env cannot be shown here, the learning curve. Return the name of the
    file."""
    videos = RUNS / name / "videos"
    try:
        rlmodule(*shlex.split(evaluate_command(name)), "--episodes", "1", "--video", str(videos))
    except subprocess.CalledProcessError:
        shutil.copyfile(RUNS / name / "learning_curve.png", ZOO / name / "learning_curve.png")
        return "learning_curve.png"
    import imageio_ffmpeg  # comes with the extra "video"

    film = ZOO / name / "episode.gif"
    for width, rate in _SIZES:
        look = f"fps={rate},scale={width}:-1:flags=area,split[a][b];[a]palettegen=max_colors=32[p];[b][p]paletteuse"
        video = next(videos.glob("*.mp4"))
        convert = ["-y", "-loglevel", "error", "-t", "8", "-i", str(video), "-filter_complex", f"{look}=dither=none"]
        subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), *convert, str(film)], check=True)
        if film.stat().st_size <= LARGEST_FILM:
            return film.name
    raise ValueError(f"{film}: expected a film of at most {LARGEST_FILM:,} bytes, got none. Make it shorter.")


def rlmodule(*arguments: str) -> str:
    """Run a command of ``rlmodule``, and return what it printed, which is also shown unless it is JSON."""
    command = [sys.executable, "-m", "algorithms.cli", *arguments]
    if "--json" not in arguments:
        subprocess.run(command, check=True)
        return ""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _cpu_seconds() -> float:
    """Return the CPU seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the policies that are named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m zoo.make", description="Make the policies of the zoo.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"policies, by default all: {', '.join(COMMANDS)}")
    parser.add_argument("--publish", action="store_true", help="write the folders of runs that have ended, train none")
    flags = parser.parse_args(arguments)
    names = flags.names or list(COMMANDS)
    for number, name in enumerate(names, 1):
        print(f"\n{number}/{len(names)} {name}", flush=True)
        done = RUNS / name / "done"
        if not flags.publish and not done.exists():
            train(name)
            done.touch()
        publish(name)


if __name__ == "__main__":
    main()
