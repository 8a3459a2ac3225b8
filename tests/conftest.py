"""Settings of all tests."""

import os

# XLA compiles much and runs little here: without optimisation the whole takes a fifth less.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
