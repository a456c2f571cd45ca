"""Trees from text."""

from __future__ import annotations

import json

import pytest

import lanewise as lw
from lanewise.errors import RecordError
from lanewise.records import bracketed, conllu, nested

PTB = """
( (S (NP-SBJ (DT The) (NN cat))
     (VP (VBD sat)) (. .)) )
(X a)
"""


@lw.record
class Sentiment:
    label: int
    word: str
    left: Sentiment | None = None
    right: Sentiment | None = None


@lw.record
class Number:
    value: float


@lw.record
class Sum:
    terms: list[Number | Sum]


def test_penn_treebank() -> None:
    first, second = bracketed(PTB)
    assert [child.label for child in first.children] == ["NP-SBJ", "VP", "."]
    assert first.children[0].children[1].word == "cat" and first.word is None
    assert (second.label, second.word, second.children) == ("X", "a", [])
    forest = lw.pack(
        [first, second],
        codes={"label": hash_of, "word": {"The": 1, "cat": 2, "sat": 3, ".": 4, "a": 5}},
    )
    assert forest[0].children[1].children[0].word == 3
    assert forest[0].word is None


def hash_of(label: str) -> int:
    return sum(map(ord, label))


def test_sentiment_treebank() -> None:
    text = "(3 (2 It) (4 (2 's) (4 good)))\n(1 (1 bad) (2 .))"
    made = bracketed(text, lambda label, word, kids: Sentiment(int(label), word or "", *kids))
    assert [tree.label for tree in made] == [3, 1]
    assert made[0].right is not None and made[0].right.right is not None
    assert made[0].right.right.word == "good"
    assert int(lw.pack(made).size) == 8


@pytest.mark.parametrize(
    "text, message",
    [
        ("(S (NP a)\n(VP b", "line 2: this bracket is not closed"),
        ("(S a))", "line 1: a bracket is closed that was not opened"),
        ("(S a)\nb", "line 2: 'b' is outside of brackets"),
        ("(S ())", "line 1: these brackets are empty"),
        ("(S a (B b))", "has both words and children"),
    ],
)
def test_brackets_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        bracketed(text)


def rows(*lines: str) -> str:
    return "\n".join(line.replace(" ", "\t") for line in lines)


HEADER = "# text = the cat did not sit"
WORDS = [
    "1 the the DET _ _ 2 det _ _",
    "2 cat cat NOUN _ _ 5 nsubj _ _",
    "3-4 didn't _ _ _ _ _ _ _ _",
    "3 did do AUX _ _ 5 aux _ _",
    "4 not not PART _ _ 5 advmod _ _",
    "5 sit sit VERB _ _ 0 root _ _",
    "5.1 _ _ _ _ _ _ _ _ _",
]


def test_conllu() -> None:
    text = HEADER + "\n" + rows(*WORDS) + "\n\n" + rows("1 go go VERB _ _ 0 root _ _")
    one, other = conllu(text)
    assert [word.form for word in one.words] == ["the", "cat", "did", "not", "sit"]
    assert one.root.form == "sit" and [w.position for w in one.root.children] == [2, 3, 4]
    assert other.root.upos == "VERB"
    forest = lw.pack([one, other])
    assert len(forest[0].words) == 5 and forest[0].root.children[0].children[0].position == 1
    assert int(forest._store.counts[forest._store.schema.kind_of[lw.records.Word]]) == 6


@pytest.mark.parametrize(
    "text, message",
    [
        ("1\ta\ta", "line 1: 3 columns"),
        (rows("1 a a X _ _ 7 dep _ _"), "line 1: the head of 'a' is '7'"),
        (
            rows("1 a a X _ _ 0 root _ _", "2 b b X _ _ 0 root _ _"),
            "one root; this one has 'a', 'b'",
        ),
        (
            rows("1 a a X _ _ 2 d _ _", "2 b b X _ _ 1 d _ _", "3 c c X _ _ 0 root _ _"),
            "do not lead to its root",
        ),
    ],
)
def test_sentences_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        conllu(text)


def test_json() -> None:
    value = json.loads('{"terms": [{"value": 1.5}, {"terms": [{"value": 2.0}, {"terms": []}]}]}')
    made = nested(Number | Sum, value)
    assert made == Sum([Number(1.5), Sum([Number(2.0), Sum([])])])
    with pytest.raises(
        RecordError, match=r"value\.terms\[0\] is \[3\.0\], whose fields fit more than one of"
    ):
        nested(Sum, {"terms": [[3.0]]})
    with pytest.raises(
        RecordError, match=r"value\.terms\[0\] is \{'valeu': 1\}, whose fields fit none of"
    ):
        nested(Sum, {"terms": [{"valeu": 1}]})
