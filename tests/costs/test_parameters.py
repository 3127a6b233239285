from __future__ import annotations

import pytest

from tests.conftest import tiny_config
from trc2 import CortexNet, load_recipe
from trc2.costs.parameters import (
    GIB,
    PAPER_COLUMNS,
    PAPER_ROWS,
    PaperRow,
    paper_accounting,
    percentages,
    static_budget,
    unreachable,
)
from trc2.costs.tables import paper_differences, paper_rows

TOTALS = {
    "paper_d256_l24": 148.9, "paper_d512_l10": 253.8, "paper_d768_l4": 226.0, "paper_d768_l8": 407.7,
    "paper_d1024_l6": 560.1,
}  # fmt: skip


@pytest.mark.parametrize("row", PAPER_ROWS, ids=lambda row: row.recipe)
def test_the_papers_component_table_comes_out_to_the_digit(row: PaperRow) -> None:
    config = load_recipe(row.recipe).model
    parts = paper_accounting(config)
    assert tuple(percentages([parts[name][0] for name in PAPER_COLUMNS])) == row.parameters
    assert tuple(percentages([parts[name][1] for name in PAPER_COLUMNS])) == row.memory
    total = sum(part.total for part in static_budget(config).values())
    assert round(total / 1e6, 1) == TOTALS[row.recipe]
    assert round(total / 1e6) == row.millions


def test_the_trainable_split_and_gigabytes_of_d768_l4_are_the_papers() -> None:
    parts = paper_accounting(load_recipe("paper_d768_l4").model)
    assert [parts[name][0] for name in PAPER_COLUMNS] == [181_696_512, 3_639_553, 176_163]
    assert [f"{parts[name][1] / GIB:.3g}" for name in PAPER_COLUMNS] == ["0.679", "0.141", "0.000656"]


def test_the_paper_table_reports_no_difference() -> None:
    assert paper_differences(paper_rows()) == 0


def test_the_budget_on_meta_is_that_of_the_real_network() -> None:
    config = tiny_config()
    net = CortexNet(config)
    parts = static_budget(config)
    assert sum(part.total for part in parts.values()) == sum(p.numel() for p in net.parameters())
    assert sum(part.frozen for part in parts.values()) == sum(
        p.numel() for p in net.parameters() if not p.requires_grad
    )
    tensors = [*net.parameters(), *net.buffers()]
    clock = 16  # step and micro-step
    assert sum(part.bytes for part in parts.values()) == sum(t.numel() * t.element_size() for t in tensors)
    assert parts["columns"].bytes >= clock


def test_switches_remove_parameters_and_the_budget_tells_how_many() -> None:
    full = tiny_config()
    assert unreachable(full) == 0
    ablated = full.replace(thalamus=False, memory=False, replay=False)
    d, r, k = full.d_model, full.rank, full.memory_key_dim
    router = 2 * d * r + 3 * r * r + 3 * r + 3 + d
    hippocampus = 2 * d * k + 2 * d * d + d + 4 * d * d + 2 * d
    feedback = 3 * d * d + d + 1
    columns = full.num_columns * 2 * d * d  # L5 and the query maps
    assert unreachable(ablated) == router + hippocampus + feedback + columns
    # Without the thalamus the late column keeps its query map: the hippocampus speaks through it.
    assert unreachable(full.replace(thalamus=False)) == router + columns - full.num_late_columns * d * d
