"""Formulas of the algorithms, as pure functions of tensors."""
