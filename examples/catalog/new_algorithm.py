"""A catalog for an algorithm of your own, dueling Q-learning from many envs at once, and the algorithm as a loop.

Run it as ``python examples/catalog/new_algorithm.py``.
"""

from rich.progress import track
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from algorithms.ppo import PPOConfig
from catalog import Catalog, Init
from rlmodule import BatchLearner, Columns, EnvRunner, QNetAPI, RLModule, RLModuleSpec, ValueFunctionAPI


class QCatalog(Catalog):
    # Encoder? What the tree says. Further nets? Two heads. Distribution? The tree's, with action values as logits.
    # Tokenizer? None of its own: it learns from single steps. No encoder? fcnet_hiddens=[] makes Q a table here.
    functions = ("advantage", "state_value")

    def build_heads(self) -> nn.ModuleDict:
        widths, init = {"advantage": int(self.action_space.n), "state_value": 1}, Init(kernel="zeros_")
        return nn.ModuleDict({name: self.head_config(name, width, init).build() for name, width in widths.items()})


class QModule(RLModule, QNetAPI, ValueFunctionAPI):
    def setup(self) -> None:
        self.encoder, self.heads = self.catalog.build_encoder(), self.catalog.build_heads()

    def compute_q_values(self, batch: dict[str, Tensor], embeddings: Tensor | None = None) -> Tensor:
        latent = self.encoder(batch[Columns.OBS]).latent
        advantages = self.heads["advantage"](latent)
        return self.heads["state_value"](latent) + advantages - advantages.mean(-1, keepdim=True)

    def compute_values(self, batch: dict[str, Tensor], embeddings: Tensor | None = None) -> Tensor:
        return self.compute_q_values(batch).amax(-1).detach()  # for targets only

    def _forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {Columns.ACTION_DIST_INPUTS: (q := self.compute_q_values(batch)) / 0.05, "q": q}  # near ties explore


class QLearner(BatchLearner):
    def compute_loss_for_module(self, module_id: str, batch: dict, fwd_out: dict) -> tuple[Tensor, dict[str, Tensor]]:
        q = fwd_out["q"].gather(-1, batch[Columns.ACTIONS][:, None]).squeeze(-1)
        return smooth_l1_loss(q, batch[Columns.VALUE_TARGETS]), {"q": q}


runner = EnvRunner(config := PPOConfig().environment("FrozenLake-v1", env_config={"is_slippery": False}), run_seed=1)
spec = RLModuleSpec(QModule, runner.observation_space, runner.action_space, catalog_class=QCatalog)
learner, returns = QLearner(config, spec.as_multi(), run_seed=1), []
num_env_steps = 20_000
runner.set_module(learner.module["default_policy"])
for env_steps in track(range(0, num_env_steps, 64), "Learning"):
    rollout = runner.sample(8)
    _, following = rollout.split_values(runner.module.compute_values({Columns.OBS: rollout.rows_to_value()}))
    rollout.columns[Columns.VALUE_TARGETS] = rollout["rewards"] + 0.9 * following * ~rollout["terminateds"]
    for _ in range(4):
        learner.step_on_batch(rollout.valid_rows(rollout.columns), env_steps=env_steps)
    returns += rollout.stats["episode_returns"].tolist()
print("Goals reached, in 200 episodes each:", *(sum(returns[i : i + 200]) for i in range(0, len(returns), 200)))
