"""With this folder on PYTHONPATH, an editable install of tf_epgc in the environment is not seen.

An editable install answers before the path is searched, so that a test of another copy of tf_epgc (Bazel's, a wheel's)
would test the editable one instead.
"""

import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "tf_epgc" not in getattr(finder, "known_source_files", {})]
