"""Central differences."""

import numpy as np


def central_difference(function, values, index, step=1e-5):
    """d function(*values)/d values[index], entry by entry; `function` returns a number."""
    values = [np.array(v, dtype=np.float64) for v in values]
    gradient = np.zeros_like(values[index])
    for position in np.ndindex(*gradient.shape):
        original = values[index][position]
        values[index][position] = original + step
        above = function(*values)
        values[index][position] = original - step
        below = function(*values)
        values[index][position] = original
        gradient[position] = (above - below) / (2 * step)
    return gradient


def directional_difference(function, values, direction, step=1e-5):
    """The derivative of function along `direction` (a list of arrays like `values`)."""
    above = function(*[v + step * d for v, d in zip(values, direction, strict=True)])
    below = function(*[v - step * d for v, d in zip(values, direction, strict=True)])
    return (above - below) / (2 * step)
