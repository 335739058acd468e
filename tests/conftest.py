"""Two groups of tests run beside each other under `pytest -n 2`: those of the codec, and all that start processes."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        path = item.nodeid.split("/")
        if "core" not in path[:3]:  # tests/ops/core are the codec's, each on its own
            item.add_marker(pytest.mark.xdist_group("processes"))
