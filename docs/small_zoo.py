"""Makes zoo.md, the policies in the folder zoo, from their cards."""

import re
from pathlib import Path

from tables import table_head, table_row

ZOO = Path(__file__).parents[1] / "zoo"

INTRODUCTION = """\
# A small zoo

<!-- Written by `python docs/generated.py` from the cards in zoo/; do not edit. -->

Trained policies to try, to compare with, and to train further. In the root of the repository:

```sh
rlmodule evaluate zoo/ppo-cartpole
rlmodule evaluate zoo/ppo-cartpole --render
rlmodule evaluate zoo/ppo-taxi --allow zoo.envs
rlmodule evaluate zoo/ppo-cartpole --seed 1000 --episodes 100
```

![Frames from the films of eight policies: CartPole, Acrobot, Pendulum, MountainCar, LunarLander, simple_spread, Taxi
and the continuous MountainCar.](pictures/zoo.png)

Each folder of [`zoo/`](../zoo/policies.py) has a checkpoint, a film or a learning curve, and a card with command,
versions and score: mean and standard deviation of 100 episodes with the most likely actions. The last line repeats the
score of such a card. All are small, were trained on one core, and have seed 1 of their command, the only seed that was
tried. TQC on InvertedDoublePendulum and QR-DQN on Acrobot were left out because of their scores. These scores are no
records: [how well the defaults learn](learning.md) has several seeds.

"""

REST = """
Taxi and the cart without velocities use envs of [`zoo/envs.py`](../zoo/envs.py),
which a checkpoint may import [only if you allow it](command-line.md#your-code-in-a-checkpoint). On another processor,
sums differ in their last bits, and so may episodes.

## Train them further

The checkpoints have the optimizer, but no replay buffer. So PPO and A2C continue as the run would, and DQN, SAC and TD3
fill a new buffer first. Nothing is written to the zoo:

```sh
rlmodule train --load zoo/ppo-halfcheetah --num-env-steps 500_000 --run-dir runs/cheetah
```

<!-- no-run -->
```python
from algorithms import Algorithm

with Algorithm.from_checkpoint("zoo/ppo-halfcheetah/checkpoint", run_dir="runs/cheetah-slow", lr=1e-4) as algo:
    algo.learn(num_env_steps=500_000)
```

`algo.learner_group.load_modules("zoo/ppo-cartpole/checkpoint")` loads only the weights, into a run with other settings
and the same nets.

## Push

```sh
rlmodule push zoo/ppo-cartpole user/cartpole --evaluation zoo/ppo-cartpole/evaluation.json --env CartPole-v1
```

This writes the policy [to the Hugging Face Hub](deploy.md#hub), with a card of the same kind.

## Train them again

`python -m zoo.make` trains all of them and writes their folders, in half an hour of CPU time. After an interruption, it
continues where it was. The commands are in [`zoo/policies.py`](../zoo/policies.py).
"""


def page() -> str:
    """Return the text of the page."""
    table = table_head("Policy", "Env", "Return", "Training", "Command")
    for card in sorted(ZOO.glob("*/README.md")):
        name = card.parent.name
        rows = dict(re.findall(r"^\| ([\w ]+) \| (.*) \|$", card.read_text(encoding="utf-8"), re.M))
        score = rows["Return"].partition(" over")[0].replace("+/-", "±")
        command = rows["Made by"].partition(" --seed")[0].replace("`rlmodule train ", "`") + "`"
        table.append(table_row(f"[{name}](../zoo/{name}/README.md)", rows["Env"], score, rows["Training"], command))
    return INTRODUCTION + "\n".join(table) + "\n" + REST
