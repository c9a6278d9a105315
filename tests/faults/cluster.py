"""Env runners on a cluster of logical nodes, one of which is taken away: a script, since it needs a Ray of its own.

``python cluster.py FOLDER``
"""

import sys
import time
from pathlib import Path

from tests.fault_envs import num_step_calls
from tests.faults.commanded import crowd
from tests.waiting import wait_for

STEPS = 3000
"""In a fragment: its rollout is too large to be sent with the answer, and stays on its node until it is fetched."""


def main(folder: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    cluster.wait_for_nodes()
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    with crowd(folder, {"pause": 0.0}, num_cpus_per_env_runner=2.0, env_step_timeout_s=20.0) as made:
        assert len(made.sample()) == 2  # one on each node
        made.group.ask(STEPS, policy_version=made.version)
        wait_for(lambda: num_step_calls(folder) == 2 * 2 * (20 + STEPS))
        time.sleep(1)  # the rollouts are ready, and nobody took them
        cluster.remove_node(nodes[0], allow_graceful=False)
        # until Ray notices, it may place the next runner on that node, which costs one more
        wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 2)
        rollouts = made.group.take()
        made.steps += sum(rollout.num_env_steps for rollout in rollouts)
        made.sample()
        cluster.add_node(num_cpus=2)
        made.wait_until_healthy()
        assert len(made.sample()) == 2
        assert made.group.accounts.num_restarts == 1
        made.races += 1
        made.check_accounts()
        made.check_seeds()
        print(f"{made.lost()} steps lost")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
