"""How long a search's calls take on a GPU: our scorer beside sentence-transformers and a bare CUDA graph.

    python lab/benchmarks/gpu_search.py --model FOLDER --items corpus.jsonl.gz --queries queries.jsonl.gz

A call is one query with n random items. Every way gets the same calls twice: the first time untimed (texts become
known, shapes are recorded), then timed one by one, until the scores are on the host. Texts of items are cut to the
same tokens for everybody. `--only score,rivals` runs some parts; a new part is a function in PARTS that yields rows.
`--smoke` makes a tiny model and tiny sizes, and runs anywhere: it shows that the script works, nothing else.
Needs torch and transformers; without sentence-transformers its rows are left out.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adacur.extras.kernels.recorded import RecordedForward
from adacur.records import Item, ItemList, Query
from adacur.scorers import TorchCrossEncoder
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs


@dataclass(frozen=True)
class Row:
    """A line of the table: milliseconds of one call, over the timed calls."""

    part: str
    way: str
    pairs: int
    median_ms: float
    p95_ms: float
    first_ms: float = float("nan")
    note: str = ""


@dataclass
class Bench:
    """What all parts share."""

    model: Path
    items: ItemList
    queries: list[Query]
    device: torch.device
    dtype: str
    max_item_tokens: int
    sizes: list[int]
    repeats: int

    @cached_property
    def scorer(self) -> TorchCrossEncoder:
        return self.open()

    def open(self, **options: Any) -> TorchCrossEncoder:
        return TorchCrossEncoder(
            self.model,
            device=str(self.device),
            dtype=options.pop("dtype", self.dtype),
            max_item_tokens=self.max_item_tokens,
            **options,
        )

    def calls(self, n_pairs: int) -> list[tuple[Query, np.ndarray]]:
        """The same for every way: a query, and positions of items."""
        rng = np.random.default_rng(n_pairs)
        return [
            (
                self.queries[int(rng.integers(len(self.queries)))],
                rng.choice(len(self.items), n_pairs, replace=n_pairs > len(self.items)),
            )
            for _ in range(self.repeats)
        ]

    def pairs(self, call: tuple[Query, np.ndarray]) -> list[tuple[Query, Item]]:
        query, positions = call
        return [(query, item) for item in self.items.at(positions.tolist())]

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self, part: str, way: str, n_pairs: int, score: Callable[[Any], Any], given: Sequence[Any]) -> Row:
        """`score` of each call: once untimed, once timed."""
        first, then = [], []
        for seconds in (first, then):
            for one in given:
                self.synchronise()
                started = time.perf_counter()
                score(one)
                self.synchronise()
                seconds.append(time.perf_counter() - started)
        median, p95 = np.percentile(then, [50, 95]) * 1000
        return Row(part, way, n_pairs, median, p95, first_ms=1000 * max(first))


def score(bench: Bench) -> Iterator[Row]:
    """Our scorer: pairs, positions, and pairs without graphs."""
    scorer = bench.scorer
    started = time.perf_counter()
    known = scorer.prepare(bench.items)
    print(f"prepare: {known:,} of {len(bench.items):,} items in {time.perf_counter() - started:.2f} s")
    for n in bench.sizes:
        calls = bench.calls(n)
        with recording(bench) as note:
            row = bench.timed("score", "score", n, scorer.score, [bench.pairs(call) for call in calls])
        yield with_note(row, note())
        with recording(bench) as note:
            row = bench.timed("score", "score_at", n, by_position(bench, scorer), calls)
        yield with_note(row, note())
    eager = bench.open()
    eager._recorded = None
    for n in bench.sizes:
        calls = [bench.pairs(call) for call in bench.calls(n)]
        yield bench.timed("score", "score, no graphs", n, eager.score, calls)
    eager.close()


def host_alone(bench: Bench) -> Iterator[Row]:
    """What of `score` is the host's: the same calls with recorded passes that do nothing, copies included."""
    # On a CPU the default would send larger calls the other way.
    scorer = bench.open(batch_tokens=1 << 18)
    if not hasattr(scorer._forward, "of_packed"):
        return
    scorer._recorded = RecordedForward(
        torch,
        scorer._forward.of_packed,
        device=bench.device,
        pad_id=scorer._pad_id,
        capture=lambda run: lambda: None,
    )
    scorer.prepare(bench.items)
    for n in bench.sizes:
        calls = bench.calls(n)
        yield bench.timed("host", "score", n, scorer.score, [bench.pairs(call) for call in calls])
        yield bench.timed("host", "score_at", n, by_position(bench, scorer), calls)
    scorer.close()


