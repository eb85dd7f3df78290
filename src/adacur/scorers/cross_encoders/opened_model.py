"""A model opened as its makers mean it: what it is, which prompt and which readout it wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adacur.errors import InputError
from adacur.names import EMB_KEY, LOAD_EMB, named
from adacur.requirements import require
from adacur.scorers.cross_encoders.checkpoints import (
    Shape,
    TokenLimit,
    architecture,
    check_complete,
    has_chat_template,
    json_in,
    load_classifier,
    read_model,
    read_tokenizer,
    shape_of,
    st_modules,
    token_limit,
)
from adacur.scorers.cross_encoders.pair_prompt import PairPrompt, knows_pairs, no_place_for
from adacur.scorers.cross_encoders.readout import Readout, ReadoutHead

# A prompt as one gives it: itself, a text with {query} and {item}, or messages for the chat template.
AnyPrompt = PairPrompt | str | Sequence[Mapping[str, str]]
# Of a template's options those that say how texts are cut and padded, which we do.
_NOT_OF_TEMPLATES = {"padding", "truncation", "max_length", "return_tensors", "restore_suffix"}
# How far a logit of the whole model may be from ours, as a share of it and at least, before it is another number.
_SAME_LOGIT = 0.05


class OpenedModel(NamedTuple):
    """A model and what makes a scorer of it; `head` is there for a "decoder", and reads its last vectors."""

    shape: Shape
    tokenizer: Any
    model: Any
    readout: Readout
    prompt: PairPrompt | None = None
    head: ReadoutHead | None = None

    @property
    def half(self) -> str:
        """The half precision to run it in: what its makers saved it in, or else the finer one."""
        return "bfloat16" if self.head is not None and str(self.model.dtype) == "torch.bfloat16" else "float16"

    def token_limit(self, given: int | None, folder: Path) -> TokenLimit:
        """The most tokens of a pair, as given or as the files in its folder say."""
        config, length = self.model.config.to_dict(), self.tokenizer.model_max_length
        return token_limit(given, config=config, tokenizer_length=length, folder=folder)


def open_model(folder: Path, *, prompt: AnyPrompt | None, instruction: str | None, readout: Any) -> OpenedModel:
    """The model in a folder, in whose place what is given is taken."""
    read = None if readout is None else Readout.of(readout)
    if shape_of(folder)[0] == "decoder":
        return _language_model(folder, prompt=prompt, instruction=instruction, readout=read)
    if prompt is not None:
        raise InputError(f"A prompt is for language models; the model in {folder} takes plain pairs. Leave it out.")
    if instruction is not None:
        raise no_place_for(instruction, "the model takes plain pairs")
    if EMB_KEY in json_in(folder, "config.json"):
        if read is not None:
            raise InputError(f"The model in {folder} has a head of its own: leave out readout.")
        tokenizer, model = named(LOAD_EMB)(folder)
    else:
        tokenizer, model = load_classifier(folder, read)
    return OpenedModel("pairs", tokenizer, model, read or Readout.label())


def _language_model(
    folder: Path, *, prompt: AnyPrompt | None, instruction: str | None, readout: Readout | None
) -> OpenedModel:
    """A decoder in the precision that it was saved in.

    The prompt is the one given; else that of its chat template, if modules.json or the template's roles say so.
    """
    torch = require("torch", extra="torch")
    is_causal = architecture(folder).endswith("ForCausalLM")
    if readout is not None and readout.of_labels == is_causal:
        has = "tokens, not labels" if is_causal else "labels, not tokens"
        raise InputError(
            f"The model in {folder} is a {architecture(folder)}: it gives {has}; got the readout {readout}."
        )
    tokenizer = read_tokenizer(folder)
    # Before the weights: they take longest.
    made = pair_prompt(folder, tokenizer, prompt=prompt, instruction=instruction)
    read = readout or _readout(folder, is_causal=is_causal)
    kind = "AutoModelForCausalLM" if is_causal else "AutoModelForSequenceClassification"
    model, missing = read_model(folder, kind, dtype="auto")
    check_complete(missing, folder)
    output = model.get_output_embeddings() if is_causal else getattr(model, "score", None)
    if output is None:
        raise InputError(
            f"A model with a prompt is scored by its last token; {architecture(folder)} in {folder} is not such a "
            "model. Give a sentence_transformers.CrossEncoder of it."
        )
    rows = read.rows(tokenizer.backend_tokenizer, n_rows=output.weight.shape[0])
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None) if is_causal else None
    head = ReadoutHead(torch, read, output, rows, cap=cap)
    _check_head(torch, model.eval(), read, rows, head, folder)
    return OpenedModel("decoder", tokenizer, model, read, prompt=made, head=head)


def pair_prompt(folder: Path, tokenizer: Any, *, prompt: AnyPrompt | None, instruction: str | None) -> PairPrompt:
    """The prompt of a model in a folder, or the one given, with this instruction."""
    if isinstance(prompt, PairPrompt):
        if instruction is not None and instruction != prompt.instruction:
            raise no_place_for(instruction, "the prompt is made already")
        return prompt
    if isinstance(prompt, str):
        return PairPrompt.of_format(prompt, instruction=instruction)
    if prompt is not None:
        given: Any = prompt
        if not isinstance(given, Sequence) or not all(isinstance(one, Mapping) for one in given):
            messages = "[{'role': 'user', 'content': '… {query} … {item} …'}]"
            raise InputError(
                f"A prompt must be a text with {{query}} and {{item}}, or messages such as {messages}; got {prompt!r}."
            )
        if not has_chat_template(folder):
            raise InputError(
                f"Messages need a chat template, and the model in {folder} has none. Give prompt='…', a text."
            )
        return PairPrompt.of_chat(tokenizer, prompt, instruction=instruction)
    if not has_chat_template(folder):
        raise InputError(
            f"The language model in {folder}, {architecture(folder)}, has no chat template for pairs. Give "
            "the prompt that it was made for: prompt='… {query} … {item} …'."
        )
    if not st_modules(folder) and architecture(folder).endswith("ForCausalLM") and not knows_pairs(tokenizer):
        raise InputError(
            f"Nothing in the files of {folder} says how it reads a pair. Ask it: prompt=[{{'role': 'user', 'content': "
            "'Query: {query}\\nDocument: {item}\\nIs it relevant? Yes or No.'}], readout=('Yes', 'No'); or give the "
            "prompt=… and readout=… that it was trained with."
        )
    settings = json_in(folder, "config_sentence_transformers.json")
    usual = (settings.get("prompts") or {}).get(settings.get("default_prompt_name"))
    options = (json_in(folder, "sentence_bert_config.json").get("processing_kwargs") or {}).get("chat_template") or {}
    options = {option: value for option, value in options.items() if option not in _NOT_OF_TEMPLATES}
    return PairPrompt.of_chat(tokenizer, instruction=instruction or usual, options=options)


def _readout(folder: Path, *, is_causal: bool) -> Readout:
    if not is_causal:
        return Readout.label()
    modules = st_modules(folder)
    if not modules:
        return Readout.odds("yes", "no")
    config = json_in(folder / modules[-1][1], "config.json")
    right, wrong = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(right, int):
        raise InputError(f"{folder / modules[-1][1]} must name the token that is read: true_token_id.")
    return Readout.token(right) if wrong is None else Readout.odds(right, wrong)


def _check_head(torch: Any, model: Any, readout: Readout, rows: Sequence[int], head: ReadoutHead, folder: Path) -> None:
    """Refuse a model that makes something else of its last vector than the product with its head."""
    # A classifier does not read its padding token.
    ids = torch.tensor([[number for number in range(3, 7) if number != model.config.pad_token_id]])
    with torch.inference_mode():
        # The product with the whole vocabulary, this once and for one token.
        whole = model(input_ids=ids, use_cache=False).logits
        whole = whole[0, -1] if whole.ndim == 3 else whole[0]
        ours = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, -1])
    picked = whole[list(rows)].float()
    theirs = picked @ torch.tensor(readout.weights)
    scale = max(1.0, float(picked.abs().max()))
    if not abs(float(theirs) - float(ours[0])) <= _SAME_LOGIT * scale:
        raise InputError(
            f"The model in {folder} changes its logits behind its head ({float(theirs):.3f}, where its head gives "
            f"{float(ours[0]):.3f}), in a way that is not known here. Give a sentence_transformers.CrossEncoder of it."
        )
