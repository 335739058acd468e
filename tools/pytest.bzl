"""Tests that run under pytest."""

def pytest_test(name, src, data = [], **kwargs):
    """One pytest file as a test; its slow tests are left out.

    Args:
      name: Name of the target.
      src: The test file.
      data: What it needs beside tf_epgc and the helpers of tests/.
      **kwargs: For py_test.
    """
    native.py_test(
        name = name,
        srcs = ["//tools:pytest_main.py"],
        main = "//tools:pytest_main.py",
        args = ["$(rootpath %s)" % src],
        data = [
            src,
            "//:pyproject.toml",
            "//tf_epgc",
            "//tools:without_editable",
        ] + data,
        legacy_create_init = False,
        python_version = "PY3",
        **kwargs
    )
