"""Downstream tasks: the local items, and what the harness makes of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tiny_run import make_run
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from depthscale.errors import ConfigError, DataError
from depthscale.evaluation import harness, harness_tasks
from depthscale.evaluation.checkpoint import load_model
from depthscale.evaluation.harness import PromptCount, run_tasks
from depthscale.evaluation.local_tasks import Item, make_items, pieces_of, write_local_tasks
from depthscale.evaluation.target import Target, find_target
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.runs.task_names import CLOZE, CONTINUATION, MEMBERS, PAPER_GROUP
from depthscale.training.held_out import HeldOut, held_out_data
from depthscale.training.tokenizer import byte_tokenizer, train_byte_level_bpe

torch.set_num_threads(1)

SOURCES = [Path(re.__file__).read_text(), Path(json.__file__).read_text()]
PROSE = [
    "It was a long evening, and nobody in the old house wanted to go to bed. " * 2 + "The end of it was near. " * 9
]


def counter(tokenizer: PreTrainedTokenizerFast) -> Any:
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


# -- items --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*SOURCES, *PROSE, "", "\n\n", "x" * 500, " " * 300, "one\r\ntwo\n"])
def test_pieces_join_to_the_text(text: str) -> None:
    pieces = pieces_of(text)
    assert "".join(pieces) == text
    assert all(pieces)
    for piece in pieces:
        assert len(piece) <= 80 or " " not in piece.strip()[:79]


@pytest.mark.parametrize("context_length", [64, 200])
@pytest.mark.parametrize("spec", ["bytes", "bpe"])
def test_items_fit_the_context_and_are_true(spec: str, context_length: int) -> None:
    tokenizer = byte_tokenizer() if spec == "bytes" else train_byte_level_bpe(SOURCES, 400)
    count = counter(tokenizer)
    items = make_items(SOURCES, count, context_length, num_items=40)
    for task in (CONTINUATION, CLOZE):
        assert len(items[task]) == 40
        assert len({item.key for item in items[task]}) == 40
        for item in items[task]:
            right = item.context + item.choices[item.gold]
            assert any(right in source for source in SOURCES)
            assert item.context == item.context.rstrip()
            for choice in item.choices:
                # One token to spare for what a harness may put in front.
                assert count(item.context + choice) <= context_length - 1
                # The context is the same tokens with and without what follows, or scores would mean something else.
                whole = tokenizer.encode(item.context + choice)
                assert whole[: count(item.context)] == tokenizer.encode(item.context)


def test_choices_look_alike() -> None:
    """Nothing but the words may give the answer away: not the indentation, not the place in the list."""
    items = make_items(SOURCES, counter(byte_tokenizer()), 200, num_items=150)
    gold = [item.gold for item in items[CONTINUATION]]
    assert all(20 < gold.count(place) < 60 for place in range(4))
    same_margin, longest_right = 0, 0
    for item in items[CONTINUATION]:
        assert len({choice.strip() for choice in item.choices}) == 4
        margins = {choice[: len(choice) - len(choice.lstrip())] for choice in item.choices}
        same_margin += len(margins) == 1
        lengths = [len(choice) for choice in item.choices]
        longest_right += lengths.index(max(lengths)) == item.gold
    assert same_margin == 150
    assert longest_right < 75  # half would do better than chance by length alone


def test_a_cloze_asks_the_last_word() -> None:
    for item in make_items(SOURCES, counter(byte_tokenizer()), 200, num_items=60)[CLOZE]:
        assert re.fullmatch(r"\s*[^\W\d]\w{2,}", item.choices[0])
        assert item.gold == 0


def test_items_are_the_same_every_time_and_prose_gives_some_too() -> None:
    count = counter(byte_tokenizer())
    assert make_items(SOURCES, count, 120, num_items=9) == make_items(SOURCES, count, 120, num_items=9)
    assert make_items(SOURCES, count, 120, num_items=9) != make_items(SOURCES, count, 120, num_items=9, seed=1)
    items = make_items(PROSE, count, 200)
    assert items[CONTINUATION]
    assert items[CLOZE]


@pytest.mark.parametrize(("documents", "context_length"), [(["word " * 3], 100), (SOURCES, 8), ([], 100)])
def test_text_that_gives_no_item_is_one_line(documents: list[str], context_length: int) -> None:
    with pytest.raises(DataError, match=f"no item of .* at a context of {context_length} tokens"):
        make_items(documents, counter(byte_tokenizer()), context_length)


# -- the harness --------------------------------------------------------------------------------------------


def bigram_model(log_probabilities: torch.Tensor) -> LoopedLMForCausalLM:
    """A looped model made by hand to predict from the last token alone, by a table [last, next]."""
    vocabulary = len(log_probabilities)
    width = vocabulary + vocabulary % 2
    model = LoopedLMForCausalLM(
        LoopedLMConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_attention_heads=1,
            plan=[{"blocks": 1, "rounds": 2}],
            embedding_norm=False,
            tie_word_embeddings=False,
            max_position_embeddings=32,
            eos_token_id=256,
        )
    )
    with torch.no_grad():
        for block in model.model.blocks:
            for matrix in (block.attention.o_proj, block.mlp.down_proj):
                matrix.weight.zero_()
        # Large, so that the norm's eps is nothing beside it; the norm makes it sqrt(width) times a unit vector.
        model.model.embed_tokens.weight.copy_(1000 * torch.eye(vocabulary, width))
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, :vocabulary] = log_probabilities.T / width**0.5
    return model.eval()


def test_loglikelihood_on_a_bigram_model_is_its_closed_form() -> None:
    """Public faults: BOS added twice in loglikelihood; continuations off by one."""
    table = functional.log_softmax(torch.randn(257, 257, generator=torch.Generator().manual_seed(0)) * 2, dim=-1)
    lm = HFLM(pretrained=bigram_model(table), tokenizer=byte_tokenizer(), batch_size=3)

    def by_hand(last: int, text: str) -> float:
        total = 0.0
        for byte in text.encode():
            total += table[last, byte].item()
            last = byte
        return total

    asked = [("ab", "cd"), ("ab", " cd"), ("ab ", "cd"), ("x", "y"), ("é", "é"), ("", "ab"), ("ab", "c")]
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(asked)]
    for (context, text), (value, _) in zip(asked, lm.loglikelihood(requests, disable_tqdm=True), strict=True):
        # Without a context the end-of-text token stands before; the tokenizer has no beginning-of-text token.
        last = context.rstrip().encode()[-1] if context else 256
        # White space at the end of a context counts to the continuation.
        text = context[len(context.rstrip()) :] + text
        assert value == pytest.approx(by_hand(last, text), abs=1e-4), (context, text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    patch = pytest.MonkeyPatch()
    patch.setenv("DEPTHSCALE_CACHE", str(folder / "cache"))
    yield make_run(folder)
    patch.undo()


@pytest.fixture(scope="module")
def local(run: Path) -> tuple[Target, HeldOut, Path]:
    target = find_target(run)
    held_out = held_out_data(target, None, 64)
    count = counter(held_out.data.tokenizer)
    numbers = write_local_tasks(
        run / "tasks", held_out.texts("report"), held_out.texts("tuning"), count, 64, num_items=24
    )
    assert numbers == {CONTINUATION: 24, CLOZE: 24}
    return target, held_out, run / "tasks"


def test_held_out_texts_are_the_corpus_documents_of_that_split(run: Path, local: Any) -> None:
    files = {path.read_text() for path in (run.parent / "corpus").glob("*.py")}
    texts = {split: set(local[1].texts(split)) for split in ("train", "tuning", "report")}
    assert texts["train"] | texts["tuning"] | texts["report"] <= files
    assert not texts["report"] & texts["train"]


def test_the_harness_scores_items_as_a_forward_pass_does(local: Any) -> None:
    target, held_out, directory = local
    model, tokenizer = load_model(target.checkpoint).eval(), held_out.data.tokenizer
    scores = {score.task: score for score in run_tasks(model, tokenizer, ["local"], local_directory=directory)}
    assert set(scores) == {CONTINUATION, CLOZE}
    for task, score in scores.items():
        lines = (directory / f"{task}.test.jsonl").read_text().splitlines()
        items = [Item(r["context"], tuple(r["choices"]), r["gold"]) for r in map(json.loads, lines)]
        assert score.item_keys == tuple(item.key for item in items)
        expected = [_right(model, tokenizer, item) for item in items]
        assert score.outcomes == tuple(expected)
        mean = sum(expected) / len(expected)
        assert score.value == pytest.approx(mean)
        assert score.standard_error == pytest.approx((mean * (1 - mean) / (len(expected) - 1)) ** 0.5)
        assert (score.num_items, score.num_fewshot, score.metric, score.higher_is_better) == (24, 0, "acc", True)


def _right(model: LoopedLMForCausalLM, tokenizer: PreTrainedTokenizerFast, item: Item) -> float:
    values, greedy = [], []
    for choice in item.choices:
        context, whole = tokenizer.encode(item.context), tokenizer.encode(item.context + choice)
        with torch.no_grad():
            logs = functional.log_softmax(model(torch.tensor([whole])).logits[0], dim=-1)
        places = range(len(context), len(whole))
        values.append(sum(logs[place - 1, whole[place]].item() for place in places))
        greedy.append(all(int(logs[place - 1].argmax()) == whole[place] for place in places))
    return float(greedy[0] if len(values) == 1 else values.index(max(values)) == item.gold)


def test_shots_and_limits(local: Any) -> None:
    target, held_out, directory = local
    scores = run_tasks(
        load_model(target.checkpoint),
        held_out.data.tokenizer,
        [CLOZE],
        local_directory=directory,
        shots=[0, 1],
        limit=5,
    )
    assert [(score.num_fewshot, score.num_items) for score in scores] == [(0, 5), (1, 5)]
    assert scores[0].item_keys == scores[1].item_keys


def test_the_papers_group_is_its_eight_tasks_by_accuracy() -> None:
    """Source: DeepLoop, arXiv 2607.13491: mean of acc over these eight."""
    manager = harness_tasks.task_manager([PAPER_GROUP], None)
    group = manager._index[PAPER_GROUP].cfg
    named = ["arc_challenge", "arc_easy", "hellaswag", "openbookqa", "piqa", "sciq", "social_iqa", "winogrande"]
    assert group["task"] == named == list(MEMBERS[PAPER_GROUP])
    assert set(named) <= set(manager.all_subtasks)
    assert group["aggregate_metric_list"] == [{"metric": "acc", "aggregation": "mean", "weight_by_size": False}]
    assert harness._by_shots([PAPER_GROUP, "local"], None) == {0: [PAPER_GROUP, "local"], 1: [PAPER_GROUP]}


def test_a_task_that_comes_twice_is_asked_once(local: Any) -> None:
    target, held_out, directory = local
    model, tokenizer = load_model(target.checkpoint), held_out.data.tokenizer
    for names in (["local", CLOZE], [CLOZE, "local", "local"], [CLOZE, CONTINUATION, CLOZE]):
        scores = run_tasks(model, tokenizer, names, local_directory=directory, limit=2)
        assert sorted(score.task for score in scores) == [CLOZE, CONTINUATION]


def test_more_shots_than_examples_are_one_line(local: Any) -> None:
    target, held_out, directory = local
    model, tokenizer = load_model(target.checkpoint), held_out.data.tokenizer
    count = len((directory / f"{CLOZE}.shots.jsonl").read_text().splitlines())
    with pytest.raises(ConfigError, match=f"{count + 1} shots were asked, but task '{CLOZE}' has {count} examples"):
        run_tasks(model, tokenizer, [CLOZE], local_directory=directory, shots=[count + 1], limit=2)


def test_prompts_that_are_cut_are_counted(local: Any) -> None:
    """The context of 64 tokens holds every question, and none with ten examples before it."""
    target, held_out, directory = local
    seen: list[PromptCount] = []
    model, tokenizer = load_model(target.checkpoint), held_out.data.tokenizer
    arguments = {"local_directory": directory, "shots": [0, 10], "limit": 3, "on_prompts": seen.append}
    run_tasks(model, tokenizer, [CONTINUATION], **arguments)
    assert seen == [PromptCount(0, asked=12, cut=0), PromptCount(10, asked=12, cut=12)]


def test_an_error_inside_the_evaluation_is_not_taken_for_missing_data(
    local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, held_out, directory = local
    text = (directory / f"{CLOZE}.yaml").read_text()
    (directory / "other.yaml").write_text(text.replace(f"task: {CLOZE}", "task: cloze_by_hand"))

    def fault(*arguments: object, **named: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr("lm_eval.simple_evaluate", fault)
    with pytest.raises(ValueError, match="a fault of ours"):
        run_tasks(load_model(target.checkpoint), held_out.data.tokenizer, ["cloze_by_hand"], local_directory=directory)


def test_the_harness_lets_no_program_write_to_the_terminal(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Public fault: outside a repository its call of git says "fatal: not a git repository"."""
    target, held_out, directory = local
    monkeypatch.chdir(tmp_path)
    run_tasks(load_model(target.checkpoint), held_out.data.tokenizer, [CLOZE], local_directory=directory, limit=2)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "fatal" not in shown.err


