"""What a fit says, in sentences: the same in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_OBJECTIVE_WORDS = {
    "log_squares": "mean squares of log loss",
    "log_huber": "summed Huber of log loss",
    "raw_squares": "mean squares of loss",
}
_VERDICT_WORDS = {
    "ensemble_averaging": "ensemble averaging: exponent 1 is allowed, 3 is not",
    "procedural_assembly": "procedural assembly: exponent 3 is allowed, 1 is not",
    "both allowed": "both allowed: these rows reject neither 1 nor 3",
    "neither": "neither: these rows reject both 1 and 3",
}

#: Widths and the like are printed whole within this range.
_WHOLE = (1e4, 1e6)


def value(number: float | None, digits: int = 4) -> str:
    """A number for print; infinite where an interval is open.

    Example:
        >>> value(1.32513), value(None), value(12928.0), value(2.5e10)
        ('1.325', 'open', '12,928', '2.5e+10')
    """
    if number is None:
        return "open"
    return f"{number:,.0f}" if _WHOLE[0] <= abs(number) < _WHOLE[1] else f"{number:.{digits}g}"


def ends(interval: Sequence[float | None] | None, digits: int = 4) -> str:
    """An interval for print.

    Example:
        >>> ends([0.89, 2.05]), ends(None)
        ('0.89 to 2.05', 'unknown')
    """
    return "unknown" if interval is None else f"{value(interval[0], digits)} to {value(interval[1], digits)}"


def objective_words(fit: Mapping[str, Any]) -> str:
    """What was minimized."""
    words = _OBJECTIVE_WORDS[fit["objective"]["kind"]]
    return f"{words} (delta {fit['objective']['delta']:g})" if fit["objective"]["kind"] == "log_huber" else words


def error_words(fit: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    """Which standard error stands beside the conventions' spread.

    Example:
        >>> error_words({"num_groups": 39}, {"fitted": 203}), error_words({"num_groups": 203}, {"fitted": 203})
        ('sandwich over 39 groups', 'sandwich over rows')
    """
    return f"sandwich over {fit['num_groups']} groups" if fit["num_groups"] < rows["fitted"] else "sandwich over rows"


def certificate_words(fit: Mapping[str, Any]) -> str:
    """Why this is the minimum."""
    found = fit["certificate"]
    words = (
        f"certified: {found['agreeing_starts']} of {found['num_starts']} starts end here, scaled gradient"
        f" {found['scaled_gradient']:.0e}, Newton step {found['step_in_errors']:.0e} standard errors, the objective's"
        f" scale moves the answer by {found['scale_shift']:.0e}"
    )
    return f"{words}; at its bound: {', '.join(found['at_bound'])}" if found["at_bound"] else words


def card_lines(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The data card; what is not known is said to be unknown."""
    names = {
        "annealed": "learning rates decayed to their end",
        "tokenizer": "tokenizer",
        "vocab_size": "vocabulary",
        "mlp_ratio": "MLP ratio",
        "rate_tuned": "rate tuned for each size",
        "embeddings_counted": "parameters count the embedding",
    }
    return [(words, _answer(card[name])) for name, words in names.items()]


