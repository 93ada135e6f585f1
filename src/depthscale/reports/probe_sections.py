"""What a section of the probe's report is made of."""

from __future__ import annotations

from dataclasses import dataclass

from depthscale.reports.charts import Chart


@dataclass(frozen=True)
class ReportTable:
    """A small table, cells as they are printed.

    Attributes:
        caption: what the rows are.
        columns: headings; the first column names its row.
        rows: as many cells each.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ReportSection:
    """One heading of the report with all that stands under it, in this order.

    Attributes:
        anchor: of the link to it; letters and hyphens.
        title: of the heading.
        paragraphs: sentences, the answer first.
        charts: figures.
        tables: below them.
    """

    anchor: str
    title: str
    paragraphs: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[ReportTable, ...] = ()
