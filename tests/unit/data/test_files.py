from __future__ import annotations

import csv
import datetime
import gzip
import itertools
import json
import os
import sys
import tracemalloc
from pathlib import Path

import pytest

from adacur.data import DataWarning, read_items, read_qrels, read_queries
from adacur.errors import DuplicateId, EmptyInput, FileFormatError, MissingExtra
from adacur.records import Item, Query


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


def test_fields_can_be_named(tmp_path) -> None:
    path = write(tmp_path / "items.jsonl", lines({"sku": "a", "name": "Lamp", "blurb": "Bright.", "text": "no"}))
    (item,) = read_items(path, id_field="sku", text_fields=("name", "blurb"))
    assert item == Item("a", "Lamp. Bright.", {"text": "no"})


def test_tables_have_a_header(tmp_path) -> None:
    path = write(
        tmp_path / "items.csv",
        '\ufeffid,title,text,colour\na,Rome,"A city, ""eternal"".",red\n\nb,,Two\r\nlines,blue\n',
    )
    with pytest.raises(FileFormatError):
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


def test_a_first_line_that_names_no_column_is_never_an_item(tmp_path) -> None:
    for name, content in {
        "two.csv": "headline,summary\nRome,A city.\n",
        "two.tsv": "headline\tsummary\nRome\tA city.\n",
        "three.csv": "ref,headline,summary\n1,Rome,A city.\n",
        "pandas.csv": "0,1\n7,A city.\n",
        "one.csv": "headline\nRome\n",
    }.items():
        with pytest.raises(FileFormatError):
            list(read_items(write(tmp_path / name, content)))


def test_columns_are_known_in_upper_case_too(tmp_path) -> None:
    path = write(tmp_path / "sheet.csv", "ID,Title,Text,Colour\n1,Rome,A city.,red\n")
    assert list(read_items(path)) == [Item("1", "Rome. A city.", {"title": "Rome", "Colour": "red"})]
    path = write(tmp_path / "tickets.csv", "Ticket;Subject;Body\n1;Hinge;It broke.\n")
    for names in (("Ticket", "Subject", "Body"), ("ticket", "subject", "body")):
        (item,) = read_items(path, id_field=names[0], text_fields=names[1:])
        assert (item.id, item.text) == ("1", "Hinge. It broke.")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "headline,summary\nRome,A city.\nOslo,Another.\n"),
        (
            "a.jsonl",
            lines({}, {"headline": "Rome", "summary": "A city."}, {"headline": "Oslo", "summary": "Another."})[3:],
        ),
    ],
)
def test_lines_are_numbered_where_the_text_is_named_and_no_id_is_there(tmp_path, name, content) -> None:
    path = write(tmp_path / name, content)
    with pytest.warns(DataWarning):
        items = list(read_items(path, text_fields=["summary"]))
    first = 2 if name == "a.csv" else 1
    assert [(item.id, item.text) for item in items] == [(str(first), "A city."), (str(first + 1), "Another.")]
    with pytest.raises(FileFormatError):
        list(read_items(path, id_field="headline", text_fields=["sumary"]))


@pytest.mark.parametrize("rows", [({"text": "x"}, {"id": 7, "text": "y"}), ({"id": 7, "text": "y"}, {"text": "x"})])
def test_records_with_and_without_an_id_are_refused_at_the_first_that_differs(tmp_path, rows) -> None:
    with pytest.raises(FileFormatError):
        list(read_items(write(tmp_path / "a.jsonl", lines(*rows))))


def test_texts_alone_are_numbered(tmp_path) -> None:
    assert list(read_items(write(tmp_path / "a.jsonl", lines({"text": "A city."})))) == [Item("1", "A city.")]
    with pytest.warns(DataWarning):
        assert [item.id for item in read_items(write(tmp_path / "a.csv", "title,text\nRome,A city.\n"))] == ["2"]


def test_items_without_a_word_are_left_out_and_told_at_the_end(tmp_path) -> None:
    rows = [{"_id": n, "title": " ", "text": "" if n % 2 else "word"} for n in range(14)]
    path = write(tmp_path / "items.jsonl", lines(*rows))
    with pytest.warns(DataWarning):
        assert [item.id for item in read_items(path)] == [str(n) for n in range(0, 14, 2)]
    with pytest.warns(DataWarning):
        assert [item.id for item in read_items(path, limit=2)] == ["0", "2"]
    with pytest.raises(EmptyInput):
        list(read_items(write(tmp_path / "none.jsonl", lines({"_id": "a", "text": ""}, {"_id": "b", "text": None}))))
    queries = write(tmp_path / "queries.jsonl", lines({"_id": "a", "text": "who"}, {"_id": "b", "text": ""}))
    with pytest.warns(DataWarning):
        assert list(read_queries(queries)) == [Query("a", "who")]


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("shells .", "shells . Bent."),
        ("Who?", "Who? Bent."),
        ("Shells", "Shells. Bent."),
        ("Shells ", "Shells. Bent."),
        ("", "Bent."),
    ],
)
def test_a_title_that_ends_as_a_sentence_gets_no_second_stop(tmp_path, title, text) -> None:
    path = write(tmp_path / "items.jsonl", lines({"_id": "a", "title": title, "text": "Bent."}))
    assert [item.text for item in read_items(path)] == [text]


