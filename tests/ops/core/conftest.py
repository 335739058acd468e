"""Every test of the codec that asks for `isa` runs once for each instruction set of this CPU."""

import pytest

from tf_epgc import _core


@pytest.fixture(params=_core.runnable_isas())
def isa(request):
    """The name of the instruction set in use."""
    before = _core.active_isa()
    _core.set_isa_for_test(request.param)
    assert _core.active_isa() == request.param
    yield request.param
    _core.set_isa_for_test(before)
