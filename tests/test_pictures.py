"""The pictures that are drawn from the code show the code as it is: each holds the text that it was drawn from."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from algorithms.ppo import PPOConfig  # first, since a script next to the pictures is called tree, as a package is
from tests.rlmodule.agents.envs import Moment, ScriptedEnv

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PICTURES)
    return import_module


def text_in(picture: str) -> str:
    with Image.open(PICTURES / picture) as image:
        return image.info["Description"]


def test_the_iteration_is_drawn_as_it_runs(script: Any) -> None:
    drawing: ModuleType = script("iteration")
    assert text_in("iteration.png") == drawing.text_of(drawing.outline()), "run python docs/pictures/iteration.py"


def test_the_rooms_are_drawn_as_they_are(script: Any) -> None:
    drawing: ModuleType = script("rooms")
    assert text_in("rooms.png") == drawing.text_of(drawing.imports_between_rooms()), "run python docs/pictures/rooms.py"


def test_the_time_of_agents_is_drawn_as_their_rows_are_collected(script: Any) -> None:
    """The agents of the picture act in an env in which the reward of step t is 2 to the power of t."""
    drawing: ModuleType = script("agent_time")
    agents, steps = [*drawing.AGENTS], len(drawing.AGENTS["always acts"])

    def doing(sign: str, t: int) -> list[str]:
        return [agent for agent, does in drawing.AGENTS.items() if does[t] == sign]

    played = [
        Moment(
            acts=doing(drawing.OBSERVES, t),
            terminated=doing(drawing.ENDS, t),
            rewards={a: 2.0 ** (t - 1) for a, does in drawing.AGENTS.items() if t and does[t - 1] in "o."},
        )
        for t in range(steps)
    ]
    last = Moment(acts=["always acts"], rewards=dict.fromkeys(agents[:2], 2.0 ** (steps - 1)))
    config = PPOConfig(env=lambda env_config: ScriptedEnv([[*played, last]], agents), policies="shared", seed=1)
    config.update({"num_envs_per_env_runner": 1, "train_batch_size_per_learner": steps, "minibatch_size": None})
    with config.build() as algo:
        sampled: Any = algo.sample()
    (rollout,) = sampled.values()
    for slot, (agent, does) in enumerate(drawing.AGENTS.items()):
        is_open = agent == "acts in turns"
        rows = [sum(2.0**t for t in row) for row in drawing.rows_of(does)][: -1 if is_open else None]
        valid = rollout.valid[:, slot]
        assert rollout["rewards"][valid, slot].tolist() == rows
        episodes = drawing.episodes_of(does)[: len(rows)]
        starts = [i == 0 or episodes[i - 1] != episodes[i] for i in range(len(rows))]
        assert rollout["starts"][valid, slot].tolist() == starts
