"""Tests of examples/exchange_options.py."""

import argparse

import exchange_options
import pytest


def parse(*arguments):
    parser = argparse.ArgumentParser()
    exchange_options.add_arguments(parser, epochs=3, batch=48)
    options = parser.parse_args(arguments)
    exchange_options.check_batch(parser, options)
    return options


def test_defaults():
    assert exchange_options.settings(parse()) == {
        "bits": 11,
        "rounding": "nearest",
        "scaling": None,
        "simulate": False,
        "mpu": False,
        "seed": 1,
        "epochs": 3,
        "batch": 48,
    }


def test_plain_keras_has_no_strategy():
    options = parse("--workers", "0")
    assert exchange_options.strategy(options) is None
    with exchange_options.scope(None):
        assert exchange_options.optimizer("inner", options) == "inner"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--bits", "7"], "invalid choice: 7"),
        (["--epochs", "0"], "0 is too small; it must be 1 or more"),
        (["--workers", "-1"], "-1 is too small; it must be 0 or more"),
        (["--workers", "5"], "--batch is 48; it must be a multiple of --workers, which is 5"),
    ],
)
def test_wrong_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        parse(*arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