def test_an_array_of_objects_is_read_from_a_json_file(tmp_path) -> None:
    rows = [{"_id": "a", "text": "A city."}, {"_id": "b", "text": "Another."}]
    expected = [Item("a", "A city."), Item("b", "Another.")]
    assert list(read_items(write(tmp_path / "a.json", json.dumps(rows, indent=2)))) == expected
    assert list(read_items(write(tmp_path / "b.json", lines(*rows)))) == expected
    with pytest.raises(FileFormatError):
        list(read_items(write(tmp_path / "c.json", "\n[1]")))


def test_a_parquet_file_is_read_where_pyarrow_is(tmp_path, monkeypatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": 7, "text": "A city.", "when": datetime.date(2026, 1, 2)}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert list(read_items(tmp_path / "a.parquet")) == [Item("7", "A city.", {"when": "2026-01-02"})]
    with pytest.raises(FileFormatError):
        list(read_items(write(tmp_path / "b.parquet", "nothing of the kind")))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra):
        list(read_items(tmp_path / "a.parquet"))


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
    ("name", "content", "error", "line"),
    [
        ("a.jsonl", '{"_id": "a", "text": "x"}\n{', FileFormatError, 2),
        ("a.jsonl", "[" * 200_000 + "\n", FileFormatError, 1),
        ("a.json", "[" * 200_000, FileFormatError, None),
        ("a.jsonl", "[1]\n", FileFormatError, 1),
        ("a.jsonl", '{"key": "a", "text": "x"}\n', FileFormatError, 1),
        ("a.jsonl", '{"_id": null, "text": "x"}\n', FileFormatError, 1),
        ("a.jsonl", '{"_id": "a", "words": "x"}\n', FileFormatError, 1),
        ("a.jsonl", '{"_id": "a", "text": ["x"]}\n', FileFormatError, 1),
        ("a.jsonl", '{"_id": "a", "text": " "}\n', EmptyInput, None),
        ("a.jsonl", lines({"_id": 1, "text": "x"}, {"_id": "1", "text": "y"}), DuplicateId, 2),
        ("a.csv", "id,text\n", EmptyInput, None),
        ("a.csv", "ref,text\n1,x\n", FileFormatError, None),
        ("a.csv", 'id,text\n1,"x\n', FileFormatError, None),
        ("a.txt", "", EmptyInput, None),
        ("a.xml", "<a/>", FileFormatError, None),
    ],
)
def test_what_cannot_be_read_is_named_with_file_and_line(tmp_path, name, content, error, line) -> None:
    with pytest.raises(error) as refused:
        list(read_items(write(tmp_path / name, content)))
    assert f"{tmp_path / name}{'' if line is None else f', line {line}'}" in str(refused.value)


def test_a_missing_file_or_folder_is_named_before_anything_is_read(tmp_path) -> None:
    with pytest.raises(FileFormatError):
        read_items(tmp_path / "none.jsonl")
    with pytest.raises(FileFormatError):
        read_queries(tmp_path)
    with pytest.raises(FileFormatError):
        read_qrels(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path) -> None:
    (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(b"word " * 1000)[:-12])
    with pytest.raises(FileFormatError):
        list(read_items(tmp_path / "torn.txt.gz"))
    (tmp_path / "plain.txt.gz").write_bytes(b"word")
    with pytest.raises(FileFormatError):
        list(read_items(tmp_path / "plain.txt.gz"))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bytes_that_are_not_utf8_are_told_with_the_command_that_converts_them(tmp_path, suffix) -> None:
    path = tmp_path / f"latin.jsonl{suffix}"
    bad = '{"_id": "x", "text": "caf\xe9"}\n'.encode("latin-1")
    path.write_bytes(gzip.compress(bad) if suffix else bad)
    with pytest.raises(FileFormatError):
        list(read_items(path))
    (tmp_path / "excel.csv").write_bytes("id,text\n1,caf\xe9\n".encode("utf-16"))
    with pytest.raises(FileFormatError):
        list(read_items(tmp_path / "excel.csv"))


def test_judgements_come_in_three_columns_or_in_trecs_four(tmp_path) -> None:
    assert read_qrels(write(tmp_path / "trec.txt", "q1 0 d1 2\nq1 0 d2 0\nq2 0 d1 1\n")) == {
        "q1": {"d1": 2, "d2": 0},
        "q2": {"d1": 1},
    }
    assert read_qrels(write(tmp_path / "bare.tsv", "q 1\td 1\t1\n")) == {"q 1": {"d 1": 1}}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("q\td\n", FileFormatError),
        ("q\td\t1\nq\te\tyes\n", FileFormatError),
        ("query-id\tcorpus-id\tscore\n", EmptyInput),
    ],
)
def test_judgements_that_cannot_be_read_are_refused(tmp_path, content, error) -> None:
    with pytest.raises(error):
        read_qrels(write(tmp_path / "qrels.tsv", content))


