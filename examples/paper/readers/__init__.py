"""Readers of published data sets: a file that cannot be read is named, with where to get it."""
