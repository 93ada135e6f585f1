"""One model after another: load, measure, write, and pass over what is there already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from depthscale.cli.folder_name import slug

if TYPE_CHECKING:
    from depthscale.probing.corpus import RowCounts
    from depthscale.probing.settings import ProbeRecipe

SERIES_TABLE = "revisions.csv"


def probe_models(recipe: ProbeRecipe, directory: Path, console: Console) -> list[Path]:
    """Probe every model at every revision and return the directories of the results.

    One model without revisions is written to ``directory`` itself, several to folders in it. A finished probe of the
    same settings on the same local files is not measured again, so that an interrupted series goes on where it stopped.

    Raises:
        DepthscaleError: whatever a model or corpus cannot be used for; results written before stay.
    """
    found = []
    for name in recipe.models:
        home = directory if len(recipe.models) == 1 else directory / slug(name)
        if not recipe.revisions:
            found.append(_probe_one(recipe, name, None, home, console))
            continue
        series = [
            _probe_one(recipe, name, revision, home / "revisions" / slug(revision), console)
            for revision in recipe.revisions
        ]
        _write_series(home, name, series, console)
        found += series
    return found


def _probe_one(recipe: ProbeRecipe, name: str, revision: str | None, home: Path, console: Console) -> Path:
    from depthscale.cli.probe_model import model_source, note_shortfall
    from depthscale.cli.probe_texts import local_texts_fingerprint, read_texts
    from depthscale.errors import DataError
    from depthscale.probing import cluster_reader
    from depthscale.probing.loading import load_for_probing, local_fingerprint
    from depthscale.probing.probe import locate_loaded, probe
    from depthscale.probing.results import RESULT_KIND, TOKEN_FILE, probe_result, write_probe
    from depthscale.reports.probe_report import build_probe_report
    from depthscale.runs.results import read_result, result_path, write_result

    identity = {
        "model": name,
        "revision": revision,
        "model_settings": recipe.model.model_dump(mode="json"),
        "probe_settings": recipe.probe.model_dump(mode="json"),
    }
    label = name if revision is None else f"{name} at {revision}"
    source = model_source(name, revision, recipe.model)
    files = {"model": local_fingerprint(source), "corpus": local_texts_fingerprint(recipe.probe)}
    if result_path(home, RESULT_KIND).exists() and _is_same(read_result(home, RESULT_KIND), identity, files):
        console.print(f"{label}: measured before, in {home}", soft_wrap=True)
        return home
    loaded = load_for_probing(source)
    checked = locate_loaded(loaded, recipe.model)
    console.print(
        f"{label}: {checked.located.family}, {checked.located.num_blocks} blocks, {checked.located.num_visits} visits,"
        f" width {checked.located.width}",
        soft_wrap=True,
    )
    reported = 0

    def tell(counts: RowCounts) -> None:
        nonlocal reported
        if counts.tokens >= reported + 10_000:
            reported = counts.tokens
            console.print(f"{counts.tokens:,} tokens of {counts.documents:,} documents read")

    clusters = cluster_reader.ClusterReader(seed=recipe.probe.seed)
    measured = probe(
        loaded,
        checked,
        read_texts(recipe.probe),
        recipe.probe,
        token_file=home / TOKEN_FILE if recipe.probe.keep_tokens else None,
        readers=[clusters],
        on_batch=tell,
    )
    if recipe.probe.documents is None:
        note_shortfall(measured.counts, recipe.probe.max_tokens, measured.context_length, console)
    try:
        write_result(home, cluster_reader.RESULT_KIND, {"identity": identity, **clusters.result(loaded.tokenizer)})
    except DataError as error:
        result_path(home, cluster_reader.RESULT_KIND).unlink(missing_ok=True)
        console.print(f"Note: no token groups: {error}.", soft_wrap=True)
    # Last, since its presence says that all is there.
    result = {"identity": identity, "files": files, **probe_result(loaded, measured, recipe.probe)}
    console.print(f"written: {write_probe(home, result, measured.profile)}", soft_wrap=True)
    console.print(f"report: {build_probe_report(home)}", soft_wrap=True)
    return home


def _is_same(result: Mapping[str, Any], identity: Mapping[str, Any], files: Mapping[str, str | None]) -> bool:
    """The same settings, on files that have not changed since, where they are known and still there."""
    before = result.get("files", {})
    changed = [name for name, now in files.items() if None not in (now, before.get(name)) and now != before[name]]
    return result.get("identity") == identity and not changed


def _write_series(home: Path, name: str, series: list[Path], console: Console) -> None:
    import csv
    import io

    from depthscale.probing.results import RESULT_KIND
    from depthscale.probing.revisions import series_table
    from depthscale.runs.files import atomic_write_text
    from depthscale.runs.results import read_result, write_result

    rows = series_table([read_result(directory, RESULT_KIND) for directory in series])
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "shares_weights_with": " ".join(row["shares_weights_with"])} for row in rows)
    atomic_write_text(home / SERIES_TABLE, buffer.getvalue())
    write_result(home, "probe_series", {"model": name, "revisions": rows})
    for row in rows:
        if row["shares_weights_with"]:
            console.print(f"Note: {_repeated(row)}.", soft_wrap=True)
    console.print(f"written: {home / SERIES_TABLE}", soft_wrap=True)


def _repeated(row: Mapping[str, Any]) -> str:
    others = ", ".join(row["shares_weights_with"])
    return (
        f"{row['revision']} shares weights with {others}: they cannot both be what their names say; kept out of trends"
    )
