"""A matrix is every combination of its axes, each once, under a name that says what it is."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from trc2.errors import UserError
from trc2.sweep.matrix import Cell, Matrix, load_matrix, matrix_names


def cells(*overrides: str, **grid: object) -> list[Cell]:
    return Matrix(grids=[{"recipes": ["demo"], **grid}]).cells(overrides)


def test_it_is_the_product_of_its_axes() -> None:
    ablations = {"full": [], "no_memory": ["model.memory=false"]}
    sizes = {"small": ["model.d_model=32"], "large": []}
    found = cells(ablations=ablations, sizes=sizes, strategies=["none", "ewc"], seeds=[3, 4])
    assert len(found) == 2 * 2 * 2 * 2
    assert len({cell.name for cell in found}) == 16
    one = next(cell for cell in found if cell.name == "demo+small+no_memory+ewc+s4")
    assert (one.config.model.d_model, one.config.train.seed, one.config.strategy.name) == (32, 4, "ewc")
    assert one.config.model.model_dump()["memory"] is False


def test_its_command_trains_the_very_config() -> None:
    from trc2.config import load_recipe

    one = cells(ablations={"plain": ["model.replay=false"]}, orders="others", seeds=[7])[2]
    verb, recipe, *overrides = one.command(Path("somewhere"))
    config = load_recipe(recipe, overrides)
    assert verb == "train"
    assert config.output.folder == Path("somewhere")
    assert config.replace(output=one.config.output.model_dump()) == one.config


def test_all_orders_and_all_the_others() -> None:
    listed = ("prose", "code", "arithmetic")
    every = [cell.config.stream.order for cell in cells(orders="all") if cell.config.stream]
    assert every == list(itertools.permutations(listed))
    others = cells(orders="others")
    assert len(others) == 5
    assert others[0].name == "demo+prose-arithmetic-code+s0"
    assert [c.config.stream.order for c in cells(orders=[listed]) if c.config.stream] == [listed]


@pytest.mark.parametrize("given", [{"extra": ("stream.order=all",)}, {"settings": ["stream.order=all"]}])
def test_a_setting_that_asks_for_all_orders_is_as_many_runs(given: dict[str, Any]) -> None:
    axes = {"seeds": [0, 1], **{name: value for name, value in given.items() if name != "extra"}}
    found = cells(*given.get("extra", ()), **axes)
    assert [(c.name, c.config) for c in found] == [(c.name, c.config) for c in cells(orders="all", seeds=[0, 1])]
    assert len(found) == 12


def test_what_has_no_order_is_run_once_for_all_orders() -> None:
    joint, alone, two = "stream.mode=joint", "stream.only=[code]", "stream.only=[prose,arithmetic]"
    for bound in (joint, alone):
        assert [cell.name for cell in cells(bound, orders="all")] == ["demo+s0"]
        with pytest.raises(UserError, match="The matrix has 0 runs: joint training and single tasks have no other"):
            cells(bound, orders="others")
    trained = [c.config.stream.trained for c in cells(two, orders="all") if c.config.stream]
    assert [[task.name for task in tasks] for tasks in trained] == [["prose", "arithmetic"], ["arithmetic", "prose"]]
    orders: dict[str, int] = {}
    for cell in load_matrix("lab").cells(("stream.order=all",)):
        assert cell.config.stream is not None
        is_bound = cell.config.stream.mode == "joint" or cell.config.stream.only is not None
        assert is_bound == (cell.order == ())
        name = cell.name.replace(f"+{'-'.join(cell.order)}+", "+")
        orders[name] = orders.get(name, 0) + 1
    assert sorted(set(orders.values())) == [1, 6]


def test_seeds_are_outermost_so_that_an_early_stop_has_something_of_everything() -> None:
    grids = [{"recipes": ["demo"], "seeds": [0, 1]}, {"recipes": ["demo"], "sizes": {"x": []}, "seeds": [0, 1]}]
    assert [cell.name for cell in Matrix(grids=grids).cells()] == ["demo+s0", "demo+x+s0", "demo+s1", "demo+x+s1"]


def test_overrides_of_the_command_reach_every_run_and_know_the_seed() -> None:
    found = cells("train.batch_size=3", settings=["model.replay_seed=10{seed}"], seeds=[1, 2])
    assert [(c.config.train.batch_size, c.config.model.replay_seed) for c in found] == [(3, 101), (3, 102)]


def test_a_run_that_two_grids_share_is_run_once_and_a_clash_of_names_is_refused() -> None:
    same = Matrix(grids=[{"recipes": ["demo"]}, {"recipes": ["demo"], "seeds": [0, 1]}])
    assert [cell.name for cell in same.cells()] == ["demo+s0", "demo+s1"]
    clash = Matrix(grids=[{"recipes": ["demo"]}, {"recipes": ["demo"], "settings": ["train.batch_size=3"]}])
    with pytest.raises(UserError, match=r"Two runs of the matrix are called demo\+s0 but differ"):
        clash.cells()


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"recipes": []}, "recipes"),
        ({"recipes": ["dmeo"]}, "Did you mean 'demo'|did you mean"),
        ({"ablation": {}}, "ablation"),
        ({"ablations": {"no_memory": ["model.memry=false"]}}, r"demo\+no_memory\+s0 of the matrix cannot be: .*memry"),
        ({"ablations": ["a"]}, "is not a list of names"),
        ({"strategies": [{}]}, "is not a list of names"),
        ({"ablations": {"../../x": []}}, "has the name '../../x'"),
        ({"strategies": ["ewcc"]}, "ewc"),
        ({"orders": [["prose"]]}, "is not an order of the tasks"),
        ({"seeds": []}, "seeds"),
        ({"recipes": ["paper_compact"], "orders": "all"}, "no stream|data_root|order"),
    ],
)
def test_a_wrong_matrix_is_one_sentence(grid: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        cells(**grid)
    assert "\n" not in str(refused.value)


def test_the_packaged_matrices_are_valid_and_the_labs_has_the_runs_it_promises(tmp_path: Path) -> None:
    for name in matrix_names():
        assert load_matrix(name).cells()
    with pytest.raises(UserError, match=r"There is no matrix or file 'lba': .*lab"):
        load_matrix("lba")
    found = load_matrix("lab").cells()
    assert len({cell.name for cell in found}) == len(found) == 67
    file = tmp_path / "mine.yaml"
    file.write_text("grids: [{recipes: [demo], seeds: [0, 1]}]")
    assert [cell.name for cell in load_matrix(str(file)).cells()] == ["demo+s0", "demo+s1"]


def test_a_matrix_is_counted_before_its_runs_are_made() -> None:
    axes = {name: {f"{name}{n}": [] for n in range(100)} for name in ("sizes", "ablations", "strategies")}
    begun = time.process_time()
    with pytest.raises(UserError, match="4000000 runs or more"):
        cells(seeds=[0, 1, 2, 3], **axes)
    assert time.process_time() - begun < 1


def test_runs_that_differ_in_their_seed_share_one_config_until_asked() -> None:
    plain = {"plain": ["model.memory=false"]}
    found = cells(seeds=list(range(500)), ablations=plain)
    assert len({id(cell.variant) for cell in found}) == 1
    assert sum(cell.variant.total_steps for cell in found) == 500 * found[0].variant.total_steps
    assert "config" not in vars(found[499])
    assert (found[499].config.train.seed, found[499].name) == (499, "demo+plain+s499")


def test_a_setting_that_names_the_seed_gives_every_seed_a_config_of_its_own() -> None:
    found = cells(seeds=[0, 1, 7], ablations={"plain": ["model.memory=false"]}, settings=["stream.cache=c{seed}"])
    assert len({id(cell.variant) for cell in found}) == 3
    assert found[2].config.stream is not None
    assert str(found[2].config.stream.cache) == "c7"
