"""Tests of examples/custom_loop.py."""

import custom_loop
import pytest
import running


def test_it_needs_a_strategy(capsys):
    with pytest.raises(SystemExit):
        custom_loop.parse(["--workers", "0"])
    assert "use 1 or more" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_workers_train():
    result, progress = running.result_of(running.run("custom_loop.py", "--bits", "8", "--epochs", "5"))
    assert result["identical"] and result["workers"] == 2
    assert result["accuracy"] > 0.8
    assert result["loss_scale"] > 1
    assert len(progress) == 5
