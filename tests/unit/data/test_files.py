from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

from adacur.core.errors import DuplicateId, EmptyInput, FileFormatError
from adacur.core.records import Item, Query
from adacur.data import read_items, read_qrels, read_queries


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content, encoding="utf-8", newline="")
    return path


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["items.jsonl", "items.ndjson", "items.jsonl.gz"])
def test_json_lines_give_items_with_title_and_metadata(tmp_path, name) -> None:
    path = write(
        tmp_path / name, lines({"_id": "a", "title": "Rome", "text": "A city.", "year": 1}, {"_id": 2, "text": "x"})
    )
    assert list(read_items(path)) == [
        Item("a", "Rome. A city.", {"title": "Rome", "year": 1}),
        Item("2", "x", {}),
    ]


@pytest.mark.parametrize(("id_name", "text_name"), [("id", "contents"), ("docno", "body"), ("doc_id", "passage")])
def test_usual_field_names_are_known(tmp_path, id_name, text_name) -> None:
    path = write(tmp_path / "items.jsonl", lines({id_name: "a", text_name: "A city."}))
    assert list(read_items(path)) == [Item("a", "A city.")]


def test_a_title_alone_is_text_enough(tmp_path) -> None:
    path = write(
        tmp_path / "items.jsonl", lines({"_id": "a", "title": "Rome", "text": ""}, {"_id": "b", "title": "Oslo"})
    )
    assert [item.text for item in read_items(path)] == ["Rome", "Oslo"]


def test_fields_can_be_named(tmp_path) -> None:
    path = write(tmp_path / "items.jsonl", lines({"sku": "a", "name": "Lamp", "blurb": "Bright.", "text": "no"}))
    (item,) = read_items(path, id_field="sku", text_fields=("name", "blurb"))
    assert item == Item("a", "Lamp. Bright.", {"text": "no"})


def test_tables_have_a_header(tmp_path) -> None:
    path = write(
        tmp_path / "items.csv",
        '\ufeffid,title,text,colour\na,Rome,"A city, ""eternal"".",red\n\nb,,Two\r\nlines,blue\n',
    )
    with pytest.raises(FileFormatError, match=r"line 4: 3 columns; expected 4"):
        list(read_items(path))
    path = write(
        tmp_path / "more.csv", '\ufeffid,title,text,colour\na,Rome,"A city, ""eternal"".",red\nb,,"Two\nlines",blue\n'
    )
    assert list(read_items(path)) == [
        Item("a", 'Rome. A city, "eternal".', {"title": "Rome", "colour": "red"}),
        Item("b", "Two\nlines", {"title": "", "colour": "blue"}),
    ]


def test_tabs_leave_quotation_marks_alone(tmp_path) -> None:
    path = write(tmp_path / "queries.tsv", 'qid\tquery\n1\t"who" is\n2\tsaid "so\n')
    assert list(read_queries(path)) == [Query("1", '"who" is'), Query("2", 'said "so')]


def test_tables_of_one_or_two_columns_need_no_header(tmp_path) -> None:
    assert list(read_queries(write(tmp_path / "two.tsv", "7\twho is it\n9\twhere\n"))) == [
        Query("7", "who is it"),
        Query("9", "where"),
    ]
    assert list(read_queries(write(tmp_path / "one.csv", "who is it\nwhere\n"))) == [
        Query("1", "who is it"),
        Query("2", "where"),
    ]


def test_plain_text_has_a_record_per_line_known_by_its_number(tmp_path) -> None:
    path = write(tmp_path / "queries.txt", "who\r\n\nwhere\n")
    assert list(read_queries(path)) == [Query("1", "who"), Query("3", "where")]
    assert list(read_items(path)) == [Item("1", "who"), Item("3", "where")]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_is_a_beir_folder(tmp_path, suffix) -> None:
    write(tmp_path / f"corpus.jsonl{suffix}", lines({"_id": "d", "title": "T", "text": "x"}))
    write(tmp_path / f"queries.jsonl{suffix}", lines({"_id": "q", "text": "y", "metadata": {}}))
    write(tmp_path / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore\nq\td\t2\n")
    write(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\nq\td\t1\n")
    assert list(read_items(tmp_path)) == [Item("d", "T. x", {"title": "T"})]
    assert list(read_queries(tmp_path)) == [Query("q", "y")]
    assert read_qrels(tmp_path) == {"q": {"d": 1}}


def test_records_are_read_one_by_one(tmp_path) -> None:
    path = write(tmp_path / "items.jsonl", lines({"_id": "a", "text": "x"}) + "broken\n")
    assert next(read_items(path)) == Item("a", "x")


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.jsonl", '{"_id": "a", "text": "x"}\n{', FileFormatError, r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", "[1]\n", FileFormatError, "line 1: each line is a JSON object; got list"),
        (
            "a.jsonl",
            '{"key": "a", "text": "x"}\n',
            FileFormatError,
            r"line 1: no id.*found 'key', 'text'.*id_field .--id-field",
        ),
        ("a.jsonl", '{"_id": null, "text": "x"}\n', FileFormatError, "field '_id' holds None"),
        ("a.jsonl", '{"_id": "a", "words": "x"}\n', FileFormatError, r"line 1: no text.*text_fields .--text-field"),
        ("a.jsonl", '{"_id": "a", "text": ["x"]}\n', FileFormatError, "field 'text' should be a text; it is a list"),
        ("a.jsonl", '{"_id": "a", "text": " "}\n', EmptyInput, "line 1: the record has no text"),
        ("a.jsonl", lines({"_id": 1, "text": "x"}, {"_id": "1", "text": "y"}), DuplicateId, "line 2: .*'1'.*line 1"),
        ("a.jsonl", "\n", EmptyInput, r"a\.jsonl is empty"),
        ("a.csv", "", EmptyInput, r"a\.csv is empty"),
        ("a.csv", "id,text\n", EmptyInput, r"a\.csv is empty"),
        ("a.csv", "ID,Text\n1,x\n", FileFormatError, "no id.*found 'ID', 'Text'"),
        ("a.csv", 'id,text\n1,"x\n', FileFormatError, "cannot be read"),
        ("a.txt", "", EmptyInput, r"a\.txt is empty"),
        ("a.xml", "<a/>", FileFormatError, r"ends in none of \.jsonl"),
    ],
)
def test_what_cannot_be_read_is_named_with_file_and_line(tmp_path, name, content, error, message) -> None:
    with pytest.raises(error, match=message):
        list(read_items(write(tmp_path / name, content)))


