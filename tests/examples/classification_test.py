"""Tests of examples/classification.py."""

import classification
import pytest
import running

SMALL = ["--network", "resnet8", "--width", "4", "--batch", "32", "--train", "128", "--test", "64", "--epochs", "1"]


def test_defaults_are_resnet20_on_all_of_cifar10():
    options = classification.parse([])
    assert (options.network, options.train, options.data, options.workers) == ("resnet20", None, None, 2)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--network", "lenet"], "there is no network 'lenet'"),
        (["--batch", "63"], "must be a multiple of --workers"),
        (["--train", "0"], "0 is too small"),
    ],
)
def test_wrong_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit):
        classification.parse(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("arguments", [["--bits", "8"], ["--bits", "16", "--scaling", "none", "--mpu"]])
def test_two_workers_train(image_files, arguments):
    lines = running.run("classification.py", "--data", image_files["cifar10"], *SMALL, *arguments)
    result, progress = running.result_of(lines)
    assert result["identical"] and result["workers"] == 2 and result["network"] == "resnet8"
    assert 0 <= result["accuracy"] == result["curve"][0]
    assert ("loss_scale" in result) == ("--mpu" in arguments)
    assert progress[0].startswith("EPGC-8 epoch 1/1: loss" if "8" in arguments else "LPDU epoch 1/1: loss")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_plain_keras_learns(image_files):
    small = [*SMALL, "--train", "256", "--epochs", "8"]
    lines = running.run("classification.py", "--data", image_files["cifar10"], *small, "--workers", "0")
    result, _ = running.result_of(lines)
    assert result["loss"][-1] < result["loss"][0]
    assert len(result["curve"]) == 8
