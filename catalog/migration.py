"""Names from other libraries, by the place where users type them, and what to write in this library instead.

This is the only list of such names. Each line of it has the names that share a remedy, a colon, and the remedy.
"""

from __future__ import annotations

_TABLE = """
[setting]
framework: Leave it out: PyTorch is the only framework.
api_stack: Leave it out: there is one API.
build_algo: Call build().
learn train: Call build() first, which makes the algorithm.
env_kwargs: Use .environment(env_config={...}).
experimental python_environment: Leave it out: there are no such settings.
resources: Leave it out: resources are settings of .env_runners() and .learners().
offline_data input input_ output: Offline data are not available yet.
multi_agent policies policy_mapping_fn policies_to_train policy_overrides: EpisodeLearnerConfig, ReplayConfig have it.
algorithm_config_overrides_per_module: Use .multi_agent(policy_overrides={'policy_1': {'gamma': 0.9}}).
observation_fn: Wrap the env, and compute the observations of all agents there.
count_steps_by: Leave it out: batch sizes count steps of the env, whatever the number of agents that act.
policy_states_are_swappable policy_map_capacity: Leave it out: all policies stay in memory.
connectors env_to_module_connector: There are no connectors: wrap the env, or override build_encoder() of a catalog.
module_to_env_connector: There are no connectors: wrap the env. Actions are clipped or scaled to their bounds already.
learner_connector: There are no connectors: override preprocess_train_data(rollout) of .learners(learner_class=...).
train_batch_size: Use .training(train_batch_size_per_learner=...).
sgd_minibatch_size num_minibatches: Use .training(minibatch_size=...), the env steps in each.
num_sgd_iter n_epochs update_epochs: Use .training(num_epochs=...).
learning_rate: Use .training(lr=...).
anneal_lr: Use points for the learning rate: .training(lr=[[0, 2.5e-4], [500_000, 0.0]]).
adam_epsilon optimizer optimizer_class optimizer_kwargs: Override configure_optimizer_for_module() of a learner.
num_epochs: PPO and configs that derive from EpisodeLearnerConfig have it; with replay, use training_intensity.
minibatch_size: PPO has it, and configs that derive from EpisodeLearnerConfig; else use train_batch_size_per_learner.
batch_size: Use .training(train_batch_size_per_learner=...); for PPO, .training(minibatch_size=...).
batch_mode: Leave it out: rollouts end with the fragment, and the value function predicts the rest.
use_gae: Leave it out: .training(lambda_=1.0) gives Monte Carlo advantages.
buffer_size: Use .replay(replay_capacity=...).
learning_starts: Use .training(num_steps_sampled_before_learning_starts=...).
train_freq train_frequency: Use .env_runners(rollout_fragment_length=...) and .training(training_intensity=...).
gradient_steps: Use .training(training_intensity=...), the steps trained on per step sampled.
target_update_interval target_network_frequency: Use .training(target_network_update_freq=...).
exploration_config action_noise: DQN has .training(epsilon=...), TD3 .training(exploration_noise=...).
exploration_fraction start_e end_e exploration_initial_eps exploration_final_eps: DQN has .training(epsilon=...).
n_steps num_steps: Use .training(train_batch_size_per_learner=...), of all envs together, or with replay n_step=...
gae_lambda: Use .training(lambda_=...).
clip_range clip_coef: Use .training(clip_param=...).
clip_range_vf clip_vloss: Use .training(vf_clip_param=...), in standard deviations of the returns.
normalize_advantage norm_adv: Leave it out: advantages are standardised over each train batch.
ent_coef: PPO has .training(entropy_coeff=...), SAC .training(initial_alpha=..., target_entropy=..., alpha_lr=...).
autotune alpha: SAC learns it, starting at .training(initial_alpha=...); alpha_lr=0 keeps it there.
q_lr policy_lr optimization_config: Use .training(critic_lr=..., actor_lr=...), and alpha_lr of SAC.
policy_frequency policy_delay: TD3 has .training(policy_delay=...).
policy_noise target_policy_noise noise_clip: TD3 has .training(target_noise=..., target_noise_clip=...).
vf_coef: Use .training(vf_loss_coeff=...).
stats_window_size: Use .reporting(metrics_num_episodes_for_smoothing=...).
min_sample_timesteps_per_iteration: For DQN, .reporting(num_env_steps_per_iteration=...); PPO samples one train batch.
replay_buffer_class: Use .replay(prioritized_replay=...).
replay_buffer_config: Use .replay(replay_capacity=..., prioritized_replay=..., ...).
store_buffer_in_checkpoints: Use .replay(replay_in_checkpoints=...).
before_learn_on_batch: Override prepare_batch() of a learner.
categorical_distribution_temperature: Leave it out, or override _forward_exploration() of a module.
tensorboard_log storage_path: Use .reporting(run_dir=...).
track wandb_project_name wandb_entity: Use .reporting(run_dir=..., loggers=['tensorboard', 'wandb']).
device cuda: Use .learners(num_gpus_per_learner=1) for a GPU; the default 0 is the CPU.
n_envs num_envs num_envs_per_worker: Use .env_runners(num_envs_per_env_runner=...).
total_timesteps: Pass it to learn(num_env_steps=...).
num_iterations: Pass the env steps of all of them to learn(num_env_steps=...).
policy_kwargs: Use .rl_module(model_config={'fcnet_hiddens': [256, 256]}).
max_grad_norm: Use .training(grad_clip=...).
learner_config_dict: Declare its entries in MyTraining(PPOTraining), and set training = Section(MyTraining) in a config.
hiddens: Use .rl_module(model_config={'head_fcnet_hiddens': [...]}).
model model_config_dict: Use .rl_module(model_config=...).
catalog_class: Use .rl_module(rl_module_spec=RLModuleSpec(catalog_class=...)).
module_class: Use .rl_module(rl_module_spec=RLModuleSpec(module_class=...)).
observation_filter: Use .rl_module(model_config={'normalize_observations': True}).
num_rollout_workers num_workers: Use .env_runners(num_env_runners=...).
sample_timeout_s env_runner_restore_timeout_s env_runner_health_probe_timeout_s: Use env_step_timeout_s=... instead.
delay_between_env_runner_restarts_s delay_between_worker_restarts_s: Leave it out: delays grow from 0.1 to 10 s.
max_num_env_runner_restarts max_num_worker_restarts: Use .fault_tolerance(max_restarts_in_a_row=...).
num_consecutive_env_runner_failures_tolerance num_consecutive_worker_failures_tolerance: Use max_restarts_in_a_row=...
recreate_failed_workers recreate_failed_env_runners: Use .fault_tolerance(restart_failed_env_runners=...).
num_gpus_per_env_runner: Leave it out: runners act on the CPU.
custom_resources_per_env_runner: Leave it out: runners ask for CPUs alone.
remote_worker_envs: Use .env_runners(gym_env_vectorize_mode='async').
remote_env_batch_wait_ms: Leave it out: a vector step waits for all of its environments.
create_local_env_runner create_env_on_local_worker: Leave it out: with num_env_runners=0 there is one in this process.
validate_env_runners_after_construction: Leave it out: build() waits until all have started.
max_requests_in_flight_per_env_runner: Leave it out: each has one fragment to sample at a time.
max_requests_in_flight_per_learner: Leave it out: each has two updates before it at most.
num_aggregator_actors_per_learner: Leave it out: rollouts are joined in this process.
local_gpu_idx: Set CUDA_VISIBLE_DEVICES.
rollouts: Use .env_runners(...).
callbacks callback: Use .callbacks(MyCallbacks) or .callbacks(on_train_result=...).
on_algorithm_init: Do it after build(), or in on_environment_created.
on_episode_created on_episode_start: Callbacks see episodes when they end: .callbacks(on_episode_end=...).
on_episode_step on_step: Callbacks see steps in rollouts: .callbacks(on_sample_end=...).
on_evaluate_start: Use .callbacks(on_evaluate_end=...).
on_checkpoint_loaded: Do it after Algorithm.from_checkpoint().
evaluation_num_env_runners evaluation_num_workers: Use .evaluation(evaluation_num_envs=...), all in this process.
evaluation_parallel_to_training: Leave it out: training waits for an evaluation.
evaluation_config: Use .evaluation(evaluation_env_config=..., evaluation_explore=...).
custom_evaluation_function: Call evaluate() in .callbacks(on_train_result=...), and add to the result there.
eval_freq: Use .evaluation(evaluation_interval=...), in iterations.
n_eval_episodes: Use .evaluation(evaluation_duration=...).
eval_env: Use .evaluation(evaluation_env_config=...).
capture_video: Use .evaluation(evaluation_num_videos=...).
use_sde sde_sample_freq: Leave it out: actions have independent noise in each step; there is no gSDE.
log_level: Use logging.getLogger('algorithms').setLevel(...).
verbose: Pass progress=True to learn().
log_interval: Leave it out: every iteration is logged.
logger_config logger_creator: Use .reporting(run_dir=..., loggers=[...]).
checkpoint_frequency save_freq: Use .checkpointing(checkpoint_interval=...), in iterations.
num_checkpoints_to_keep num_to_keep: Leave it out: the last checkpoint and the best one are kept.

[model setting]
fcnet_weights_initializer: It is fcnet_kernel_initializer.
fcnet_weights_initializer_config fcnet_kernel_initializer_config: They are fcnet_kernel_initializer_kwargs.
fcnet_bias_initializer_config: They are fcnet_bias_initializer_kwargs.
conv_kernel_initializer_config: They are conv_kernel_initializer_kwargs.
conv_bias_initializer_config: They are conv_bias_initializer_kwargs.
head_fcnet_weights_initializer: It is head_fcnet_kernel_initializer.
head_fcnet_kernel_initializer_config: They are head_fcnet_kernel_initializer_kwargs.
head_fcnet_bias_initializer_config: They are head_fcnet_bias_initializer_kwargs.
lstm_weights_initializer: It is lstm_kernel_initializer.
lstm_weights_initializer_config lstm_kernel_initializer_config: They are lstm_kernel_initializer_kwargs.
lstm_bias_initializer_config: They are lstm_bias_initializer_kwargs.
fusionnet_kernel_initializer: It is fcnet_kernel_initializer, which starts joining layers too.
fusionnet_bias_initializer: It is fcnet_bias_initializer, which starts joining layers too.
fusionnet_kernel_initializer_kwargs: They are fcnet_kernel_initializer_kwargs.
fusionnet_bias_initializer_kwargs: They are fcnet_bias_initializer_kwargs.
net_arch: The widths are fcnet_hiddens, and those of a single function functions={'value': {...}}.
activation_fn: It is fcnet_activation.
ortho_init: Leave it out: weights are orthogonal. To turn that off, set fcnet_kernel_initializer to None.
log_std_init: Leave it out: log_std starts at 0, one per action dimension, or per state with free_log_std=False.
squash_output: Set custom_action_dist='SquashedGaussian'.
use_expln full_std: Leave it out: there is no gSDE.
share_features_extractor shared_lstm enable_critic_lstm: It is vf_share_layers.
lstm_hidden_size: It is lstm_cell_size.
n_lstm_layers: It is lstm_num_layers.
features_extractor_class: It is custom_model, or override build_encoder() of a catalog.
post_fcnet_hiddens: The layers after convolutions are conv_dense_dim, those of heads head_fcnet_hiddens.
post_fcnet_activation: It is conv_activation of images, head_fcnet_activation of heads.
post_fcnet_weights_initializer: It is conv_kernel_initializer of images, head_fcnet_kernel_initializer of heads.
post_fcnet_bias_initializer: It is conv_bias_initializer of images, head_fcnet_bias_initializer of heads.
encoder_latent_dim: It is the last of fcnet_hiddens.
no_final_linear: Override build_pi_head() of a catalog.
conv_transpose_filters conv_transpose_activation: Build a CNNTransposeHeadConfig in your own module.
conv_transpose_kernel_initializer conv_transpose_bias_initializer: Build a CNNTransposeHeadConfig in your own module.
features_extractor_kwargs custom_model_kwargs custom_options: They are custom_model_config.
custom_preprocessor: Wrap the env in a factory fn(env_config), or begin a custom_model with it.
zero_mean: Set normalize_observations=True; images of bytes are scaled to [0, 1].
framestack: Wrap the env in gymnasium.wrappers.FrameStackObservation, in a factory fn(env_config).
dim: Leave it out: any size fits. To change it, wrap the env in gymnasium.wrappers.ResizeObservation.
grayscale: Wrap the env in gymnasium.wrappers.GrayscaleObservation, in a factory fn(env_config).
always_check_shapes: Leave it out: a wrong width always raises.
use_prev_action: It is lstm_use_prev_action.
use_prev_reward: It is lstm_use_prev_reward.
attention_use_n_prev_actions: It is lstm_use_prev_action; the memory of attention holds the last actions.
attention_use_n_prev_rewards: It is lstm_use_prev_reward; the memory of attention holds the last rewards.
attention_memory_inference attention_memory_training: It is attention_memory, one number for acting and training.
dueling num_atoms v_min v_max noisy sigma0: It is of DQN's nets: DQNConfig().training(...), or a DQNCatalog's config.

[argument]
model_config_dict: Pass model_config={...}.
framework: Leave it out: every net is a torch module.
view_requirements: Set lstm_use_prev_action or _reward, or override get_past_view() of the module.
sample_shape: One action is drawn for each row of inputs, with the generator: expand the inputs to draw several.

[EpisodeLearner]
_preprocess_train_data _postprocess_episodes: Override preprocess_train_data(rollout).
prepare_batch before_gradient_step before_gradient_based_update: Override preprocess_train_data(rollout).
after_gradient_step after_gradient_based_update: Override after_update(module_id, batch).
additional_update additional_update_for_module: Override after_update(module_id, batch).

[BatchLearner]
_preprocess_train_data _postprocess_episodes: Override prepare_batch(module_id, batch).
preprocess_train_data make_train_batch: Override prepare_batch(module_id, batch).
before_gradient_based_update: Override before_gradient_step(module_id).
after_update after_gradient_based_update: Override after_gradient_step(module_id).
additional_update additional_update_for_module: Override after_gradient_step(module_id).

[Learner]
compute_loss compute_losses: Override compute_loss_for_module(module_id, batch, fwd_out).
configure_optimizers configure_optimizers_for_module: Override configure_optimizer_for_module(module_id, parameters).
compute_gradients apply_gradients: Override configure_optimizer_for_module(module_id, parameters).
postprocess_gradients postprocess_gradients_for_module: Set grad_clip, or override configure_optimizer_for_module().
rl_module_required_apis: Set the class attribute required_apis, a tuple of interfaces.
should_module_be_updated: Use .multi_agent(policies_to_train=[...]), or a function of the policy's id.

[RLModule]
compute_self_supervised_loss: Implement compute_extra_losses(batch, fwd_out) of ExtraLossAPI.
get_inference_action_dist_cls get_exploration_action_dist_cls get_train_action_dist_cls: Override get_action_dist_cls().
make_target_networks get_target_network_pairs forward_target: Leave it out: learners build target nets from the spec.

[algorithm]
predict compute_single_action: Call policy.act(obs), which returns the action and the next state.
compute_actions: Call policy.act(obs) for each observation.
get_policy: Use policy, which acts, or get_module(), the net.
get_weights get_parameters: Call algo.get_module().state_dict().
set_weights set_parameters: Call algo.get_module().load_state_dict(weights).
restore restore_from_path load: Call Algorithm.from_checkpoint(path), which makes the algorithm as well.
save_to_path: Call save(path).
fit: Call learn(num_env_steps=...).
step: Call train(), which does one iteration.
set_env: Call Algorithm.from_checkpoint(path, env=...).
env get_env: Make one as config.env says; algo.env_runner_group has those of the training.

[learner]
config: Use self.settings; between updates, self.settings_of(module_id).
metrics: Return tensors to report with the loss: return loss, {'name': tensor}.
get_optimizer get_optimizers_for_module: Use self.optimizers[module_id].
register_optimizer: Return it from configure_optimizer_for_module(module_id, parameters).

[learn]
callback: Use config.callbacks(...) before build().
log_interval tb_log_name: Use config.reporting(run_dir=...) before build().
progress_bar: Pass progress=True.
reset_num_timesteps: Leave it out: learn() continues where it stopped, and build() begins a new run.

[play]
deterministic: Leave it out: explore=False, the default, takes the most likely actions.
action_masks: Leave it out: a mask is the field action_mask of the observation.
n_eval_episodes: Pass num_episodes=...

[encoder]
obs: Pass the observation itself: encoder(obs).latent, or .actor and .critic of an actor-critic encoder.
numpy: Pass a tensor: torch.from_numpy(obs).
encoder_out: Use out.latent, or out.actor and out.critic of an actor-critic encoder.
actor: Use out.actor.
critic: Use out.critic.
state_out: Use out.state.

[flag]
algo env env_id: Leave its name out: ALGO and ENV come first, as in rlmodule train ppo CartPole-v1.
total_timesteps timesteps n_timesteps: Use --num-env-steps.
verbose progress_bar: Leave it out, or use --quiet.
policy_kwargs model: Use --fcnet-hiddens 256 256 and the other flags of section model.
net_arch: Use --fcnet-hiddens 256 256.
hiddens: Use --head-fcnet-hiddens 256.
normalize_actions: Use --normalize-actions.
callback callbacks: Use --callbacks-class my_module:MyCallbacks, or --on-train-result my_module:function.
evaluation_config: Use --evaluation-env-config or --evaluation-explore.
replay_buffer_config: Use --replay-capacity, --prioritized-replay and the other flags of section replay.
on_algorithm_init on_checkpoint_loaded: Use --on-environment-created my_module:function.
minibatch_size: It is a setting of PPO; with replay, the batch is --train-batch-size-per-learner.
n_steps: Use --train-batch-size-per-learner, of all environments together, or with replay --n-step.
build_algo resources: Leave it out.
log_level: Leave it out, or use --quiet.
exploration_fraction exploration_initial_eps exploration_final_eps: Use --epsilon '[[0, 1.0], [10000, 0.05]]'.
"""


def _read(table: str) -> dict[str, dict[str, str]]:
    """Parse a text like ``_TABLE`` into the remedies by ``[place]`` and then by name from another library."""
    read: dict[str, dict[str, str]] = {}
    for part in table.strip().split("\n\n"):
        place, *lines = part.splitlines()
        rows = read[place.strip("[]")] = {}
        for line in lines:
            words, remedy = line.split(": ", 1)
            rows |= dict.fromkeys(words.split(), remedy)
    return read


# The remedies by place and then by word. For a hook of another library, the place is the name of the class that users
# derive from here, which does not have that hook.
REMEDIES = _read(_TABLE)


def remedy_for(place: str, word: object) -> str:
    """Return what to write instead of ``word`` at ``place``, a heading of ``_TABLE`` like "flag"; empty if unknown."""
    return REMEDIES.get(place, {}).get(str(word), "")
