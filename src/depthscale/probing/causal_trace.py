"""Where does the subject act? Noise on its embeddings, and one clean state at a time put back.

    effect of (l, t) = p(answer | noise, h_l at token t restored) - p(answer | noise)

The noise is normal with 3 times the standard deviation of the embedding matrix's entries, on the subject's tokens, the
same for every state that is restored in one draw. Rows of a batch are states to restore, so that layers and positions
run side by side.

Source: Meng et al., arXiv 2202.05262, with the noise and the metric (first token of the answer) of arXiv 2602.05970's
code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from depthscale.probing.errors import ProbingError
from depthscale.probing.intervals import Measured, mean_of_rows
from depthscale.probing.ledger import Ledger
from depthscale.probing.located import LocatedModel
from depthscale.probing.replacing import Replacement, record_clean_pass, replaced
from depthscale.probing.states import TokenBatch, run_base
from depthscale.probing.trace_prompts import ROLES, TokenizedPrompt

Array = NDArray[np.float64]

RESULT_KIND = "probe_trace"
NOISE_IN_DEVIATIONS = 3.0
NUM_DRAWS = 5
ROWS_PER_BATCH = 32
#: Share of the answer's probability that the noise must take for a prompt to say anything.
SMALLEST_SHARE_LOST = 0.01


@dataclass(frozen=True)
class TraceSettings:
    """How a trace is made.

    Attributes:
        noise: in standard deviations of the embedding matrix's entries.
        num_draws: of the noise.
        seed: of the noise.
        rows: states restored side by side.
    """

    noise: float = NOISE_IN_DEVIATIONS
    num_draws: int = NUM_DRAWS
    seed: int = 0
    rows: int = ROWS_PER_BATCH


@dataclass(frozen=True)
class PromptTrace:
    """One prompt.

    Attributes:
        prompt, tokens, subject, answer_token: what was traced.
        roles: index into ROLES of each token, None before the subject.
        clean: p(answer) of the prompt as it is.
        noised: p(answer) under noise, over draws.
        effects: [layers][tokens], mean over draws.
        low, high: [layers][tokens], 95 % over draws.
    """

    prompt: str
    tokens: tuple[str, ...]
    subject: tuple[int, int]
    answer_token: str
    roles: tuple[int | None, ...]
    clean: float
    noised: Measured
    effects: tuple[tuple[float, ...], ...]
    low: tuple[tuple[float, ...], ...]
    high: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class RoleEffect:
    """Mean over prompts of the largest effect among the tokens of a role, by layer.

    Attributes:
        role: of ROLES.
        num_prompts: that have such a token.
        by_layer: with 95 % over prompts; over draws where one prompt came.
        layers: first and last layer, as shares of the depth, where the effect is at least half of its largest.
    """

    role: str
    num_prompts: int
    by_layer: tuple[Measured, ...]
    layers: tuple[float, float] | None


@dataclass(frozen=True)
class CausalTrace:
    """All prompts.

    Attributes:
        settings: how.
        noise_deviation: standard deviation of the noise, in units of the embedding.
        prompts: each with its map.
        total_effect: p(answer) without noise less with it, over prompts.
        roles: averages.
        num_unaffected: prompts whose answer the noise made less likely by under 1 %: they are in no role.
    """

    settings: TraceSettings
    noise_deviation: float
    prompts: tuple[PromptTrace, ...]
    total_effect: Measured
    roles: tuple[RoleEffect, ...]
    num_unaffected: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def trace(
    located: LocatedModel,
    prompts: Sequence[TokenizedPrompt],
    ledger: Ledger,
    settings: TraceSettings | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> CausalTrace:
    """Trace every prompt.

    Args:
        located: the model, in evaluation mode.
        prompts: tokenized.
        ledger: keeps each draw of each prompt as it is measured.
        settings: None takes the defaults.
        on_done: told how many draws of how many are done.

    Raises:
        ProbingError: the embedding's weights have no spread to scale the noise by, or p(answer) is not finite.
    """
    settings = TraceSettings() if settings is None else settings
    deviation = settings.noise * embedding_deviation(located.embedding)
    records: list[list[dict[str, Any]]] = []
    total = len(prompts) * settings.num_draws
    for number, prompt in enumerate(prompts):
        draws = []
        for draw in range(settings.num_draws):
            key = f"trace/{number}/{draw}"
            if key not in ledger:
                ledger.add(key, _one_draw(located, prompt, deviation, (settings.seed, number, draw), settings.rows))
            draws.append(ledger[key])
            if on_done is not None:
                on_done(number * settings.num_draws + draw + 1, total)
        records.append(draws)
    return _summary(prompts, records, settings, deviation)


def embedding_deviation(embedding: nn.Module) -> float:
    """Standard deviation of all entries of the embedding matrix, in the scale in which the model reads them.

    Raises:
        ProbingError: it is zero or not finite.
    """
    weight = next(embedding.parameters()).detach()
    # Some models scale embeddings inside the module; a token shows by how much.
    largest = int(weight[:1024].float().norm(dim=-1).argmax())
    with torch.no_grad():
        read = embedding(torch.tensor([largest], device=weight.device)).float().norm()
    found = float(weight.double().std() * read / weight[largest].float().norm())
    if not (np.isfinite(found) and found > 0):
        raise ProbingError(f"the embedding's entries have a standard deviation of {found}; expected a positive one")
    return found


@contextlib.contextmanager
def noised_subject(embedding: nn.Module, noise: Tensor, first: int) -> Any:
    """Context in which ``noise`` ``[tokens, width]`` is added to the embeddings of every row from ``first`` on."""

    def add(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        changed = output.clone()
        changed[:, first : first + len(noise)] += noise.to(changed)
        return changed

    handle = embedding.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()


def _one_draw(
    located: LocatedModel, prompt: TokenizedPrompt, deviation: float, seed: tuple[int, int, int], num_rows: int
) -> dict[str, Any]:
    first, end = prompt.subject
    ids = torch.tensor([prompt.token_ids])
    clean = record_clean_pass(located.blocks, lambda: run_base(located, TokenBatch(ids)))
    width = next(located.embedding.parameters()).shape[-1]
    source = np.random.default_rng(seed)
    noise = torch.from_numpy(deviation * source.standard_normal((end - first, width)))
    places = [(layer, token) for layer in range(clean.num_visits) for token in range(first, len(prompt.token_ids))]
    chances: list[float] = []
    # The first row of every batch restores nothing.
    for start in range(0, len(places), num_rows):
        batch = places[start : start + num_rows]
        rows = TokenBatch(ids.expand(len(batch) + 1, -1))
        with (
            torch.no_grad(),
            noised_subject(located.embedding, noise, first),
            replaced(located.blocks, _restorations(batch, clean.states)) as handed_on,
        ):
            run_base(located, rows)
        found = _chance(located, handed_on[-1][:, -1], prompt.answer_id)
        chances += (found[1:] - found[0]).tolist()
        noised = float(found[0])
    untouched = float(_chance(located, clean.states[-1][:, -1], prompt.answer_id)[0])
    if not np.isfinite([untouched, noised, *chances]).all():
        raise ProbingError(
            f"p(answer) of {prompt.source.prompt!r} is not finite; use --dtype float32, and less --noise if that does"
            " not help"
        )
    effects = np.zeros((clean.num_visits, len(prompt.token_ids)))
    effects[tuple(np.array(places).T)] = chances
    return {
        "clean": untouched,
        "noised": noised,
        "effects": effects.tolist(),
    }


def _restorations(places: Sequence[tuple[int, int]], clean: Sequence[Tensor]) -> dict[int, Replacement]:
    by_layer: dict[int, list[tuple[int, int]]] = {}
    for row, (layer, token) in enumerate(places, start=1):
        by_layer.setdefault(layer, []).append((row, token))

    def restoring(layer: int, cells: list[tuple[int, int]]) -> Replacement:
        rows, tokens = torch.tensor(cells).T

        def replacement(entered: Tensor, left: Tensor) -> Tensor:
            changed = left.clone()
            changed[rows, tokens] = clean[layer + 1][0, tokens].to(changed)
            return changed

        return replacement

    return {layer: restoring(layer, cells) for layer, cells in by_layer.items()}


def _chance(located: LocatedModel, states: Tensor, answer: int) -> Tensor:
    """p(answer) after each state [rows, width], float64 on the CPU."""
    with torch.no_grad():
        return located.logits(states[:, None])[:, 0].double().softmax(dim=-1)[:, answer].cpu()


def _summary(
    prompts: Sequence[TokenizedPrompt],
    records: Sequence[Sequence[dict[str, Any]]],
    settings: TraceSettings,
    deviation: float,
) -> CausalTrace:
    traces, stacks = [], []
    for prompt, draws in zip(prompts, records, strict=True):
        stack = np.array([draw["effects"] for draw in draws])
        low, high = _interval(stack, settings.seed)
        stacks.append(stack)
        traces.append(
            PromptTrace(
                prompt.source.prompt,
                prompt.tokens,
                prompt.subject,
                prompt.answer_token,
                prompt.roles,
                draws[0]["clean"],
                mean_of_rows([draw["noised"] for draw in draws], "probability", settings.seed),
                _nested(stack.mean(axis=0)),
                _nested(low),
                _nested(high),
            )
        )
    affected = [index for index, one in enumerate(traces) if one.noised.value < (1 - SMALLEST_SHARE_LOST) * one.clean]
    lost = [found.clean - found.noised.value for found in traces]
    return CausalTrace(
        settings,
        deviation,
        tuple(traces),
        mean_of_rows(lost, "probability", settings.seed),
        tuple(
            found
            for role in range(len(ROLES))
            if (
                found := _role_effect(role, [traces[i] for i in affected], [stacks[i] for i in affected], settings.seed)
            )
        ),
        len(traces) - len(affected),
    )


def _role_effect(role: int, traces: Sequence[PromptTrace], stacks: Sequence[Array], seed: int) -> RoleEffect | None:
    rows = []
    for found, stack in zip(traces, stacks, strict=True):
        tokens = [index for index, own in enumerate(found.roles) if own == role]
        if tokens:
            rows.append(stack[:, :, tokens].max(axis=2))
    if not rows:
        return None
    # One row a prompt; with a single prompt one row a draw.
    table = rows[0] if len(rows) == 1 else np.stack([row.mean(axis=0) for row in rows])
    by_layer = tuple(mean_of_rows(column.tolist(), "probability", seed) for column in table.T)
    values = np.array([layer.value for layer in by_layer])
    strong = np.flatnonzero(values >= values.max() / 2) if values.max() > 0 else np.empty(0, dtype=int)
    span = (float(strong[0] + 1) / len(values), float(strong[-1] + 1) / len(values)) if len(strong) else None
    return RoleEffect(ROLES[role], len(rows), by_layer, span)


def _interval(stack: Array, seed: int) -> tuple[Array, Array]:
    """95 % of the mean over draws [draws, layers, tokens]; NaN with fewer than 3."""
    if len(stack) < 3:
        empty = np.full(stack.shape[1:], np.nan)
        return empty, empty
    drawn = np.random.default_rng(seed).integers(len(stack), size=(400, len(stack)))
    low, high = np.quantile(stack[drawn].mean(axis=1), [0.025, 0.975], axis=0)
    return low, high


def _nested(values: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
