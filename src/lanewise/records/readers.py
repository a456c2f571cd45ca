"""Trees from text: brackets (Penn Treebank, Stanford Sentiment Treebank), CoNLL-U, and nested tuples or JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lanewise.core.errors import RecordError
from lanewise.records.schema import Field, is_record, record, schema_of


@record
class Phrase:
    """A node of a bracketed tree: `(label word)` or `(label child child ...)`."""

    label: str
    word: str | None
    children: list[Phrase]


@record
class Word:
    """A word of a sentence and its dependents, in their order. `position` counts from 1, as in CoNLL-U."""

    position: int
    form: str
    lemma: str
    upos: str
    deprel: str
    children: list[Word]


@record
class Sentence:
    """A sentence: its words in order, and the one that is the root of its dependency tree."""

    words: list[Word]
    root: Word


def bracketed(text: str, make: Callable[[str, str | None, list[Any]], Any] = Phrase) -> list[Any]:
    """The trees of a text of brackets, as PTB and SST have them.

    `make(label, word, children)` makes a node, whose children come first; `word` is None where there are children.
    Brackets without a label around a tree, as in the PTB's files, are left out.

    >>> (tree,) = bracketed("( (S (NP the cat) (VP sat)) )")
    >>> tree.label, tree.children[1].label, tree.children[1].word
    ('S', 'VP', 'sat')
    >>> bracketed("(3 (2 good) (2 film))", lambda label, word, kids: (int(label), word, *kids))
    [(3, None, (2, 'good'), (2, 'film'))]
    """
    trees: list[Any] = []
    # For each bracket that is open: its label, its words, its children, and where it is.
    open_: list[tuple[list[str], list[Any], int]] = []
    for found in re.finditer(r"[()]|[^\s()]+", text):
        token, at = found.group(), found.start()
        if token == "(":
            open_.append(([], [], at))
        elif token != ")":
            if not open_:
                raise RecordError(f"{_line(text, at)}: {token!r} is outside of brackets.")
            open_[-1][0].append(token)
        else:
            if not open_:
                raise RecordError(f"{_line(text, at)}: a bracket is closed that was not opened.")
            words, children, begun = open_.pop()
            for node in _nodes(words, children, make, text, begun):
                (open_[-1][1] if open_ else trees).append(node)
    if open_:
        raise RecordError(f"{_line(text, open_[-1][2])}: this bracket is not closed.")
    return trees


def _nodes(
    words: list[str], children: list[Any], make: Callable[..., Any], text: str, at: int
) -> Iterator[Any]:
    if not words:
        if not children:
            raise RecordError(f"{_line(text, at)}: these brackets are empty.")
        yield from children
    elif children and len(words) > 1:
        raise RecordError(
            f"{_line(text, at)}: ({' '.join(words)} ...) has both words and children."
        )
    else:
        yield make(words[0], " ".join(words[1:]) or None, children)


def _line(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}"


def conllu(text: str) -> list[Sentence]:
    """The sentences of a text in CoNLL-U. Ranges of words (`3-4`) and empty nodes (`3.1`) are left out.

    >>> rows = ["1 the the DET _ _ 2 det _ _", "2 cat cat NOUN _ _ 3 nsubj _ _", "3 sat sit VERB _ _ 0 root _ _"]
    >>> (sentence,) = conllu("\\n".join(row.replace(" ", "\\t") for row in rows))
    >>> sentence.root.form, [word.form for word in sentence.root.children]
    ('sat', ['cat'])
    """
    found: list[Sentence] = []
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip() and not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) != 10:
                raise RecordError(
                    f"line {number}: {len(columns)} columns; CoNLL-U has 10, by tabs."
                )
            if columns[0].isdigit():
                rows.append((number, columns))
        elif not line.strip() and rows:
            found.append(_sentence(rows))
            rows = []
    return found


def _sentence(rows: Sequence[tuple[int, list[str]]]) -> Sentence:
    words = {row[0]: Word(int(row[0]), row[1], row[2], row[3], row[7], []) for _, row in rows}
    roots: list[Word] = []
    for number, row in rows:
        word, head = words[row[0]], row[6]
        if head == "0":
            roots.append(word)
        elif head in words:
            words[head].children.append(word)
        else:
            raise RecordError(
                f"line {number}: the head of {word.form!r} is {head!r}, which is no word."
            )
    if len(roots) != 1:
        found = ", ".join(repr(word.form) for word in roots) or "none"
        raise RecordError(f"line {rows[0][0]}: a sentence has one root; this one has {found}.")
    reached, left = 0, list(roots)
    while left:
        reached += 1
        left.extend(left.pop().children)
    if reached < len(words):
        raise RecordError(
            f"line {rows[0][0]}: some words of this sentence do not lead to its root."
        )
    return Sentence(list(words.values()), roots[0])


def nested(cls: Any, value: Any) -> Any:
    """A record made of nested tuples, lists and dicts, as `json.loads` gives them.

    A dict has a field for each key; a tuple or list has the fields in order. Where a field may be of several classes,
    the class whose fields fit is taken.

    >>> import lanewise as lw
    >>> @lw.record
    ... class Pair:
    ...     label: int
    ...     left: "Pair | None" = None
    ...     right: "Pair | None" = None
    >>> nested(Pair, {"label": 1, "left": {"label": 2}}).left.label
    2
    >>> nested(Pair, (1, None, (3, (4,)))).right.left
    Pair(label=4, left=None, right=None)
    """
    classes = cls if isinstance(cls, tuple) else getattr(cls, "__args__", None) or (cls,)
    classes = tuple(each for each in classes if each is not type(None))
    schema = schema_of(classes)

    def build(value: Any, classes: Sequence[type], path: str) -> Any:
        if value is None or is_record(type(value)):
            return value
        fitting = [each for each in classes if _fits(each, value)]
        if len(fitting) != 1:
            names = " | ".join(each.__name__ for each in classes)
            why = "more than one of" if fitting else "none of" if len(classes) > 1 else "not"
            raise RecordError(f"{path} is {value!r:.60}, whose fields fit {why} {names}.")
        (chosen,) = fitting
        fields = {f.name: f for f in schema.kinds[schema.kind_of[chosen]].fields_of(chosen)}
        names = [f.name for f in dataclasses.fields(chosen)]
        items = value.items() if isinstance(value, Mapping) else zip(names, value)
        return chosen(**{name: part(x, fields[name], f"{path}.{name}") for name, x in items})

    def part(value: Any, field: Field, path: str) -> Any:
        if field.what == "one":
            return build(value, field.classes, path)
        if field.item is None or field.item.what != "one" or value is None:
            return value
        classes = field.item.classes
        return [build(x, classes, f"{path}[{i}]") for i, x in enumerate(value)]

    return build(value, classes, "value")


def _fits(cls: type, value: Any) -> bool:
    names = [f.name for f in dataclasses.fields(cls)]
    needed = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if isinstance(value, Mapping):
        return set(value) <= set(names) and needed <= set(value)
    if isinstance(value, list | tuple):
        return len(needed) <= len(value) <= len(names) and needed <= set(names[: len(value)])
    return False
