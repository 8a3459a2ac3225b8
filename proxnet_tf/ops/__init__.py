"""Stateless mathematics: tensors in, tensors out."""
