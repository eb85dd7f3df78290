"""How fast a causal language model scores a grid: sentence-transformers, ours plain, ours with shared prefixes.

    python lab/benchmarks/llm_grid.py --model FOLDER --items corpus.jsonl.gz --queries queries.jsonl.gz --check
    python lab/benchmarks/llm_grid.py --smoke

The score is logit(yes) − logit(no) behind a chat prompt that is written below. Query-first, what a query's pairs share
is run once; item-first, what an item's pairs share. FLOPs are those of matrix products: `run` of the tokens that were
run (the last layer for last tokens alone), `logical` of the whole model over every token of every pair. Shares are of
an 8192³ bf16 product in the same run. `--check` compares tiny models with transformers on the device first, `--tune`
times other block sizes of the attention kernel, `--profile` lists the kernels of one batch, and `--random` takes
random weights of the folder's shape (speeds are the same, scores mean nothing). `--smoke` is all of it on the CPU with
a tiny model made on the spot. A part that fails prints its traceback, and the others go on.
Needs torch, transformers and sentence-transformers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_search import records
from tiny_decoders import check, plain_hidden, smoke_world

from adacur.extras.kernels import decoder_forward
from adacur.extras.kernels.decoder_forward import PackedDecoder

SYSTEM = (
    "<|im_start|>system\nJudge whether the document answers the query. Answer only yes or no.<|im_end|>\n"
    "<|im_start|>user\n"
)
END = "<|im_end|>\n<|im_start|>assistant\n"
# Texts begin behind a newline, where byte-level tokenizers split: joined parts are the tokens of the whole prompt.
QUERY_FIRST = (SYSTEM + "Query:\n{query}\nDocument:\n", "{item}" + END)
ITEM_FIRST = (SYSTEM + "Document:\n{item}\nQuery:\n", "{query}" + END)
TEMPLATE = (
    SYSTEM
    + "Query:\n{{ (messages | selectattr('role', 'equalto', 'query') | first).content }}\nDocument:\n"
    + "{{ (messages | selectattr('role', 'equalto', 'document') | first).content }}"
    # Jinja drops a template's last newline, but not one in an expression.
    + END.removesuffix("\n")
    + "{{ '\\n' }}"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS: list[tuple[str, ...]] = []
FOUND: dict[str, Any] = {}
FAILED: list[str] = []


def part(name: str, run: Callable[[], Any]) -> Any:
    """The result of a part; None, and its traceback printed, where it fails."""
    started = time.perf_counter()
    try:
        return run()
    except Exception:
        FAILED.append(name)
        print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)
        return None
    finally:
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
        print(f"[{name}: {time.perf_counter() - started:.1f} s]", flush=True)


def main() -> int:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.smoke:
            arguments.model, arguments.items, arguments.queries = smoke_world(Path(scratch))
            arguments.check = arguments.profile = True
        run(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": ROWS, "found": FOUND, "failed": FAILED}, indent=1))
    widths = [max(len(row[at]) for row in ROWS) for at in range(len(ROWS[0]))] if ROWS else []
    for row in ROWS:
        print(
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )
    print(f"failed: {', '.join(FAILED) or 'nothing'}")
    return len(FAILED)


def run(arguments: argparse.Namespace) -> None:
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, python {sys.version.split()[0]}, {arguments.dtype}")
    FOUND["device"], FOUND["torch"], FOUND["dtype"] = name, torch.__version__, arguments.dtype
    rate = part("product rate", product_rate) or float("nan")
    FOUND["product_rate"] = rate
    print(f"bf16 product: {rate / 1e12:.1f} TFLOP/s")
    if arguments.check:
        part("check", lambda: check(DEVICE))
    if not arguments.model:
        return
    world = part("model and texts", lambda: World(arguments))
    if world is None:
        return
    print(
        f"{len(world.queries)} queries × {len(world.items)} items; tokens a pair {world.mean_tokens():.1f}; kernels "
        f"{'Triton' if world.decoder._kernels else 'none'}, SwiGLU programs {world.decoder._programs}; batches of "
        f"{world.batch_tokens:,} tokens"
    )
    ROWS.append(("way", "pairs", "s", "pairs/s", "× ST", "run tokens/pair", "run share", "logical share"))
    theirs = part("sentence-transformers", lambda: sentence_transformers_rate(world, arguments))
    if theirs:
        whole = world.work(QUERY_FIRST, *world.grid(len(world.queries), len(world.items)), shared=False)
        per_pair = whole["logical"] / (len(world.queries) * len(world.items))
        share = f"{theirs['rate'] * per_pair / rate:.1%}"
        ROWS.append(
            (f"sentence-transformers, {theirs['name']}", f"{theirs['pairs']:,}", f"{theirs['seconds']:.2f}",
             f"{theirs['rate']:,.0f}", "1.0", "padded", "", share)
        )  # fmt: skip
    for way, prompt, shared in (
        ("ours plain", QUERY_FIRST, False),
        ("ours, prefix shared, query-first", QUERY_FIRST, True),
        ("ours, prefix shared, item-first", ITEM_FIRST, True),
    ):
        part(way, lambda w=way, p=prompt, s=shared: ours(world, arguments, w, p, shared=s, rate=rate, theirs=theirs))
    part("rounds of 1 × 20", lambda: rounds(world, theirs))
    part("agreement", lambda: agreement(world, arguments))
    if arguments.profile:
        part("profile", lambda: profile(world))
    if arguments.tune:
        part("tune", lambda: tune(world))


class World:
    """The model in ours, tokens of all parts of all prompts, and the row that reads a score."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        self.folder = arguments.model
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        config = AutoConfig.from_pretrained(self.folder)
        torch.manual_seed(0)
        if arguments.random:
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        else:
            self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        if not PackedDecoder.fits(config):
            raise ValueError(f"Our forward pass does not run this model: {config}")
        self.config = self.model.config
        self.decoder = PackedDecoder(self.model, device=DEVICE, dtype=arguments.dtype)
        self.batch_tokens = arguments.batch_tokens or (65_536 if DEVICE.type == "cuda" else 4096)
        yes, no = (self.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
        if None in (yes, no) or yes == no:
            raise ValueError(f"'yes' and 'no' must be two tokens; got the ids {yes} and {no}.")
        head = self.model.get_output_embeddings().weight.detach()
        self.readout = (head[yes] - head[no]).float().to(DEVICE)
        rng = np.random.default_rng(0)
        items = [" ".join(filter(None, (one.get("title"), one["text"]))) for one in records(arguments.items)]
        asked = [one["text"] for one in records(arguments.queries)]
        chosen = rng.choice(len(items), min(arguments.n_items, len(items)), replace=False)
        self.items = [self.cut(items[at].strip(), arguments.max_item_tokens) for at in chosen]
        chosen = rng.choice(len(asked), min(arguments.n_queries, len(asked)), replace=False)
        self.queries = [asked[at].strip() for at in chosen]
        self._parts: dict[Any, Any] = {}

    def cut(self, text: str, limit: int) -> str:
        encoding = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        return text if len(encoding.ids) <= limit else text[: encoding.offsets[limit - 1][1]]

    def ids(self, text: str) -> Any:
        return np.array(self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    def parts(self, prompt: tuple[str, str]) -> tuple[list[Any], list[Any]]:
        """Tokens of each prefix and of each continuation."""
        if prompt not in self._parts:
            fill = {"query": self.queries, "item": self.items}
            self._parts[prompt] = tuple(
                [self.ids(text.format(**{which: one})) for one in fill[which]]
                for text in prompt
                for which in ("query" if "{query}" in text else "item",)
            )
        return self._parts[prompt]

    def grid(self, n_queries: int, n_items: int) -> tuple[Any, Any]:
        query_of, item_of = np.divmod(np.arange(n_queries * n_items), n_items)
        return query_of, item_of

    def sides(self, prompt: tuple[str, str], query_of: Any, item_of: Any) -> tuple[Any, Any]:
        return (query_of, item_of) if "{query}" in prompt[0] else (item_of, query_of)

    def sequences(self, prompt: tuple[str, str], query_of: Any, item_of: Any) -> list[Any]:
        heads, tails = self.parts(prompt)
        return [
            np.concatenate((heads[a], tails[b])) for a, b in zip(*self.sides(prompt, query_of, item_of), strict=True)
        ]

    def scores(self, prompt: tuple[str, str], query_of: Any, item_of: Any, *, shared: bool) -> Any:
        """Scores of pairs, in batches that the device has memory for."""
        heads, tails = self.parts(prompt)
        prefix_of, continuation_of = self.sides(prompt, query_of, item_of)
        # Pairs of one prefix stay together.
        order = np.argsort(prefix_of, kind="stable")
        scores = torch.empty(len(order), dtype=torch.float32, device=DEVICE)
        own = np.array([len(ids) for ids in tails])[continuation_of[order]]
        before = np.array([len(ids) for ids in heads])[prefix_of[order]]
        is_first = np.append(True, np.diff(prefix_of[order]) != 0) if shared else np.ones(len(order), bool)
        batch_of = np.cumsum(own + before * is_first) // self.batch_tokens
        for some in np.split(order, np.flatnonzero(np.diff(batch_of)) + 1):
            if shared:
                vectors = self.decoder.last_hidden_shared(
                    heads, tails, prefix_of[some], continuation_of=continuation_of[some]
                )
            else:
                vectors = self.decoder.last_hidden(
                    [
                        np.concatenate((heads[a], tails[b]))
                        for a, b in zip(prefix_of[some], continuation_of[some], strict=True)
                    ]
                )
            scores[torch.from_numpy(some).to(DEVICE)] = vectors @ self.readout
        return scores.cpu().numpy()

    def mean_tokens(self) -> float:
        return float(sum(np.mean([len(ids) for ids in side]) for side in self.parts(QUERY_FIRST)))

    def work(self, prompt: tuple[str, str], query_of: Any, item_of: Any, *, shared: bool) -> dict[str, float]:
        """Tokens and FLOPs that are run, and FLOPs of the whole model over every token of every pair."""
        prefix_of, continuation_of = self.sides(prompt, query_of, item_of)
        sizes = [np.array([len(ids) for ids in side], float) for side in self.parts(prompt)]
        before, own = sizes[0][prefix_of], sizes[1][continuation_of]
        total = before + own
        config, size = self.config, self.config.hidden_size
        heads = config.num_attention_heads * self.decoder._head_size
        keys = 2 * config.num_key_value_heads * self.decoder._head_size
        rest = 2 * (2 * heads * size + 3 * size * config.intermediate_size)
        layers = config.num_hidden_layers

        def seen(length: Any, prefix: Any = 0.0) -> Any:
            return length * prefix + length * (length + 1) / 2

        logical = layers * (total * (rest + 2 * keys * size) + 4 * heads * seen(total)).sum()
        once = sizes[0][np.unique(prefix_of)] if shared else np.zeros(0)
        rows, attended = (own, seen(own, before)) if shared else (total, seen(total))
        tokens = rows.sum() + once.sum()
        run = (layers - 1) * (tokens * (rest + 2 * keys * size) + 4 * heads * (attended.sum() + seen(once).sum()))
        run += tokens * 2 * keys * size + (rest + 4 * heads * total).sum()
        return {"tokens": float(tokens), "run": float(run), "logical": float(logical)}


def ours(
    world: World,
    arguments: argparse.Namespace,
    way: str,
    prompt: tuple[str, str],
    *,
    shared: bool,
    rate: float,
    theirs: Any,
) -> None:
    n_queries, n_items = len(world.queries), len(world.items)
    # Kernels are compiled and memory is taken before the clock runs. A trial says how much fits into the time.
    few = max(1, n_queries // 20)
    trial = (n_queries, max(1, n_items // 20)) if prompt is ITEM_FIRST else (few, n_items)
    world.scores(prompt, *world.grid(*trial), shared=shared)
    seconds = timed(lambda: world.scores(prompt, *world.grid(*trial), shared=shared))
    share = min(1.0, arguments.seconds / (seconds * (n_queries * n_items) / (trial[0] * trial[1])))
    if prompt is ITEM_FIRST:
        n_items = max(trial[1], int(n_items * share))
    else:
        n_queries = max(trial[0], int(n_queries * share))
    pairs = world.grid(n_queries, n_items)
    seconds = timed(lambda: world.scores(prompt, *pairs, shared=shared))
    work, n = world.work(prompt, *pairs, shared=shared), len(pairs[0])
    times = f"{n / seconds / theirs['rate']:.1f}" if theirs else "?"
    FOUND[way] = {"pairs": n, "seconds": seconds, "rate": n / seconds, **work}
    if DEVICE.type == "cuda":
        FOUND[way]["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        print(f"{way}: {seconds / work['tokens'] * 1e9:.0f} ns a token run, peak {FOUND[way]['peak_gib']:.1f} GiB")
    ROWS.append(
        (way, f"{n:,}", f"{seconds:.2f}", f"{n / seconds:,.0f}", times, f"{work['tokens'] / n:.1f}",
         f"{work['run'] / seconds / rate:.1%}", f"{work['logical'] / seconds / rate:.1%}")
    )  # fmt: skip


def sentence_transformers_rate(world: World, arguments: argparse.Namespace) -> dict[str, Any]:
    """Pairs a second of the best of some dtypes and batch sizes, and largest difference from ours."""
    rng, best = np.random.default_rng(1), None
    n = min(arguments.n_rival_pairs, len(world.queries) * len(world.items))
    query_of, item_of = rng.integers(0, len(world.queries), n), rng.integers(0, len(world.items), n)
    pairs = [(world.queries[a], world.items[b]) for a, b in zip(query_of, item_of, strict=True)]
    expected = world.scores(QUERY_FIRST, query_of, item_of, shared=True)
    dtypes = ("float16", "bfloat16") if DEVICE.type == "cuda" else ("float32",)
    for dtype in dtypes:
        rival = cross_encoder(world, dtype)
        batches = (16, 64, 256) if DEVICE.type == "cuda" else (8,)
        for batch in batches:
            try:
                predict(rival, pairs[: 2 * batch], batch)
                some = pairs[: min(n, 40 * batch)]
                seconds = timed(lambda b=batch, s=some, r=rival: predict(r, s, b))
            except Exception as error:
                print(f"sentence-transformers {dtype}/{batch}: {error!r}")
                continue
            print(f"sentence-transformers {dtype}, batches of {batch}: {len(some) / seconds:,.0f} pairs/s", flush=True)
            if best is None or len(some) / seconds > best[0]:
                best = (len(some) / seconds, dtype, batch)
    _, dtype, batch = best
    rival = cross_encoder(world, dtype)
    predict(rival, pairs[: 2 * batch], batch)
    began = time.perf_counter()
    scores = predict(rival, pairs, batch)
    seconds = time.perf_counter() - began
    FOUND["sentence-transformers"] = {"rate": n / seconds, "pairs": n, "dtype": dtype, "batch": batch}
    print(
        f"ours against sentence-transformers ({dtype}), {n:,} pairs: largest |Δ| {np.abs(scores - expected).max():.5f}"
    )
    return {
        "rate": n / seconds,
        "pairs": n,
        "seconds": seconds,
        "name": f"{dtype}/{batch}",
        "rival": rival,
        "batch": batch,
    }


def cross_encoder(world: World, dtype: str) -> Any:
    from sentence_transformers import CrossEncoder

    rival = CrossEncoder(
        str(world.folder),
        device=str(DEVICE),
        model_kwargs={"dtype": getattr(torch, dtype)},
        processor_kwargs={"chat_template": TEMPLATE},
    )
    rival.tokenizer.pad_token = rival.tokenizer.pad_token or rival.tokenizer.eos_token
    tokens = rival.preprocess([(world.queries[0], world.items[0])])["input_ids"][0].tolist()
    if tokens != world.sequences(QUERY_FIRST, [0], [0])[0].tolist():
        print(f"NOTE: sentence-transformers has other tokens: {world.tokenizer.decode(tokens)!r}")
    return rival


def predict(rival: Any, pairs: list[tuple[str, str]], batch: int) -> Any:
    return rival.predict(pairs, batch_size=batch, activation_fn=torch.nn.Identity(), show_progress_bar=False)


def rounds(world: World, theirs: Any) -> None:
    """Milliseconds of a call with 20 items for one query."""
    times: dict[str, list[float]] = {}
    n = min(20, len(world.items))
    for at in range(min(20, len(world.queries))):
        pairs = np.full(n, at), (np.arange(n) * 7 + at) % len(world.items)
        for shared in (False, True):
            seconds = timed(lambda p=pairs, s=shared: world.scores(QUERY_FIRST, *p, shared=s))
            times.setdefault("ours shared" if shared else "ours plain", []).append(seconds)
        if theirs and at < 8:
            texts = [(world.queries[a], world.items[b]) for a, b in zip(*pairs, strict=True)]
            times.setdefault("sentence-transformers", []).append(
                timed(lambda t=texts: predict(theirs["rival"], t, theirs["batch"]))
            )
    FOUND["round_ms"] = {name: float(np.median(some[2:] or some) * 1e3) for name, some in times.items()}
    print("one query × 20 items, median ms:", {name: round(ms, 2) for name, ms in FOUND["round_ms"].items()})


def agreement(world: World, arguments: argparse.Namespace) -> None:
    """Scores of ours in several dtypes, and of transformers in half precision, against transformers in float32."""
    rng = np.random.default_rng(2)
    n = min(1000, len(world.queries) * len(world.items)) if DEVICE.type == "cuda" else 40
    pairs = rng.integers(0, len(world.queries), n), rng.integers(0, len(world.items), n)
    sequences = world.sequences(QUERY_FIRST, *pairs)
    body = world.model.base_model.to(DEVICE)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    expected = plain_hidden(body, sequences) @ world.readout
    torch.backends.cuda.matmul.allow_tf32 = tf32
    FOUND["agreement"] = {"spread of scores": float(expected.std())}
    mine = world.decoder
    for dtype in ("float16", "bfloat16", "float32"):
        world.decoder = PackedDecoder(world.model, device=DEVICE, dtype=dtype)
        for shared in (False, True):
            scores = torch.from_numpy(world.scores(QUERY_FIRST, *pairs, shared=shared)).to(DEVICE)
            FOUND["agreement"][f"ours {dtype}{', shared' if shared else ''}"] = float((scores - expected).abs().max())
    world.decoder = mine
    for dtype in ("float16", "bfloat16"):
        half = plain_hidden(body.to(getattr(torch, dtype)), sequences).float() @ world.readout
        FOUND["agreement"][f"transformers {dtype}"] = float((half - expected).abs().max())
        body.float()
    print(f"largest |Δ| of scores from transformers' float32, {n} pairs:")
    for name, value in FOUND["agreement"].items():
        print(f"  {name:28} {value:.5f}")


def profile(world: World) -> None:
    """Kernels of one item-first and of one query-first run, by their time."""
    for prompt in (QUERY_FIRST, ITEM_FIRST):
        pairs = world.grid(*((len(world.queries), 40) if prompt is ITEM_FIRST else (2, len(world.items))))
        world.scores(prompt, *pairs, shared=True)
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if DEVICE.type == "cuda" else []
        with torch.profiler.profile(activities=kinds) as found:
            world.scores(prompt, *pairs, shared=True)
            synchronised()
        by = "self_cuda_time_total" if DEVICE.type == "cuda" else "self_cpu_time_total"
        print(found.key_averages().table(sort_by=by, row_limit=14, max_name_column_width=60))


def tune(world: World) -> None:
    """Other block sizes of the attention kernel, on whole runs."""
    from adacur.extras.kernels import decoder_kernels

    chosen = decoder_kernels.blocks
    for prompt in (QUERY_FIRST, ITEM_FIRST):
        pairs = world.grid(*((len(world.queries), 60) if prompt is ITEM_FIRST else (10, len(world.items))))
        for tried in (
            None,
            (64, 32, 4, 2),
            (64, 64, 4, 2),
            (64, 64, 4, 3),
            (128, 64, 4, 2),
            (128, 64, 8, 2),
            (128, 32, 4, 3),
        ):
            try:
                # A read of last tokens alone keeps its small block.
                decoder_kernels.blocks = lambda longest, size, t=tried: (
                    chosen(longest, size) if t is None or longest <= 16 else t
                )
                world.scores(prompt, *pairs, shared=True)
                seconds = timed(lambda p=prompt, g=pairs: world.scores(p, *g, shared=True))
                print(
                    f"blocks {tried or 'as chosen'}, {prompt[1][:7]} last: {len(pairs[0]) / seconds:,.0f} pairs/s",
                    flush=True,
                )
            except Exception as error:
                print(f"blocks {tried}: {error!r}"[:300])
            finally:
                decoder_kernels.blocks = chosen
    rows = decoder_forward._ROWS_FOR_KERNEL
    pairs = world.grid(10, len(world.items))
    decoder_forward._ROWS_FOR_KERNEL = 1 << 40
    try:
        world.scores(QUERY_FIRST, *pairs, shared=True)
        seconds = timed(lambda: world.scores(QUERY_FIRST, *pairs, shared=True))
        print(f"without the SwiGLU kernel, query-first: {len(pairs[0]) / seconds:,.0f} pairs/s")
    finally:
        decoder_forward._ROWS_FOR_KERNEL = rows


def product_rate() -> float:
    size, dtype = (8192, torch.bfloat16) if DEVICE.type == "cuda" else (512, torch.float32)
    left, right = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
    for _ in range(3):
        left @ right
    return 2 * size**3 * 10 / timed(lambda: [left @ right for _ in range(10)])


def timed(run: Callable[[], Any]) -> float:
    synchronised()
    started = time.perf_counter()
    run()
    synchronised()
    return time.perf_counter() - started


def synchronised() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--items", type=Path)
    parser.add_argument("--queries", type=Path)
    parser.add_argument("--n-queries", type=int, default=300)
    parser.add_argument("--n-items", type=int, default=1500)
    parser.add_argument("--max-item-tokens", type=int, default=160)
    parser.add_argument("--n-rival-pairs", type=int, default=4000)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--seconds", type=float, default=45.0, help="most seconds that one way of ours runs")
    parser.add_argument("--dtype", default="float16" if DEVICE.type == "cuda" else "float32")
    for flag in ("--check", "--profile", "--tune", "--random", "--smoke"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
