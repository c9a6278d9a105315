"""A training as a script of its own, for tests that send it signals: ``python -m tests.faults.script FOLDER EPOCHS``.

It reports its progress by files in the folder. A first learn() ends with a signal; the rest shows that the script
goes on. The second one goes on until it is ended.
"""

import json
import sys
from pathlib import Path
from typing import Any

from algorithms.ppo import PPOConfig
from rlmodule.groups.remote_learner_group import RemoteLearnerGroup


def main(folder: Path, num_epochs: int) -> None:
    config = (
        PPOConfig(env="CartPole-v1", seed=1)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.1)
        .learners(num_learners=1, num_cpus_per_learner=0.1)
        .training(train_batch_size_per_learner=256, minibatch_size=64, num_epochs=num_epochs)
        .reporting(run_dir=str(folder / "run"))
    )
    with config.build() as algorithm:

        def tell(what: str, **more: Any) -> None:
            new = folder / f"{what}.new"
            new.write_text(json.dumps({"iterations": algorithm.metrics.iterations} | more))
            new.rename(folder / what)

        train = algorithm.train

        def and_tell() -> dict[str, Any]:
            tell("iteration")
            return train()

        algorithm.train = and_tell  # type: ignore[method-assign]
        assert isinstance(algorithm.learner_group, RemoteLearnerGroup)
        runners: Any = algorithm.env_runner_group.workers
        tell("built", pids=[*runners.pids(), *algorithm.learner_group.workers.pids()])
        try:
            algorithm.learn(num_env_steps=10**9)
        except KeyboardInterrupt as interrupt:
            tell("saved" if str(interrupt).startswith("saved") else "interrupted")
        algorithm.learn(num_env_steps=10**9)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
