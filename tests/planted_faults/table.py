"""Faults of one line each, what a user would suffer from them, and the tests that find them."""

from __future__ import annotations

from typing import NamedTuple

_LEAKS = "tests/nothing_leaks/test_rows_that_do_not_count.py::test_"
_ORDERS = "tests/nothing_leaks/test_orders.py::test_"
_REPORTS = "tests/nothing_leaks/test_public_reports.py::test_"
_BOOKS = "tests/metrics_recounted/test_results_equal_the_books.py::test_"
_CLOCKS = "tests/metrics_recounted/test_clocks.py::test_"
_ACTS = "tests/settings_act/test_every_setting_acts.py::test_a_setting_acts_or_is_refused"


class Fault(NamedTuple):
    """A fault to plant.

    Attributes:
        path: The file, from the root of the repository.
        line: The line as it stands there once, without the blanks around it.
        faulty: What to write in its place.
        suffered: What a user would suffer.
        test: The test that finds it.
    """

    path: str
    line: str
    faulty: str
    suffered: str
    test: str


_FROM_DATA = "tests/algorithms/offline/test_offline_losses.py::test_"
_ON_GPU = "tests/algorithms/test_simulated_gpu.py::test_it_learns_on_a_gpu_what_it_learns_on_the_cpu"

FAULTS: dict[str, Fault] = {
    # --- learners on a GPU
    "an index that the GPU waits for": Fault(
        "algorithms/off_policy/action_critic.py",
        "outputs = outputs[moved(self._target_critics, outputs.device)]",
        "outputs = outputs[self._target_critics.to(outputs.device)]",
        "each gradient step on a GPU waits until all work before it is done",
        f"{_ON_GPU}[several critics]",
    ),
    "a count that stays on the CPU": Fault(
        "algorithms/marwil/learner.py",
        "total = torch.stack([squares.sum(), squares.new_full((), len(squares))])",
        "total = torch.stack([squares.sum().unsqueeze(0), torch.full((1,), len(squares))]).squeeze(1)",
        "MARWIL raises on every GPU, and on no CPU",
        f"{_ON_GPU}[MARWIL]",
    ),
    # --- losses of data sets
    "the expectile on the wrong side": Fault(
        "algorithms/iql/learner.py",
        "return torch.where(errors > 0, expectile, 1 - expectile) * errors.square()",
        "return torch.where(errors < 0, expectile, 1 - expectile) * errors.square()",
        "state values are pessimistic, and IQL clones the worse actions more",
        _FROM_DATA + "the_least_expectile_loss_is_at_the_expectile",
    ),
    "weights of cloning with a gradient": Fault(
        "algorithms/iql/learner.py",
        "weights = (settings.beta * advantages.detach()).exp().clamp(max=settings.max_weight)",
        "weights = (settings.beta * advantages).exp().clamp(max=settings.max_weight)",
        "the policy's loss trains the state values, which then say nothing about returns",
        _FROM_DATA + "updates_of_iql_are_those_of_a_plain_loop",
    ),
    "densities of drawn actions that count twice": Fault(
        "algorithms/sac/conservative.py",
        "return values.unflatten(-1, log_density.shape) - log_density",
        "return values.unflatten(-1, log_density.shape) + log_density",
        "CQL lowers the values of the policy's own actions far more than those of others",
        _FROM_DATA + "the_conservative_loss_of_a_box_by_hand",
    ),
    "the next action of another episode": Fault(
        "algorithms/replay/ring.py",
        "is_known = ~self.has(CUT, places) & (self.steps_after(places) > 0)",
        "is_known = self.steps_after(places) > 0",
        "ReBRAC draws the policy to the first action of an episode that has nothing to do with the step",
        _FROM_DATA + "next_actions_are_those_after_the_window_in_the_data",
    ),
    "a distance from no action": Fault(
        "algorithms/td3/learner.py",
        "penalty = self.settings.critic_bc_coeff * distances * rows[Columns.HAS_NEXT_ACTION]",
        "penalty = self.settings.critic_bc_coeff * distances",
        "at time limits ReBRAC draws the policy to an action of zeros that nobody took",
        _FROM_DATA + "targets_of_rebrac_fall_with_the_distance_from_the_next_action",
    ),
    "values of other actions are raised": Fault(
        "algorithms/dqn/learner.py",
        "gaps = of_all.logsumexp(-1) - take_actions(of_all, batch[Columns.ACTIONS])",
        "gaps = take_actions(of_all, batch[Columns.ACTIONS]) - of_all.logsumexp(-1)",
        "CQL prefers the actions that nobody tried",
        _FROM_DATA + "cql_lowers_the_value_of_an_action_that_the_data_lack",
    ),
    # --- losses
    "advantages standardised over padding": Fault(
        "algorithms/actor_critic.py",
        "rows = torch.stack([advantages[valid], targets[valid], values[valid]])",
        "rows = torch.stack([advantages.flatten(), targets.flatten(), values.flatten()])",
        "short episodes and memories learn from advantages that are scaled by the number of padded rows",
        _REPORTS + "ray_57989_advantages_are_standardised_over_steps_alone",
    ),
    "loss summed over rows": Fault(
        "algorithms/actor_critic.py",
        "return row_losses.mean(), metrics",
        "return row_losses.sum(), metrics",
        "the learning rate that works depends on the size of minibatches",
        _ORDERS + "minibatches_of_an_epoch_add_up_to_its_gradient[PPO-plain]",
    ),
    "advantages cross truncations": Fault(
        "algorithms/ops/returns.py",
        "goes_on_t = valid_t & ~terminated_t & ~truncated_t",
        "goes_on_t = valid_t & ~terminated_t",
        "the last steps before a time limit are praised for what the next episode earns",
        _LEAKS + "episodes_side_by_side_learn_as_one_after_another[PPO-plain]",
    ),
    "bootstrap after termination": Fault(
        "algorithms/ops/returns.py",
        "delta_t = r_t + gamma * v_tp1.masked_fill(terminated_t, 0.0) - v_t",
        "delta_t = r_t + gamma * v_tp1 - v_t",
        "falling over is worth as much as the start of the next episode",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[PPO-plain-million]",
    ),
    "bootstrap from the next episode": Fault(
        "rlmodule/data/rollout.py",
        "following[self.final_index.unbind(1)] = finals",
        "following[self.final_index[:0].unbind(1)] = finals[:0]",
        "a time limit teaches that the last state is as good as the first one",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[PPO-plain-million]",
    ),
    "replayed termination ignored": Fault(
        "algorithms/replay/windows.py",
        "going = ring.flags.take(last) & TERMINATED == 0",
        "going = ring.flags.take(last) >= 0",
        "no target ever ends with an episode: values grow without end",
        _LEAKS + "a_window_knows_its_own_episode_alone[DQN-3 steps]",
    ),
    "replayed rewards of the next episode": Fault(
        "algorithms/replay/windows.py",
        "rewards *= self._offsets < steps",
        "rewards *= self._offsets <= steps",
        "n-step targets add the first reward of the next episode",
        _LEAKS + "a_window_knows_its_own_episode_alone[DQN-3 steps]",
    ),
    "replayed bootstrap from the next episode": Fault(
        "algorithms/replay/sequences.py",
        "following = positions.take(trained + (steps - 1) * batch_size) + batch_size",
        "following = positions.take(trained + steps * batch_size)",
        "with a memory, time limits bootstrap from the start of the next episode",
        _LEAKS + "a_window_knows_its_own_episode_alone[DQN-LSTM]",
    ),
    "replayed bootstrap after termination": Fault(
        "algorithms/ops/distributional.py",
        "return torch.addcmul(rewards, discounts, outputs if penalty is None else outputs - penalty)",
        "return rewards + discounts.amax() * (outputs if penalty is None else outputs - penalty)",
        "falling over is worth as much as whatever the buffer holds next",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[DQN-plain-million]",
    ),
    # --- masks
    "memories cross episodes": Fault(
        "catalog/encoders/memory.py",
        "return {name: part.masked_fill(starts[0].view(-1, *[1] * (part.dim() - 1)), 0) "
        "for name, part in before.items()}",
        "return before",
        "an episode begins with the memory of the one before",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[SAC-LSTM-million]",
    ),
    "invalid rows are trained on": Fault(
        "rlmodule/data/rollout.py",
        "rows = slice(None) if keep.all() else keep",
        "rows = slice(None) if keep.any() else keep",
        "rows that only reset an env are learned from as if they were steps",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[PPO-plain-million]",
    ),
    "padding of sequences is trained on": Fault(
        "rlmodule/data/sequences.py",
        "if not valid.all():",
        "if not valid.any():",
        "memories learn from padding",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[PPO-LSTM-million]",
    ),
    "rewards of invalid rows": Fault(
        "algorithms/ops/returns.py",
        "return discounted_suffix_sum(delta_t.masked_fill(~valid_t, 0.0), goes_on_t.to(r_t.dtype) * (gamma * lambda_))",
        "return discounted_suffix_sum(delta_t, goes_on_t.to(r_t.dtype) * (gamma * lambda_))",
        "the last step before padding gets an advantage from the padding",
        _LEAKS + "more_padding_changes_nothing[PPO-plain-4]",
    ),
    "other policies' rows in a stack": Fault(
        "rlmodule/learning/stacks.py",
        "losses = (row_losses * ((torch.arange(width) < num_valid) / num_valid)).sum(1)",
        "losses = row_losses.mean(1)",
        "agents that act rarely learn several times from the same rows, as often as others act",
        _LEAKS + "other_policies_change_nothing[PPO-plain-same settings]",
    ),
    "other policies' rows in metrics": Fault(
        "rlmodule/learning/stacks.py",
        "of_module[name] = value[:count]",
        "of_module[name] = value",
        "metrics of agents that act rarely count some rows several times",
        _LEAKS + "other_policies_change_nothing[PPO-plain-same settings]",
    ),
    # --- statistics
    "batch norm over padding": Fault(
        "rlmodule/modules/recurrent.py",
        "with nullcontext() if valid_rows is None else over_valid_rows(module, valid_rows, total):",
        "with nullcontext():",
        "batch norm before a memory is computed from padding",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[PPO-LSTM and batch norm-million]",
    ),
    "observation statistics over padding": Fault(
        "rlmodule/learning/learner.py",
        "rows = flatten_sequences(rows, batch.get(Columns.VALID_ROWS))",
        "rows = flatten_sequences(rows, None)",
        "normalised observations drift with the amount of padding",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[PPO-LSTM-million]",
    ),
    "value statistics over padding": Fault(
        "algorithms/actor_critic.py",
        "module.update_value_statistics(targets[valid])",
        "module.update_value_statistics(targets.flatten())",
        "values are normalised by the targets of padding",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[PPO-plain-million]",
    ),
    "values in train mode": Fault(
        "rlmodule/learning/episode_learner.py",
        "batch norm act as in the runners\n            self.module.eval()",
        "batch norm act as in the runners\n            self.module.train()",
        "batch norm moves with invalid rows, and values differ from those of the runner",
        _LEAKS + "invalid_rows_and_unused_bootstraps_change_nothing[PPO-batch norm-million]",
    ),
    # --- padding
    "final observations of the wrong envs": Fault(
        "rlmodule/data/rollout.py",
        "shifted = [r.final_index + r.final_index.new_tensor([0, n]) for r, n in zip(rollouts, offsets, strict=True)]",
        "shifted = [r.final_index for r, n in zip(rollouts, offsets, strict=True)]",
        "with several runners, time limits bootstrap in envs where there were none",
        _ORDERS + "envs_of_two_runners_are_those_of_one[plain]",
    ),
    "short rollouts repeat their last row": Fault(
        "rlmodule/agents/multi_rollout.py",
        "return torch.cat([x, x.new_zeros(len(longer) - len(x), *x.shape[1:])])",
        "return torch.cat([x, x[-1:].expand(len(longer) - len(x), *x.shape[1:])])",
        "runners whose agents act less often count their last step several times",
        _ORDERS + "envs_of_two_runners_are_those_of_one[agents]",
    ),
    "memories of other agents": Fault(
        "rlmodule/agents/columns.py",
        "states = self._state if acts_in_every_column else entry_of(self._state, index)",
        "states = self._state if acts_in_every_column else entry_of(self._state, slice(len(index)))",
        "agents that act at different times go on with the memory of another agent",
        _REPORTS + "ray_60205_memories_of_agents_on_different_clocks[PPO]",
    ),
    # --- metrics
    "resets counted as steps": Fault(
        "rlmodule/data/rollout.py",
        "return int(np.count_nonzero(self.valid.numpy(force=True)))  # torch takes five times as long on the CPU",
        "return self.valid.numel()",
        "budgets and learning curves count steps that were none",
        _BOOKS + "results_of_one_agent_equal_the_books[PPO-next step]",
    ),
    "lengths count the reset": Fault(
        "rlmodule/sampling/accounts.py",
        "self._began[slot] = end + self._pause",
        "self._began[slot] = end",
        "episode_len_mean is too long for envs that reset in a step of their own",
        _BOOKS + "results_of_one_agent_equal_the_books[PPO-next step]",
    ),
    "open episodes lose their rewards": Fault(
        "rlmodule/sampling/accounts.py",
        "self._returns = totals[-1] - counted",
        "self._returns = np.zeros_like(counted)",
        "returns lack what was earned before the last end of any episode",
        _BOOKS + "results_of_one_agent_equal_the_books[PPO-same step]",
    ),
    "one agent stands for all of its policy": Fault(
        "algorithms/run/agent_metrics.py",
        'self._returns_of["module"][agent_episode.policy].append(agent_episode.episode_return)',
        'self._returns_of["module"][agent_episode.policy] = deque([agent_episode.episode_return])',
        "the return of a shared policy is that of one of its agents",
        _REPORTS + "ray_59860_the_return_of_a_shared_policy_is_that_of_all_its_agents",
    ),
    "returned agents keep their return": Fault(
        "rlmodule/agents/runner.py",
        "self._returns[slot] = 0.0",
        "pass",
        "an agent that comes back begins with the return of its last life",
        _BOOKS + "results_of_several_agents_equal_the_books[PPO-shared]",
    ),
    # --- clocks
    "target nets fall behind": Fault(
        "rlmodule/learning/target_nets.py",
        "self.last_update[module_id] = env_steps - late",
        "self.last_update[module_id] = env_steps",
        "target nets move less often than target_network_update_freq says",
        _CLOCKS + "target_nets_move_as_often_as_the_setting_says[DQN]",
    ),
    "updates forget what they owe": Fault(
        "algorithms/off_policy/algorithm.py",
        "self._steps_owed[module_id] = owed - batches * config.train_batch_size",
        "self._steps_owed[module_id] = 0.0",
        "fewer updates per step than training_intensity says",
        _CLOCKS + "updates_are_as_many_as_the_setting_says[DQN]",
    ),
    "schedules run ahead": Fault(
        "algorithms/actor_critic.py",
        "learned = self.learner_group.update_from_episodes(rollout, env_steps=before)",
        "learned = self.learner_group.update_from_episodes(rollout, env_steps=self.env_steps)",
        "learning rates are an iteration ahead, and the last update has none",
        _CLOCKS + "learning_rates_follow_the_steps[PPO]",
    ),
    # --- settings
    "lambda is a literal": Fault(
        "algorithms/actor_critic.py",
        "lambda_=self.settings.lambda_,",
        "lambda_=0.95,",
        "the setting is documented, accepted and without effect",
        _ACTS + "[PPO-lambda_]",
    ),
    "settings of the first policy for all": Fault(
        "rlmodule/learning/joint_updates.py",
        "return structure_of(module), id(settings), part.part.grad_clip",
        "return structure_of(module)",
        "policy_overrides are without effect for policies with equal nets",
        _LEAKS + "other_policies_change_nothing[PPO-plain-other settings]",
    ),
    "settings of the policy trained before": Fault(
        "rlmodule/learning/episode_learner.py",
        "module_id, of_module = update, prepared[update]\n                    self.use_settings_of(module_id)",
        "module_id, of_module = update, prepared[update]",
        "policy_overrides act on other policies",
        _LEAKS + "other_policies_change_nothing[PPO-LSTM-other settings]",
    ),
    "tau is a literal": Fault(
        "rlmodule/learning/target_nets.py",
        "every, tau = self.settings.target_network_update_freq, self.settings.tau",
        "every, tau = self.settings.target_network_update_freq, 0.005",
        "the setting is documented, accepted and without effect",
        _ACTS + "[APPO-tau]",
    ),
}
"""Faults over losses, masks, statistics, padding, metrics, clocks and settings."""
