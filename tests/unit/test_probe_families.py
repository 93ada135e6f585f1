"""Every family on random weights against plain formulas in float64, and the faults of others that could be ours."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from probe_models import FAMILY_NAMES, LAYERS, VOCABULARY, make_model, random_ids
from torch import Tensor, nn
from transformers import PreTrainedModel

from depthscale.probing.catalog import QUANTITIES, names_of, num_layers
from depthscale.probing.checks import preflight
from depthscale.probing.located import locate
from depthscale.probing.quantities import TokenQuantities, measure_tokens
from depthscale.probing.states import TokenBatch, collect_states

ALL = tuple(QUANTITIES)


def reference_states(model: PreTrainedModel, ids: Tensor) -> list[np.ndarray]:
    """h_0 ... h_N of a float64 copy by the library's own output, the final norm taken out so that h_N is raw."""
    bare = copy.deepcopy(model).double()
    if model.config.model_type != "looped_lm":
        holder = {"gpt2": "transformer", "gpt_neox": "gpt_neox", "opt": "model.decoder"}.get(
            model.config.model_type, "model"
        )
        inner = bare.get_submodule(holder)
        for name in ("ln_f", "final_layer_norm", "norm", "project_out"):
            if getattr(inner, name, None) is not None:
                setattr(inner, name, nn.Identity())
    base = bare.base_model
    with torch.no_grad():
        states = base(input_ids=ids, output_hidden_states=True).hidden_states
    return [state.numpy() for state in states]


