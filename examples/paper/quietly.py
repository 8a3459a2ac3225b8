"""Runs a script without the notices that TensorFlow prints while it starts.

    python examples/paper/quietly.py examples/paper/multiview_digits.py --seeds 0

Some of them come before TensorFlow reads TF_CPP_MIN_LOG_LEVEL. So all output during the import of
TensorFlow is held back, and shown only if the import fails.
"""

import os
import runpy
import sys
import tempfile


def import_tensorflow():
    """Imports TensorFlow, and looks for devices, with standard error held back."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    stderr, notices = os.dup(2), tempfile.TemporaryFile()
    os.dup2(notices.fileno(), 2)
    done = False
    try:
        import tensorflow as tf

        tf.config.list_physical_devices()
        done = True
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        if not done:
            notices.seek(0)
            os.write(2, notices.read())
        notices.close()


if __name__ == "__main__":
    import_tensorflow()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
