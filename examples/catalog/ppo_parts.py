"""PPO's nets by hand: PPOCatalog builds encoder, policy head and value head; no algorithm, no learner, no runner.

Run it as ``python examples/catalog/ppo_parts.py``.
"""

import gymnasium as gym
import torch

from algorithms.ppo import PPOCatalog

env = gym.make("Pendulum-v1")
catalog = PPOCatalog(env.observation_space, env.action_space, {"fcnet_hiddens": [64], "vf_share_layers": True})

encoder = catalog.build_actor_critic_encoder()  # encoder first: heads take their width from it
policy_head = catalog.build_pi_head()
value_head = catalog.build_vf_head()
converter = catalog.build_action_converter()  # from what was sampled, about [-1, 1], to torques in [-2, 2]
distribution_class = catalog.get_action_dist_cls()
print(f"{'torque':>8} {'log p':>8} {'entropy':>8} {'value':>8} {'reward':>8}")
generator = torch.Generator().manual_seed(1)
obs, info = env.reset(seed=1)
with torch.no_grad():
    for _ in range(10):
        seen, latents = obs, encoder(torch.from_numpy(obs)[None])  # a batch of one
        distribution = distribution_class.from_logits(policy_head(latents.actor))
        sampled = distribution.sample(generator)
        torque = converter(sampled)[0].numpy()
        obs, reward, terminated, truncated, info = env.step(torque)
        numbers = (torque.item(), distribution.logp(sampled), distribution.entropy(), value_head(latents.critic))
        print(" ".join(f"{float(number):8.3f}" for number in (*numbers, reward)))

# What PPO would do next needs nothing but these parts: here the gradient of its probability ratio, which begins at 1.
old_logp = distribution.logp(sampled)
logits = policy_head(encoder(torch.from_numpy(seen)[None]).actor)
ratio = (distribution_class.from_logits(logits).logp(sampled) - old_logp).exp()
ratio.sum().backward()
print(f"ratio {ratio.item():.1f}")
for name, part in {"encoder": encoder, "policy head": policy_head, "value head": value_head}.items():
    has_gradient = any(parameter.grad is not None for parameter in part.parameters())
    print(f"{name:12} {'has a gradient' if has_gradient else 'has none'}")