def sentences(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(lead, rest) for each thing that a reader should take away."""
    fit, rows, level = result["fit"], result["rows"], f"{100 * result['level']:g} %"
    lines = [
        ("Fit", f"{rows['fitted']} of {rows['read']} rows, {objective_words(fit)}: {fit['value']:.8g}; "
         + certificate_words(fit) + "."),
    ]  # fmt: skip
    exponents = {factor["exponent"]: factor["column"] for term in fit["law"]["terms"] for factor in term["factors"]}
    for row in result["parameters"]:
        if row["name"] in exponents:
            spread = result["audit"]["spread"][row["name"]]
            lines.append(
                (
                    f"Exponent of {exponents[row['name']]}",
                    f"{row['name']} = {value(row['estimate'])} ({level} interval {ends(row['interval'])},"
                    f" {result['interval_kind']}); over conventions it moves by {value(spread, 3)}.",
                )
            )
    regime = result["regime"]
    if regime is not None:
        lines.append(("Regime of depth", regime_words(regime)))
    lines += [("Held out", words) for words in validation_words(result["validation"])]
    return lines


def regime_words(regime: Mapping[str, Any]) -> str:
    """The answer, and both exponents beside it whatever the answer is."""
    if "failed" in regime:
        return f"not tested: {regime['failed']}."
    tests = "; ".join(
        f"held at {test['exponent']:g} "
        + (
            "no fit is certified"
            if test["deviance"] is None
            else f"the deviance is {test['deviance']:.2f} ({_p_values(test)})"
        )
        for test in regime["held"].values()
    )
    if regime["reasons"]:
        lead = f"not identifiable: {', '.join(regime['reasons'])}"
    else:
        lead = _VERDICT_WORDS[regime["verdict"]]
    return f"{lead}. For the record, {tests}."


def _p_values(test: Mapping[str, Any]) -> str:
    """The verdict is by groups where the rows have them; results of an older version know none."""
    rows, groups = test["p_value"], test.get("group_p_value")
    if groups is None:
        return f"p = {rows:.2g}, rows taken as independent"
    return f"p = {groups:.2g} by groups, {rows:.2g} with rows taken as independent"


def validation_words(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each kind of held-out rows."""
    what = {
        "rows": "random rows",
        "groups": "whole groups",
        "extrapolation": "the largest budgets, predicted from the smaller",
    }
    lines = []
    for test in tests:
        if "failed" in test:
            lines.append(f"{what[test['kind']]}: {test['failed']}.")
            continue
        refused = f", {test['num_refused']} splits not certified" if test["num_refused"] else ""
        lines.append(
            f"{what[test['kind']]}: off by {100 * test['test_error']:.2f} % ({100 * test['train_error']:.2f} % on the"
            f" rows fitted, bias {100 * test['bias']:+.2f} %); {100 * test['coverage']:.0f} % lie inside their"
            f" {100 * test['level']:g} % prediction interval{refused}."
        )
    return lines


def allocation_sentences(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(lead, rest) for each thing an allocation says."""
    best, level = result["best"], f"{100 * result['level']:g} %"
    looped = f" x {best['rounds']:.0f} rounds" if best["rounds"] > 1 else ""
    near, beyond = result["near_optimum"], result["beyond_data"]
    lines = [
        (
            "Build",
            f"width {best['width']:.0f} ({best['heads']} heads, {best['key_value_heads']} for keys and values, MLP"
            f" {best['intermediate_size']}), {best['blocks']:.0f} blocks{looped}, {best['parameters']:.4g} parameters,"
            f" {best['tokens']:.4g} tokens: {best['flops']:.4g} FLOPs, {best['memory']:.3g} bytes of training state.",
        ),
        (
            "Loss",
            f"{result['loss']:.4f} nats per token; a run is expected within {ends(result['prediction'])} ({level},"
            f" parameters, run noise and {len(result['form_losses'])} forms of law together){_measured(result)}.",
        ),
        (
            f"{level} interval",
            "; ".join(
                f"{name} held" if name == result["asked"]["kind"] else f"{name} {ends(result['intervals'][name])}"
                for name in ("width", "blocks", "tokens", "parameters")
            )
            + f" ({result['interval_kind']}).",
        ),
        (
            "Within 1 %",
            f"{near['count']} of {near['of']} shapes: "
            + ", ".join(f"{name} {ends(near['ranges'][name])}" for name in ("width", "blocks", "tokens", "parameters"))
            + ".",
        ),
        (
            "Beyond the rows",
            ", ".join(f"{name} {factor:.3g} x" if factor > 1 else f"{name} inside" for name, factor in beyond.items())
            + ".",
        ),
    ]
    for row in result["closed_form"]:
        words = f"e = {value(row['exponent'])} ({level} {ends(row['interval'])})"
        if row["theory"] is not None:
            words += f"; {row['theory']:.3g} lies {'inside' if row['theory_inside'] else 'outside'}"
        lines.append((row["law"], f"{words}."))
    run = result["most_useful_run"]
    if run is not None:
        looped = f" x {run['rounds']:.0f} rounds" if run["rounds"] > 1 else ""
        lines.append(
            (
                "Most useful next run",
                f"width {run['width']:.0f}, {run['blocks']:.0f} blocks{looped}, {run['tokens']:.3g} tokens"
                f" ({run['flops']:.2g} FLOPs): removes {100 * run['variance_removed']:.0f} % of the variance that the"
                f" parameters of '{result.get('first_form', 'the first form')}' leave in the prediction; runs' noise"
                " and the choice of form are not in it.",
            )
        )
    return lines


def _measured(result: Mapping[str, Any]) -> str:
    """How such intervals fared where it could be measured."""
    test = result.get("measured")
    if test is None:
        return ""
    return (
        f"; when the rows' largest budgets were held out, {100 * test['coverage']:.0f} % of them lay inside their"
        f" {100 * test['level']:g} % interval under the first form alone"
    )


def _answer(answer: object) -> str:
    if answer is None:
        return "unknown"
    return {True: "yes", False: "no"}[answer] if isinstance(answer, bool) else str(answer)
