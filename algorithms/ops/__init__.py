"""The arithmetic of the algorithms: pure functions of tensors."""