def test_a_missing_file_or_folder_is_named_before_anything_is_read(tmp_path) -> None:
    with pytest.raises(FileFormatError, match="There is no file"):
        read_items(tmp_path / "none.jsonl")
    with pytest.raises(FileFormatError, match=r"holds no queries\.jsonl"):
        read_queries(tmp_path)
    with pytest.raises(FileFormatError, match="found none"):
        read_qrels(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path) -> None:
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(FileFormatError, match="not UTF-8"):
        list(read_items(tmp_path / "latin.txt"))
    (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(b"word " * 1000)[:-12])
    with pytest.raises(FileFormatError, match="cannot be read"):
        list(read_items(tmp_path / "torn.txt.gz"))
    (tmp_path / "plain.txt.gz").write_bytes(b"word")
    with pytest.raises(FileFormatError, match="cannot be read"):
        list(read_items(tmp_path / "plain.txt.gz"))


def test_judgements_come_in_three_columns_or_in_trecs_four(tmp_path) -> None:
    assert read_qrels(write(tmp_path / "trec.txt", "q1 0 d1 2\nq1 0 d2 0\nq2 0 d1 1\n")) == {
        "q1": {"d1": 2, "d2": 0},
        "q2": {"d1": 1},
    }
    assert read_qrels(write(tmp_path / "bare.tsv", "q 1\td 1\t1\n")) == {"q 1": {"d 1": 1}}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("q\td\n", FileFormatError, "line 1: judgements have three columns"),
        ("q\td\t1\nq\te\tyes\n", FileFormatError, "line 2: a grade is a whole number; got 'yes'"),
        ("query-id\tcorpus-id\tscore\n", EmptyInput, "no judgements"),
    ],
)
def test_judgements_that_cannot_be_read_are_named(tmp_path, content, error, message) -> None:
    with pytest.raises(error, match=message):
        read_qrels(write(tmp_path / "qrels.tsv", content))


def test_among_several_splits_the_test_split_is_read(tmp_path) -> None:
    write(tmp_path / "qrels.train.tsv", "q\td\t1\n")
    write(tmp_path / "qrels.dev.tsv", "q\td\t1\n")
    with pytest.raises(FileFormatError, match=r"found qrels\.dev\.tsv, qrels\.train\.tsv"):
        read_qrels(tmp_path)
    write(tmp_path / "qrels.test.tsv", "q\te\t1\n")
    assert read_qrels(tmp_path) == {"q": {"e": 1}}


@pytest.mark.parametrize(
    ("name", "n_items", "n_judged"), [("scifact", 5183, 300), ("mondo", 27990, 60025), ("medquad", 15809, 16407)]
)
def test_real_collections_are_read(shared_folder, name, n_items, n_judged) -> None:
    ids = {item.id for item in read_items(shared_folder / "data" / name)}
    qrels = read_qrels(shared_folder / "data" / name)
    assert (len(ids), len(qrels)) == (n_items, n_judged)
    assert set(itertools.chain.from_iterable(qrels.values())) <= ids
    assert set(qrels) <= {query.id for query in read_queries(shared_folder / "data" / name)}


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_csv_of_another_country_is_read_by_its_header(tmp_path, sign) -> None:
    (tmp_path / "items.csv").write_text(sign.join(["id", "text"]) + "\n" + sign.join(["1", "alpha, beta"]) + "\n")
    assert [(item.id, item.text) for item in read_items(tmp_path / "items.csv")] == [("1", "alpha, beta")]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('1,"red; green; blue"\n2,"x"\n', ["red; green; blue", "x"]),
        ("Hello; world\nGood; bye\n", ["Hello; world", "Good; bye"]),
    ],
)
def test_semicolons_inside_texts_separate_nothing(tmp_path, content, texts) -> None:
    (tmp_path / "items.csv").write_text(content)
    assert [item.text for item in read_items(tmp_path / "items.csv")] == texts
