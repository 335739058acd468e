"""Tests of examples/study/cells.py."""

import cells
import pytest


def test_every_seed_has_all_formats_before_the_next():
    made = cells.cells(["resnet"], seeds=(1, 2))
    assert [(cell["seed"], cell["bits"]) for cell in made] == [(s, b) for s in (1, 2) for b in cells.FORMATS]


def test_no_cell_twice():
    made = [cells.key(cell) for cell in cells.cells()]
    assert len(made) == len(set(made)) == len(cells.cells(["resnet", *cells.GROUPS]))


@pytest.mark.parametrize("group", cells.GROUPS)
def test_the_examples_take_every_cell(group):
    import classification
    import detection

    for cell in cells.cells([group]):
        program = detection if cell["task"] == "detection" else classification
        options = program.parse(cells.arguments(cell))
        wanted = {name: cell[name] for name in ("bits", "rounding", "mpu", "simulate", "workers", "seed")}
        assert {name: getattr(options, name) for name in wanted} == wanted
        assert options.scaling == (cell["scaling"] if cell["bits"] != 32 else None)


def test_sizes_can_be_replaced():
    [cell] = cells.cells(["plain"], seeds=[5])
    line = cells.arguments(cell, {"epochs": "1"})
    assert line[line.index("--epochs") + 1] == "1"
    assert line[line.index("--train") + 1] == "4000"


def test_name():
    assert (
        cells.name({**cells.DEFAULTS, "bits": 8, "mpu": True})
        == "resnet8, 8 bits, nearest, block, mpu, 2 workers, seed 1"
    )
