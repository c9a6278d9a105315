"""Tests run beside each other: one torch thread each."""

import torch

torch.set_num_threads(1)
