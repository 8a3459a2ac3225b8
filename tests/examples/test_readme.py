import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[2] / "README.md"


def test_example_of_the_readme_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert "epochs=10" in code
    names = {}
    exec(code.replace("epochs=10", "epochs=1, verbose=0"), names)
    history = names["model"].history.history
    assert np.isfinite(history["loss"]).all() and history["lam"] == [0.5]
    assert history["correlation"][0] > history["correlation_before"][0]