def plain_angle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    cosine = (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.arccos(np.clip(cosine, -1, 1))


def plain_profile(h: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """The quantities as one would write them down, without care for speed, memory or cancellation."""
    last = len(h) - 1
    size = [np.sqrt((x * x).sum(-1)) for x in h]
    d = [h[i + 1] - h[i] for i in range(last)]
    total = h[last] - h[0]
    return {
        "hidden_state_norm": size,
        "update_norm": [np.sqrt((x * x).sum(-1)) for x in d],
        "relative_update_norm": [np.sqrt((d[i] * d[i]).sum(-1)) / size[i] for i in range(last)],
        "state_angle": [plain_angle(h[i], h[i + 1]) for i in range(last)],
        "update_angle": [plain_angle(d[i], d[i + 1]) for i in range(last - 1)],
        "block_influence": [1 - np.cos(plain_angle(h[i], h[i + 1])) for i in range(last)],
        "angle_to_end": [plain_angle(h[i], h[last]) for i in range(last)],
        "projection_on_total": [((x - h[0]) * total).sum(-1) / (total * total).sum(-1) for x in h],
        "update_total_cosine": [np.cos(plain_angle(x, total)) for x in d],
    }


def measured(model: PreTrainedModel, batch: TokenBatch, names: tuple[str, ...] = ALL) -> TokenQuantities:
    (found,) = measure_tokens(locate(model), batch, names)
    return found


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_every_quantity_against_plain_float64(name: str) -> None:
    model = make_model(name)
    ids = random_ids(2, 12)
    found = measured(model, TokenBatch(ids))
    states = reference_states(model, ids)
    for quantity, layers in plain_profile(states).items():
        want = np.stack([layer[:, :-1].reshape(-1) for layer in layers])
        got = found.values[quantity].numpy()
        assert got.shape == want.shape, quantity
        assert np.abs(got - want).max() <= 1e-5 * max(1.0, np.abs(want).max()), quantity


@pytest.mark.parametrize("name", ["gpt2", "opt_350m", "gemma3", "looped_post"])
def test_float64_weights_are_reduced_in_float64(name: str) -> None:
    model = make_model(name, torch.float64)
    ids = random_ids(2, 9)
    found = measured(model, TokenBatch(ids), names_of("local", "end"))
    for quantity, layers in plain_profile(reference_states(model, ids)).items():
        want = np.stack([layer[:, :-1].reshape(-1) for layer in layers])
        # The rotary tables and some norms of the library are float32 in any model.
        assert np.abs(found.values[quantity].numpy() - want).max() <= 2e-7 * max(1.0, np.abs(want).max()), quantity


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_last_raw_state_through_norm_and_head_gives_the_logits(name: str) -> None:
    model = make_model(name)
    ids = random_ids(2, 10)
    states = collect_states(locate(model), TokenBatch(ids)).states
    with torch.no_grad():
        torch.testing.assert_close(locate(model).logits(states[-1]), model(ids).logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_both_lenses_equal_the_models_own_loss_at_the_end(name: str) -> None:
    """Fails if the last block sees the future (an explicit mask replaces the causal one) or a norm is reused."""
    model = make_model(name)
    ids = random_ids(2, 16)
    found = measured(model, TokenBatch(ids), names_of("exit"))
    with torch.no_grad():
        own = model(ids, labels=ids).loss.item()
    assert found.values["logit_lens_loss"][-1].mean().item() == pytest.approx(own, abs=2e-6)
    assert found.values["last_block_lens_loss"][-1].mean().item() == pytest.approx(own, abs=2e-6)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_attention_and_mlp_add_up_to_the_block(name: str) -> None:
    model = make_model(name)
    located = locate(model)
    kept = collect_states(located, TokenBatch(random_ids(2, 8)), sublayers=True)
    assert len(kept.attention) == len(kept.mlp) == kept.num_visits
    entered = list(kept.states[:-1])
    if name == "looped_injected":
        norm = nn.functional.rms_norm
        for visit in (3, 5):  # second and third round: Norm(x + e), e the segment's input
            entered[visit] = norm(entered[visit] + kept.states[1], (entered[visit].shape[-1],), eps=1e-5)
    for visit in range(kept.num_visits):
        update = kept.states[visit + 1] - entered[visit]
        torch.testing.assert_close(kept.attention[visit] + kept.mlp[visit], update, rtol=1e-5, atol=1e-5)
        assert float(kept.attention[visit].norm()) > 1e-3
        assert float(kept.mlp[visit].norm()) > 1e-3


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_sublayer_quantities_and_the_normed_end_are_their_formulas(name: str) -> None:
    model = make_model(name)
    located, ids = locate(model), random_ids(2, 9)
    found = measured(model, TokenBatch(ids)).values
    kept = collect_states(located, TokenBatch(ids), sublayers=True)
    attention, mlp = ([part.double().numpy() for part in parts] for parts in (kept.attention, kept.mlp))
    pairs = range(len(mlp) - 1)
    wanted = {
        "attention_update_norm": [np.sqrt((part * part).sum(-1)) for part in attention],
        "mlp_update_norm": [np.sqrt((part * part).sum(-1)) for part in mlp],
        "attention_mlp_angle": [plain_angle(a, m) for a, m in zip(attention, mlp, strict=True)],
        "attention_update_angle": [plain_angle(attention[i], attention[i + 1]) for i in pairs],
        "mlp_update_angle": [plain_angle(mlp[i], mlp[i + 1]) for i in pairs],
    }
    if located.final_norm is not None:
        with torch.no_grad():
            end = located.final_norm(kept.states[-1]).double().numpy()
        wanted["angle_to_normed_end"] = [plain_angle(state.double().numpy(), end) for state in kept.states]
    for quantity, layers in wanted.items():
        want = np.stack([layer[:, :-1].reshape(-1) for layer in layers])
        assert np.abs(found[quantity].numpy() - want).max() <= 1e-5 * max(1.0, np.abs(want).max()), quantity


_OUTPUTS = {
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
    "opt": ("self_attn.out_proj", "fc2"),
    "looped_lm": ("attention.o_proj", "mlp.down_proj"),
}


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_silenced_sublayer_has_no_part(name: str) -> None:
    """The two parts add up whatever they are called; only one that is silenced tells which is which."""
    for silenced in (0, 1):
        model = make_model(name)
        located = locate(model)
        paths = _OUTPUTS.get(model.config.model_type, ("self_attn.o_proj", "mlp.down_proj"))
        with torch.no_grad():
            for block in located.blocks:
                for parameter in block.get_submodule(paths[silenced]).parameters():
                    parameter.zero_()
        kept = collect_states(located, TokenBatch(random_ids(2, 8)), sublayers=True)
        for visit, parts in enumerate(zip(kept.attention, kept.mlp, strict=True)):
            silent = parts[silenced]
            if located.residual != "post":
                assert float(silent.abs().max()) == pytest.approx(0, abs=1e-5)
                assert float(parts[1 - silenced].norm()) > 1e-3
            elif silenced == 0:
                # Norm(skip x + 0) - x: what the norm alone does.
                block = located.blocks[kept.blocks[visit]]
                norm = block.self_attn_layer_norm if name == "opt_350m" else block.attention_residual.norm
                skip = 1.0 if name == "opt_350m" else block.attention_residual.skip_scale
                with torch.no_grad():
                    entered = kept.states[visit]
                    torch.testing.assert_close(silent, norm(skip * entered) - entered, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_padding_changes_nothing(name: str) -> None:
    """A hundred pads appended, and a shorter row beside a longer one, on the right and on the left."""
    model = make_model(name)
    ids = random_ids(1, 13)
    alone = measured(model, TokenBatch(ids))
    for side in ("right", "left", "right beside a longer row"):
        pads = torch.zeros(1, 100, dtype=torch.int64)
        real, none = torch.ones_like(ids), torch.zeros_like(pads)
        order = (lambda a, b: torch.cat([b, a], dim=1)) if side == "left" else (lambda a, b: torch.cat([a, b], dim=1))
        rows, mask = order(ids, pads), order(real, none)
        if side.endswith("row"):
            rows, mask = torch.cat([rows, random_ids(1, 113, seed=1)]), torch.cat([mask, torch.ones(1, 113)])
        padded = measured(model, TokenBatch(rows, mask.long()))
        first = padded.rows == 0
        assert torch.equal(padded.positions[first], alone.positions)
        assert torch.equal(padded.token_ids[first], alone.token_ids)
        for quantity, values in alone.values.items():
            off = (padded.values[quantity][:, first] - values).abs().max() / values.abs().max().clamp(min=1.0)
            assert float(off) <= 2e-6, (side, quantity)


@pytest.mark.parametrize("name", [name for name in FAMILY_NAMES if name.startswith("looped")])
def test_looped_models_give_a_state_for_every_visit(name: str) -> None:
    model = make_model(name)
    located = locate(model)
    ids = random_ids(2, 8)
    kept = collect_states(located, TokenBatch(ids))
    assert kept.blocks == [0, 1, 2, 1, 2, 1, 2, 3]
    with torch.no_grad():
        own = model(ids, output_hidden_states=True).hidden_states
    assert len(kept.states) == len(own) == 9
    for mine, theirs in zip(kept.states, own, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert len({state.data_ptr() for state in kept.states}) == 9
    assert collect_states(located, TokenBatch(ids)).num_visits == 8
    found = measured(model, TokenBatch(ids))
    for quantity, values in found.values.items():
        assert values.shape[0] == num_layers(quantity, 8)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_preflight_passes_and_counts_visits(name: str) -> None:
    checked = preflight(locate(make_model(name)))
    assert checked.located.num_visits == (8 if name.startswith("looped") else LAYERS)
    assert checked.located.sublayers is not None
    assert not checked.located.copy_states
    assert checked.injects == ((3, 5) if name == "looped_injected" else ())


@pytest.mark.parametrize("name", ["gpt2", "pythia", "opt", "llama", "gemma2"])
def test_exit_loss_is_the_loss_of_the_truncated_model(name: str) -> None:
    """One norm scale reused for every layer would fail here."""
    model = make_model(name)
    ids = random_ids(2, 10)
    found = measured(model, TokenBatch(ids), names_of("exit"))
    located = locate(model)
    blocks = model.get_submodule(located.block_names[0].rpartition(".")[0])
    for layer in (1, 2):
        cut = copy.deepcopy(model)
        holder, _, attribute = located.block_names[0].rpartition(".")[0].rpartition(".")
        setattr(cut.get_submodule(holder), attribute, nn.ModuleList(list(blocks)[:layer]))
        cut.config.num_hidden_layers = layer
        with torch.no_grad():
            loss = cut(ids, labels=ids, use_cache=False).loss.item()
        assert found.values["logit_lens_loss"][layer].mean().item() == pytest.approx(loss, abs=2e-6)


def test_captured_states_carry_no_graph_and_are_let_go() -> None:
    model = make_model("gpt2")
    located = locate(model)
    kept = collect_states(located, TokenBatch(random_ids(2, 8)))
    assert not any(state.requires_grad or state.grad_fn for state in kept.states)
    state = weakref.ref(kept.states[2])
    del kept
    gc.collect()
    assert state() is None
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in located.blocks)


def test_vocabulary_and_tokens_are_cut_into_slices_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    from depthscale.probing import lenses

    model = make_model("gemma2")
    batch = TokenBatch(random_ids(2, 12))
    whole = measured(model, batch, names_of("exit"))
    monkeypatch.setattr(lenses, "_TOKEN_SLICE", 5)
    monkeypatch.setattr(lenses, "_VOCABULARY_SLICE", 10)
    assert VOCABULARY % 10 != 0
    cut = measured(model, batch, names_of("exit"))
    for name in names_of("exit"):
        torch.testing.assert_close(cut.values[name], whole.values[name], rtol=1e-6, atol=1e-6)