def by_position(bench: Bench, scorer: TorchCrossEncoder) -> Callable[[tuple[Query, np.ndarray]], Any]:
    def run(call: tuple[Query, np.ndarray]) -> Any:
        query, positions = call
        return scorer.score_at(bench.items, [query], np.zeros(len(positions), np.intp), positions)

    return run


def device_alone(bench: Bench) -> Iterator[Row]:
    """What of `score` is the device's: each recorded pass repeated, timed by the device's own clock."""
    recorded = bench.scorer._recorded
    if recorded is None:
        return
    for bucket, one in sorted(recorded._recorded.items(), key=lambda each: each[0].tokens):
        times = []
        for _ in range(min(50, bench.repeats)):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            one.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        median, p95 = np.percentile(times, [50, 95])
        yield Row("device", f"{bucket.tokens} tokens, longest {bucket.longest}", bucket.pairs, median, p95)


def rivals(bench: Bench) -> Iterator[Row]:
    """sentence-transformers as people call it, and transformers' own forward pass as one padded CUDA graph."""
    if importlib.util.find_spec("sentence_transformers"):
        from sentence_transformers import CrossEncoder

        rival = CrossEncoder(
            str(bench.model), device=str(bench.device), model_kwargs={"dtype": getattr(torch, bench.dtype)}
        )
        for n in bench.sizes:
            calls = [
                [(query.text, item.text) for query, item in bench.pairs(call)]
                for call in bench.calls(n)[: max(3, bench.repeats // 4)]
            ]
            yield bench.timed(
                "rivals",
                "sentence-transformers",
                n,
                lambda texts, n=n: rival.predict(
                    texts, batch_size=n, activation_fn=torch.nn.Identity(), show_progress_bar=False
                ),
                calls,
            )
    for n in bench.sizes:
        made = [bench.scorer._tokens.pairs(bench.pairs(call)) for call in bench.calls(n)]
        calls = [padded(pairs, range(n), pad_id=bench.scorer._pad_id) for pairs in made]
        longest = max(ids.shape[1] for ids, _, _ in calls)
        run = bare_graph(bench, n, longest)
        way = "bare CUDA graph" if bench.device.type == "cuda" else "bare forward, no graph"
        yield with_note(bench.timed("rivals", way, n, run, calls), f"padded to {longest} tokens, ids given")


def padded(pairs: TokenPairs, positions: Sequence[int], *, pad_id: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, mask and types of these pairs, padded on the right to the longest."""
    rows = [pairs.texts.pair(pairs.query_of[at], pairs.item_of[at]) for at in positions]
    ids = np.full((len(rows), max(row.shape[1] for row in rows)), pad_id, np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : row.shape[1]], types[at, : row.shape[1]] = row
        mask[at, : row.shape[1]] = 1
    return ids, mask, types


def bare_graph(bench: Bench, n_pairs: int, longest: int) -> Callable[[Any], np.ndarray]:
    """Ids copied in, one padded forward pass, scores copied out."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(bench.model, dtype=getattr(torch, bench.dtype))
    model = model.to(bench.device).eval()
    fixed = torch.zeros(3, n_pairs, longest, dtype=torch.int64, device=bench.device)
    fixed[1] = 1
    host = torch.zeros(3, n_pairs, longest, dtype=torch.int64, pin_memory=bench.device.type == "cuda")
    takes_types = getattr(model.config, "type_vocab_size", 0) > 1

    def forward() -> torch.Tensor:
        types = {"token_type_ids": fixed[2]} if takes_types else {}
        return model(input_ids=fixed[0], attention_mask=fixed[1], **types).logits[:, 0].float()

    replay: Callable[[], None] | None = None
    answer: torch.Tensor | None = None
    if bench.device.type == "cuda":
        with torch.inference_mode():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    forward()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                answer = forward()
            replay = graph.replay

    def run(call: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        host.zero_()
        for place, array in enumerate(call):
            host[place, :, : array.shape[1]] = torch.from_numpy(array)
        with torch.inference_mode():
            fixed.copy_(host, non_blocking=True)
            if replay is None:
                return forward().cpu().numpy()
            replay()
            assert answer is not None
            return answer.cpu().numpy()

    return run


def agreement(bench: Bench) -> Iterator[Row]:
    """Largest difference of a call's scores from those of a plain float32 forward pass, and from those of a grid."""
    plain = bench.open(dtype="float32")
    for n in bench.sizes:
        query, positions = bench.calls(n)[0]
        pairs = bench.pairs((query, positions))
        expected = plain.score(pairs)
        grid = bench.scorer.score_grid([query], [item for _, item in pairs])[0]
        by_pairs = bench.scorer.score(pairs)
        by_places = by_position(bench, bench.scorer)((query, positions))
        note = (
            f"|Δ| from float32: score {np.abs(by_pairs - expected).max():.5f}, score_at "
            f"{np.abs(by_places - expected).max():.5f}, grid {np.abs(grid - expected).max():.5f}"
        )
        yield Row("agreement", "", n, float("nan"), float("nan"), note=note)
    plain.close()


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "score": score,
    "host": host_alone,
    "device": device_alone,
    "rivals": rivals,
    "agreement": agreement,
}


@contextmanager
def recording(bench: Bench) -> Iterator[Callable[[], str]]:
    """What was recorded inside."""
    recorded = bench.scorer._recorded
    if recorded is None:
        yield lambda: "no graphs here"
        return
    before = recorded.n_recorded, recorded.seconds_recording
    yield (
        lambda: (
            f"{recorded.n_recorded - before[0]} graphs in {recorded.seconds_recording - before[1]:.2f} s"
            f"{', given up' if recorded._calls_to_wait else ''}"
        )
    )


def with_note(row: Row, note: str) -> Row:
    return Row(**asdict(row) | {"note": note})


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as folder:
        bench = smoke_bench(Path(folder)) if arguments.smoke else real_bench(arguments)
        name = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "CPU"
        print(f"{name}, torch {torch.__version__}, {bench.dtype}, {len(bench.items):,} items")
        rows: list[Row] = []
        for part in arguments.only.split(",") if arguments.only else PARTS:
            for row in PARTS[part](bench):
                rows.append(row)
                print(
                    f"{row.part:10} {row.way:34} {row.pairs:5} pairs  median {row.median_ms:9.3f}  "
                    f"p95 {row.p95_ms:9.3f}  slowest of the first round {row.first_ms:9.1f} ms  {row.note}",
                    flush=True,
                )
        recorded = bench.scorer._recorded
        if recorded is not None:
            print(f"{recorded.n_recorded} graphs recorded in {recorded.seconds_recording:.2f} s altogether")
        if bench.device.type == "cuda":
            print(f"device memory: {torch.cuda.max_memory_reserved(bench.device) / 2**30:.2f} GiB at most")
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
        bench.scorer.close()


def real_bench(arguments: argparse.Namespace) -> Bench:
    device = torch.device(arguments.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    bench = Bench(
        model=arguments.model,
        items=ItemList([Item("none", "none")]),
        queries=[Query(record["_id"], record["text"]) for record in records(arguments.queries)[: arguments.n_queries]],
        device=device,
        dtype="float16" if device.type == "cuda" else "float32",
        max_item_tokens=arguments.max_item_tokens,
        sizes=arguments.pairs,
        repeats=arguments.repeats,
    )
    tokenizer = bench.scorer._tokens._tokenizer
    texts = [" ".join(filter(None, (record.get("title"), record["text"]))) for record in records(arguments.items)]
    items = []
    for at, text in enumerate(texts[: arguments.n_items]):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        limit = arguments.max_item_tokens
        items.append(Item(str(at), text if len(encoding.ids) <= limit else text[: encoding.offsets[limit - 1][1]]))
    bench.items = ItemList(items)
    return bench


def smoke_bench(folder: Path) -> Bench:
    """A tiny random BERT over words w0 to w39, and texts of these."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(40))]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        model_max_length=128,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=128,
            num_labels=1,
        )
    ).save_pretrained(folder)
    rng = np.random.default_rng(0)

    def text(most: int) -> str:
        return " ".join(f"w{number}" for number in rng.integers(0, 40, rng.integers(1, most)))

    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    return Bench(
        model=folder,
        items=ItemList([Item(str(at), text(40)) for at in range(60)]),
        queries=[Query(str(at), text(10)) for at in range(5)],
        device=device,
        dtype="float16" if device.type == "cuda" else "float32",
        max_item_tokens=32,
        sizes=[1, 5],
        repeats=4,
    )


def records(file: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in content.decode().split("\n") if line]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--items", type=Path)
    parser.add_argument("--queries", type=Path)
    parser.add_argument("--n-items", type=int, default=20_000)
    parser.add_argument("--n-queries", type=int, default=500)
    parser.add_argument("--max-item-tokens", type=int, default=160)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1, 20, 100, 512])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--device")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if not arguments.smoke and not (arguments.model and arguments.items and arguments.queries):
        parser.error("give --model, --items and --queries, or --smoke")
    return arguments


if __name__ == "__main__":
    main()
