"""Modules: what a policy computes, the spec that builds it, and the policy object that acts with it."""
