"""Writes .bazelrc.user: the Python that Bazel shall use, and how it works without a network.

Bazel 4 asks for three repositories on the network even where nothing of them is used. Debian's Bazel, which is
patched to have its parts on disk, comes with one of them (package bazel-rules-java); tools/bazel_offline has stand-ins
for the other two. The overrides need absolute paths, so they cannot be in .bazelrc itself.
"""

import importlib.metadata
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEBIAN_RULES_JAVA = pathlib.Path("/usr/share/bazel/rules/java")


def _tensorflow_version():
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return ""


def _overrides():
    if not DEBIAN_RULES_JAVA.exists():
        return {}
    stand_ins = {path.name: path for path in sorted((ROOT / "tools" / "bazel_offline").iterdir())}
    return {"rules_java": DEBIAN_RULES_JAVA, **stand_ins}


def bazelrc():
    """Text of the file."""
    lines = [
        "# Written by tools/bazel_setup.py.",
        f"common --repo_env=PYTHON_BIN_PATH={sys.executable}",
        f"common --repo_env=EPGC_TF_VERSION={_tensorflow_version()}",
    ]
    lines += [f"common --override_repository={name}={path}" for name, path in _overrides().items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / ".bazelrc.user").write_text(bazelrc())
