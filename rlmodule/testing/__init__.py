"""Contracts to test modules and learners of your own against."""
