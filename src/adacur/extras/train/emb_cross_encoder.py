"""[EMB] cross-encoders: made from any encoder, saved in Hugging Face's layout, loaded again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adacur.errors import FileFormatError, InputError
from adacur.extras.train.run_folder import written_whole
from adacur.names import EMB_KEY
from adacur.requirements import require
from adacur.scorers.cross_encoders.checkpoints import (
    check_complete,
    checkpoint_folder,
    json_in,
    quiet,
    read_model,
    read_pretrained,
    read_tokenizer,
)
from adacur.scorers.cross_encoders.pair_tokens import PairTemplate


@dataclass(frozen=True, slots=True)
class EmbHead:
    """Scores are mean(h[query_start], h[query_end]) · h[item]: dot products of the vectors of tags in the pair."""

    query_start: str = "[unused0]"
    query_end: str = "[unused1]"
    item: str = "[unused2]"

    def __post_init__(self) -> None:
        if not all(isinstance(tag, str) and tag.strip() for tag in self.tags) or len(set(self.tags)) < 3:
            raise InputError(f"The tags of an [EMB] head are three different words; got {self.tags}.")

    @property
    def tags(self) -> tuple[str, str, str]:
        return self.query_start, self.query_end, self.item

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EmbHead | None:
        """The head that a model's config.json tells of; None for models with another."""
        if EMB_KEY not in config:
            return None
        try:
            return cls(**config[EMB_KEY])
        except (TypeError, ValueError) as error:
            found = f"{config[EMB_KEY]!r} ({error})"
            raise FileFormatError(f"{EMB_KEY!r} in config.json is not an [EMB] head: {found}.") from error

    def to_config(self) -> dict[str, Any]:
        """What a model's config.json says of it."""
        return {EMB_KEY: asdict(self)}


_PAPER_HEAD = EmbHead()


def make_emb_cross_encoder(name_or_folder: str | Path, *, head: EmbHead = _PAPER_HEAD) -> tuple[Any, Any]:
    """Tokenizer and module of an untrained [EMB] cross-encoder over any encoder; the head of the base is left out.

    Tags become special tokens of the tokenizer and keep the ids that they have in its vocabulary. Those that it lacks
    are added with random vectors, the same each time.
    """
    folder = _transformer_in(checkpoint_folder(name_or_folder))
    tokenizer, body = _encoder(folder)
    lacks_some = not set(head.tags) <= tokenizer.get_vocab().keys()
    _put_around(tokenizer, head)
    if lacks_some:
        _add_embeddings(body, len(tokenizer))
    return tokenizer, _module(tokenizer, body, head, folder)


def load_emb_cross_encoder(folder: str | Path) -> tuple[Any, Any]:
    """Tokenizer and module from a folder that `save_emb_cross_encoder` wrote."""
    folder = Path(folder)
    head = EmbHead.from_config(json_in(folder, "config.json"))
    if head is None:
        raise InputError(
            f"An [EMB] cross-encoder's config.json has the key {EMB_KEY!r}; that in {folder} has not. "
            "make_emb_cross_encoder makes one from any encoder."
        )
    tokenizer, body = _encoder(folder)
    if missing := [tag for tag in head.tags if tag not in tokenizer.get_vocab()]:
        raise InputError(f"The tokenizer in {folder} lacks the tags {', '.join(missing)} that its config.json names.")
    _put_around(tokenizer, head)
    return tokenizer, _module(tokenizer, body, head, folder)


def save_emb_cross_encoder(module: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write a folder that `TorchCrossEncoder` opens, and whose encoder transformers.AutoModel loads by itself.

    It appears whole or not at all; an older model of that name is replaced.
    """
    with written_whole(Path(folder)) as unfinished, quiet(require("transformers", extra="torch")):
        module.base_model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        config = json_in(unfinished, "config.json") | module.head.to_config()
        (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _transformer_in(folder: Path) -> Path:
    # Older sentence-transformers folders keep their encoder in a folder "0_Transformer".
    inner = folder / "0_Transformer"
    return inner if (inner / "config.json").is_file() else folder


def _encoder(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and body in float32."""
    require("torch", extra="torch")
    tokenizer = read_tokenizer(folder)
    if read_pretrained(folder, "AutoConfig").is_encoder_decoder:
        raise InputError(f"An [EMB] head reads an encoder; the model in {folder} has a decoder too. Take another base.")
    try:
        body, missing = read_model(folder, "AutoModel", add_pooling_layer=False)
    except InputError as error:
        # Not every encoder can be had without a pooler, which this head does not read.
        if not isinstance(error.__cause__, TypeError):
            raise
        body, missing = read_model(folder, "AutoModel")
    check_complete((name for name in missing if not name.startswith("pooler.")), folder)
    return tokenizer, body.float()


def _put_around(tokenizer: Any, head: EmbHead) -> None:
    """Let the tokenizer put the tags around the texts of a pair: the query between its two, the item behind its own.

    They become one id each where a text spells them.
    """
    tokenizers = require("tokenizers", extra="torch")
    added = [tokenizers.AddedToken(tag, special=True, normalized=False) for tag in head.tags]
    tokenizer.add_tokens(added, special_tokens=True)
    backend = tokenizer.backend_tokenizer
    plain = type(backend).from_str(backend.to_str())
    plain.no_padding()
    plain.no_truncation()
    template = PairTemplate.of(plain)
    start, end, item = (tokenizer.convert_tokens_to_ids(tag) for tag in head.tags)
    if start in template.prefix[0] and end in template.middle[0] and item in template.middle[0]:
        return
    query, of_item = template.query_type, template.item_type

    def written(part: Any) -> list[str]:
        return [f"{backend.id_to_token(number)}:{kind}" for number, kind in part.T.tolist()]

    start_tag, end_tag, item_tag = head.tags
    parts = (
        [*written(template.prefix), f"{start_tag}:{query}", f"$A:{query}", f"{end_tag}:{query}"],
        [*written(template.middle), f"{item_tag}:{of_item}", f"$B:{of_item}", *written(template.suffix)],
    )
    around = {int(number) for part in (template.prefix, template.middle, template.suffix) for number in part[0]}
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=parts[0],
        pair=[*parts[0], *parts[1]],
        special_tokens=[(backend.id_to_token(number), number) for number in {*around, start, end, item}],
    )


def _add_embeddings(body: Any, n_tokens: int) -> None:
    torch = require("torch", extra="torch")
    known = body.get_input_embeddings().weight.shape[0]
    if n_tokens <= known:
        return
    body.resize_token_embeddings(n_tokens, mean_resizing=False)
    with torch.no_grad():
        weight = body.get_input_embeddings().weight
        # Not from the global generator: the same base gives the same model.
        noise = torch.randn(weight[known:].shape, generator=torch.Generator().manual_seed(0))
        weight[known:] = weight[:known].mean(0) + noise * weight[:known].std(0)


def _module(tokenizer: Any, body: Any, head: EmbHead, folder: Path) -> Any:
    from adacur.extras.train.emb_module import EmbCrossEncoder

    start, end, item = (tokenizer.convert_tokens_to_ids(tag) for tag in head.tags)
    rows = body.get_input_embeddings().weight.shape[0]
    if max(start, end, item) >= rows:
        raise InputError(
            f"A tag's id must lie below the {rows} tokens that the model in {folder} has vectors for; those of "
            f"{', '.join(head.tags)} are {start}, {end} and {item}. Its tokenizer is another model's."
        )
    return EmbCrossEncoder(body, head=head, tag_ids=(start, end, item)).eval()
