"""Proximal mapping as weight-free Keras layers (Li, Ma, Zhang, 2020)."""

__version__ = "0.1.0"
