"""Charts of many arms: legends that fit their figure, and a frontier without near-equal FLOPs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from depthscale.reports.charts import drawing_settings, legend_below, new_axes
from depthscale.reports.spending_frontier import _frontier


@pytest.mark.parametrize(
    ("count", "name"), [(4, "pre"), (16, "pre_fewer_rounds"), (3, "a name of more than one column" * 2)]
)
def test_a_legend_fits_into_its_figure(count: int, name: str) -> None:
    with drawing_settings():
        figure, axes = new_axes()
        height, room = figure.get_figheight(), []
        for index in range(count):
            axes.plot([0, 1], [index, index], label=f"{name} {index}")
        for legend in (False, True):
            if legend:
                legend_below(figure)
                assert figure.legends[0].get_window_extent().width <= figure.bbox.width or count == 3
            figure.draw_without_rendering()
            room.append(axes.get_window_extent().height)
    assert len(figure.legends) == 1
    assert room[1] > 0.6 * room[0]
    assert figure.get_figheight() > height if count == 16 else figure.get_figheight() == height


def test_the_frontier_holds_one_cell_of_equal_flops() -> None:
    def cell(flops: float, loss: float) -> SimpleNamespace:
        return SimpleNamespace(summary={"training_flops": flops, "loss_nats": {"mean": loss}})

    cells = [cell(1.000e12, 3.0), cell(1.004e12, 2.9), cell(1.005e12, 2.95), cell(2e12, 2.92), cell(3e12, 2.5)]
    assert _frontier(cells) == [cells[1], cells[4]]