def test_outcomes_are_kept_only_where_their_mean_is_the_value() -> None:
    samples = [{"doc": {"id": n}, "doc_hash": "", "acc": float(n % 2), "perplexity": -1.0 * n} for n in range(4)]
    found = {
        "results": {
            "lambada": {"acc,none": 0.5, "acc_stderr,none": 0.1, "perplexity,none": 7.5},
            "all": {"acc,none": 0.5},
        },
        "samples": {"lambada": samples},
        "higher_is_better": {"lambada": {"acc": True, "perplexity": False}},
        "group_subtasks": {"all": ["lambada"]},
    }
    accuracy, perplexity, group = harness._scores(found, 0)
    assert accuracy.outcomes == (0.0, 1.0, 0.0, 1.0)
    assert accuracy.item_keys == ("0", "1", "2", "3")
    assert (perplexity.value, perplexity.outcomes, perplexity.item_keys) == (7.5, (), ())
    assert (group.members, group.outcomes) == (("lambada",), ())


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_network_task_without_a_network_is_one_line(
    local: Any, monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    target, held_out, _ = local
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)

    def unreachable(*arguments: object, **named: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(harness_tasks.HfApi, "dataset_info", unreachable)
    with pytest.raises(DataError, match=r"deeploop cannot be fetched.*--tasks local") as caught:
        run_tasks(load_model(target.checkpoint), held_out.data.tokenizer, [PAPER_GROUP], local_directory=None)
    assert "\n" not in str(caught.value)


def test_an_unknown_task_suggests_the_near_one(local: Any) -> None:
    target, held_out, directory = local
    model = load_model(target.checkpoint)
    with pytest.raises(ConfigError, match="unknown task 'locl'; did you mean 'local'"):
        run_tasks(model, held_out.data.tokenizer, ["locl"], local_directory=directory)


def test_the_written_folder_serves_a_task_manager_alone(local: Any) -> None:
    manager = TaskManager(include_path=str(local[2]), include_defaults=False)
    assert {CONTINUATION, CLOZE, "local"} <= set(manager.all_tasks)


BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "depthscale" or name.startswith("depthscale."):
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.slow
def test_plain_lm_eval_without_depthscale_gives_the_same_scores(local: Any, tmp_path: Path) -> None:
    """As anyone would run it: lm_eval --model hf --model_args pretrained=DIR,trust_remote_code=True."""
    from depthscale.evaluation.export import export_model

    target, held_out, directory = local
    export_model(target, tmp_path / "exported")
    arguments = [
        *("--model", "hf", "--model_args", f"pretrained={tmp_path / 'exported'},trust_remote_code=True,dtype=float32"),
        *("--tasks", "local", "--include_path", str(directory), "--device", "cpu", "--batch_size", "8"),
        *("--output_path", str(tmp_path / "plain"), "--log_samples"),
    ]
    code = (
        f"{BLOCKER}\nsys.argv = ['lm_eval', *{arguments!r}]\nfrom lm_eval.__main__ import cli_evaluate\ncli_evaluate()"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    plain = json.loads(next((tmp_path / "plain").rglob("results_*.json")).read_text())["results"]
    here = run_tasks(
        load_model(target.checkpoint).eval(), held_out.data.tokenizer, ["local"], local_directory=directory
    )
    for score in here:
        assert plain[score.task]["acc,none"] == pytest.approx(score.value)
        assert plain[score.task]["acc_stderr,none"] == pytest.approx(score.standard_error)
