"""The commands that train the policies of the zoo, by the names of their folders."""

COMMANDS = {
    "ppo-cartpole": "train ppo CartPole-v1",
    "a2c-acrobot": "train a2c Acrobot-v1",
    "bc-cartpole": "train bc CartPole-v1 --data runs/zoo/ppo-cartpole-episodes --num-updates 5000",
    "ppo-taxi": "train ppo zoo.envs:taxi --num-env-steps 300_000 --fcnet-hiddens 32",
    "td3-pendulum": "train td3 Pendulum-v1",
    "ppo-halfcheetah": "train ppo HalfCheetah-v5 --num-env-steps 500_000",
    "ppo-lstm-cart-positions": "train ppo zoo.envs:cart_positions --num-env-steps 300_000 --use-lstm --lstm-cell-size 32",
    "dqn-mountaincar": "train dqn MountainCar-v0 --evaluation-interval 5",
    "tqc-inverted-double-pendulum": (
        "train sac InvertedDoublePendulum-v5 --num-env-steps 30_000 --num-quantiles 25 --drop-quantiles 2 --lr 1e-3 "
        "--fcnet-hiddens 64 64 --train-batch-size-per-learner 128 --training-intensity 128"
    ),
    "ppo-simple-spread": "train ppo mpe2.simple_spread_v3 --num-env-steps 1_000_000",
    "sac-lunarlander": "train sac LunarLanderContinuous-v3",
    "qr-dqn-lunarlander": "train dqn LunarLander-v3 --num-quantiles 50 --fcnet-hiddens 64 64 --evaluation-interval 30",
}
"""Name of a policy → the arguments of ``rlmodule`` that train it, without its seed, threads and run folder."""

DATA = {"bc-cartpole": "record runs/zoo/ppo-cartpole runs/zoo/ppo-cartpole-episodes --episodes 20"}
"""Name of a policy → the arguments of ``rlmodule`` that record the data which it learns from."""
