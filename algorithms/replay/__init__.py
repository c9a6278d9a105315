"""Replay: store transitions, and sample batches of them for off-policy learning."""

from algorithms.replay.buffer import ReplayBuffer, ReplaySample
from algorithms.replay.hindsight import HindsightReplay
from algorithms.replay.layout import replay_bytes
from algorithms.replay.prioritized import PrioritizedReplay
from algorithms.replay.sequences import SequenceReplay

__all__ = ["HindsightReplay", "PrioritizedReplay", "ReplayBuffer", "ReplaySample", "SequenceReplay", "replay_bytes"]
