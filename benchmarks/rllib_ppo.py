"""A job of `ours_ppo` in RLlib, through its public interface.

    /path/to/python -m benchmarks.rllib_ppo learners 60000    # of an environment with ray[rllib] and torch

Same env, nets, batch, minibatches, epochs and coefficients. Nothing in the project needs RLlib: `benchmarks.run`
takes the Python that the environment variable RLLIB_PYTHON names, or its own, and leaves the row out if that has none.
"""

import time
from importlib import import_module
from typing import Any

from benchmarks.jobs import SHARED_JOBS, Job, main

WARM_UP = 2  # iterations before the clock starts


def config(job: Job, seed: int) -> Any:
    """The job in their words."""
    ppo = import_module("ray.rllib.algorithms.ppo")
    model = import_module("ray.rllib.core.rl_module.default_model_config").DefaultModelConfig
    parts = max(1, job.num_learners)
    return (
        ppo.PPOConfig()
        .environment(job.env_id)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=job.num_envs, rollout_fragment_length=job.fragment)
        .learners(num_learners=job.num_learners, num_cpus_per_learner=1)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            lambda_=job.lambda_,
            clip_param=job.clip_param,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            train_batch_size_per_learner=job.batch_size // parts,
            minibatch_size=job.minibatch_size // parts,
            num_epochs=job.num_epochs,
            entropy_coeff=job.entropy_coeff,
            vf_loss_coeff=job.vf_loss_coeff,
            grad_clip=job.grad_clip,
            grad_clip_by="global_norm",
        )
        .rl_module(model_config=model(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False))
        .debugging(seed=seed, log_level="ERROR")
    )


def train(job: Job, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `ours_ppo.train`."""
    import_module("ray").init(include_dashboard=False, log_to_driver=False)
    algorithm = config(job, seed).build_algo()
    steps = [0]
    result: dict[str, Any] = {}
    started = 0.0
    while steps[-1] < total_steps or len(steps) < WARM_UP + 2:
        if len(steps) == WARM_UP + 1:
            started = time.perf_counter()
        result = algorithm.train()
        steps.append(int(result["env_runners"]["num_env_steps_sampled_lifetime"]))
    took = time.perf_counter() - started
    algorithm.stop()
    return {
        "steps_per_s": round((steps[-1] - steps[WARM_UP]) / took, 1),
        "late_return": round(float(result["env_runners"]["episode_return_mean"]), 1),
    }


if __name__ == "__main__":
    main(train, __doc__, SHARED_JOBS)