def test_among_several_splits_the_test_split_is_read(tmp_path) -> None:
    write(tmp_path / "qrels.train.tsv", "q\td\t1\n")
    write(tmp_path / "qrels.dev.tsv", "q\td\t1\n")
    with pytest.raises(FileFormatError):
        read_qrels(tmp_path)
    write(tmp_path / "qrels.test.tsv", "q\te\t1\n")
    assert read_qrels(tmp_path) == {"q": {"e": 1}}


@pytest.mark.parametrize(("name", "n_items", "n_judged"), [("scifact", 5183, 300), ("medquad", 15809, 16407)])
def test_real_collections_are_read(shared_folder, name, n_items, n_judged) -> None:
    ids = {item.id for item in read_items(shared_folder / "data" / name)}
    qrels = read_qrels(shared_folder / "data" / name)
    assert (len(ids), len(qrels)) == (n_items, n_judged)
    assert set(itertools.chain.from_iterable(qrels.values())) <= ids
    assert set(qrels) <= {query.id for query in read_queries(shared_folder / "data" / name)}


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('id,text\n1,"red; green; blue"\n2,"x"\n', ["red; green; blue", "x"]),
        ("text\nHello; world\nGood; bye\n", ["Hello; world", "Good; bye"]),
    ],
)
def test_semicolons_inside_texts_separate_nothing(tmp_path, content, texts) -> None:
    (tmp_path / "items.csv").write_text(content)
    assert [item.text for item in read_items(tmp_path / "items.csv")] == texts


@pytest.mark.parametrize(("name", "sign"), [("a.csv", ";"), ("a.csv", "|"), ("a.csv", "\t"), ("a.tsv", ";")])
def test_unknown_columns_are_told_apart_whatever_separates_them(tmp_path, name, sign) -> None:
    header = ["Artikelnr", "Betreff", "Loesung", "Bereich"]
    path = write(tmp_path / name, f"{sign.join(header)}\n{sign.join(['7', 'Hinge', 'Turn, then pull.', 'Doors'])}\n")
    with pytest.raises(FileFormatError):
        list(read_items(path))
    with pytest.raises(FileFormatError):
        list(read_items(path, id_field="Artikelnr", text_fields=["Losung"]))
    (item,) = read_items(path, id_field="Artikelnr", text_fields=["Loesung"])
    assert (item.id, item.text) == ("7", "Turn, then pull.")


@pytest.mark.parametrize("bad", [{"_id": "\ud800", "text": "word"}, {"_id": "b", "text": "half \udfff"}])
@pytest.mark.parametrize("read", [read_items, read_queries])
def test_half_a_surrogate_pair_is_refused_with_its_line(tmp_path, bad, read) -> None:
    path = write(tmp_path / "some.jsonl", lines({"_id": "a", "text": "word"}, bad))
    with pytest.raises(FileFormatError) as refused:
        list(read(path))
    assert f"{path}, line 2" in str(refused.value)


@pytest.mark.parametrize("name", ["items.jsonl", "items.json", "items.csv", "items.txt", "items.jsonl.gz"])
def test_a_line_too_long_for_the_memory_is_refused(tmp_path, monkeypatch, name) -> None:
    monkeypatch.setattr("adacur.data.file_rows.LONGEST_LINE", 100)
    path = write(tmp_path / name, "\n" + "\0" * 101)
    for read in (read_items, read_qrels):
        with pytest.raises(FileFormatError) as refused:
            list(read(path))
        assert f"{path}, line 2" in str(refused.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have names on POSIX only")
def test_what_is_no_file_is_never_waited_for(tmp_path) -> None:
    folder = tmp_path / "pipes"
    folder.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv"):
        os.mkfifo(folder / name)
    for path in (folder, folder / "corpus.jsonl", Path(os.devnull)):
        for read in (read_items, read_queries, read_qrels):
            with pytest.raises(FileFormatError):
                list(read(path))


def test_a_cell_or_an_array_without_end_is_refused_and_blank_lines_take_no_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("adacur.data.file_rows._LONGEST_CELL", 100)
    monkeypatch.setattr("adacur.data.file_rows._LONGEST_ARRAY", 100)
    (tmp_path / "cell.csv").write_text('id,text\na,"' + "word\n" * 100)
    before = csv.field_size_limit()
    with pytest.raises(FileFormatError):
        list(read_items(tmp_path / "cell.csv"))
    csv.field_size_limit(before)
    (tmp_path / "array.json").write_text("[\n" + " \n" * 100)
    with pytest.raises(FileFormatError):
        list(read_items(tmp_path / "array.json"))
    (tmp_path / "blank.csv").write_text("\n" * 1_000_000 + "id,text\na,b\n\nc\n")
    tracemalloc.start()
    with pytest.raises(FileFormatError):
        list(read_items(tmp_path / "blank.csv"))
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
