"""Tests run beside each other: one torch thread each, and no test of Hypothesis fails because a machine is busy."""

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
