"""What one of several processes does that shard models; what it sees is judged in test_sharding.py."""

import copy
import importlib.util
import tempfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from depthscale import LoopedLMConfig, LoopedLMForCausalLM, apply_init_gain, forget_init_gain, shard_looped

VOCABULARY, WIDTH = 97, 34  # neither halves evenly in two shards of every matrix
SCALES = {"skip": 3.0, "gain": 0.2, "branch": 1.0, "lr_multiplier": 1.0}
IDS = torch.randint(VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(1))
PLANS: dict[str, list[dict[str, Any]]] = {
    "looped": [{"blocks": 2, "rounds": 3}],
    "truncated": [{"blocks": 1, "rounds": 1}, {"blocks": 2, "rounds": 4, "grad_rounds": 2}, {"blocks": 1}],
    "injected": [{"blocks": 1}, {"blocks": 2, "rounds": 3, "inject": True}],
}


class CountCollectives(TorchDispatchMode):
    """Counts collective operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            self.counts[function._opname] += 1
        return function(*args, **(kwargs or {}))


def build(plan: str, *, checkpointed: bool = False) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    segments = PLANS[plan]
    config = LoopedLMConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_attention_heads=1, intermediate_size=85, norm_placement="post",
        plan=segments, residual_scales=[SCALES] * len(segments),
    )  # fmt: skip
    model = LoopedLMForCausalLM(config)
    if checkpointed:
        model.gradient_checkpointing_enable()
    return model.train()


def plainly_sharded(model: LoopedLMForCausalLM) -> nn.Module:
    for block in model.model.blocks:
        fully_shard(block)
    return fully_shard(model)


def mine(ids: Tensor) -> Tensor:
    return ids.chunk(dist.get_world_size())[dist.get_rank()]


def worst_error(model: nn.Module, reference: nn.Module) -> float:
    """Largest difference of a gradient to one process's, over that gradient's largest number."""
    worst = 0.0
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        if expected.grad is None:
            assert parameter.grad is None
            continue
        difference = (parameter.grad.full_tensor() - expected.grad).abs().max() / expected.grad.abs().max()
        worst = max(worst, float(difference))
    return worst


def step_of(plan: str, how: str, **arguments: Any) -> dict[str, Any]:
    """Collectives and gradients of the second training step, after an evaluation, against one process's."""
    reference = build(plan)
    loss_of_all = reference(IDS, labels=IDS, **arguments).loss
    loss_of_all.backward()
    model = build(plan, checkpointed=how == "checkpointed")
    sharded = plainly_sharded(model) if how == "plain" else shard_looped(model)
    ids = mine(IDS)
    sharded(ids, labels=ids, **arguments).loss.backward()
    sharded.zero_grad()
    if how != "plain":  # it would leave what stands outside the blocks whole
        with torch.no_grad():
            sharded(ids)
    after_evaluation = all(isinstance(parameter, DTensor) for parameter in model.parameters())
    with CountCollectives() as counted:
        loss = sharded(ids, labels=ids, **arguments).loss
        loss.backward()
    counts = dict(counted.counts)  # what follows gathers as well
    return {
        "gathers": counts["_allgather_base_"],
        "reductions": counts["_reduce_scatter_base_"],
        "worst_error": worst_error(model, reference),
        "in_shards": all(isinstance(parameter, DTensor) for parameter in model.parameters()),
        "in_shards_after_evaluation": after_evaluation,
        "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        "even": model.model.blocks[0].mlp.up_proj.weight.to_local().shape[0] * 2 == 85,
    }


def five_steps() -> list[list[float]]:
    """Losses of five optimizer steps, in shards and in one process."""
    losses: list[list[float]] = []
    for sharded in (True, False):
        model: Any = build("looped")
        if sharded:
            model = shard_looped(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses.append([])
        for step in range(5):
            ids = torch.randint(VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(step))
            ids = mine(ids) if sharded else ids
            loss = model(ids, labels=ids, rounds=1 + step % 3).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach()
            if sharded:
                dist.all_reduce(mean)
            losses[-1].append(mean.item() / (dist.get_world_size() if sharded else 1))
    return losses


def gained_shards() -> dict[str, bool]:
    """Gains on parts of sharded matrices against the same gains in one process."""
    torch.manual_seed(0)
    whole = nn.Sequential(OrderedDict(fused=nn.Linear(5, 9, bias=False), out=nn.Linear(7, 5)))
    sharded = fully_shard(copy.deepcopy(whole))
    names: list[Any] = ["out.weight", ("fused.weight", slice(3, 7)), ("fused.weight", (slice(7, 9), slice(1, 3)))]
    before = whole.fused.weight.detach().clone()
    equal = []
    for _ in range(2):
        for module in (whole, sharded):
            apply_init_gain(module, names, 0.1)
        pairs = zip(sharded.parameters(), whole.parameters(), strict=True)
        equal.append(all(torch.equal(shards.full_tensor(), expected) for shards, expected in pairs))
    return {"first": equal[0], "second": equal[1], "acted": not torch.equal(before, whole.fused.weight)}


def example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "fsdp2_training.py"
    spec = importlib.util.spec_from_file_location("fsdp2_training", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def size(parameter: Tensor) -> float:
    whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return float(whole.detach().square().mean().sqrt())


def drawn_in_torchtitans_order(titan: Any) -> dict[str, dict[str, float]]:
    """Sizes of initial matrices over those without a gain: of our model, of a plain loop, each drawn twice."""
    found = {}
    torch.manual_seed(0)
    looped, plain = titan.start(titan.looped_lm), titan.start(titan.PlainLoop)
    for draw in ("once", "twice"):
        looped.init_weights()
        plain.init_weights()
        plain.apply_gain()  # a second call
        block = looped.model.blocks[0]
        xavier = {name: (2 / sum(p.shape)) ** 0.5 for name, p in block.named_parameters() if p.ndim == 2}
        found[draw] = {name.split(".")[1]: size(block.get_parameter(name)) / std for name, std in xavier.items()}
        loop = plain.blocks[1].sublayer[0].weight
        found[draw]["plain_loop"] = size(loop) / (2 / sum(loop.shape)) ** 0.5
        found[draw]["expected_plain_loop"] = plain.scales.gain
        found[draw]["expected_looped_lm"] = looped.config.residual_scales[0]["gain"]
        if draw == "once":
            with torch.no_grad():
                loop.mul_(2)
            plain.apply_gain()
            found["trained"] = {"kept": size(loop) / (2 / sum(loop.shape)) ** 0.5}
            forget_init_gain(plain)
    return found


def observations() -> dict[str, Any]:
    titan = example()
    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    steps = {
        f"{plan} {how}": step_of(plan, how)
        for plan, how in (
            ("looped", "plain"), ("looped", "ours"), ("looped", "checkpointed"), ("truncated", "ours"),
            ("injected", "ours"), ("injected", "checkpointed"),
        )
    }  # fmt: skip
    steps["looped other rounds"] = step_of("looped", "ours", rounds=5)
    return {
        "steps": steps,
        "five_steps": five_steps(),
        "gained_shards": gained_shards(),
        "drawn": drawn_in_torchtitans_order(titan),
        "resumed": {name: titan.train_and_resume(name, Path(str(shared[0])) / name) for name in titan.MODELS},
        "refusal": titan.refusal(),
    }
