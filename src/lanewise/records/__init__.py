"""Recursive data: records in Python, packed into arrays that all lanes share.

`record` makes a class of records, `pack` turns a list of them into a `Forest`. A program takes a `Reference` to one of
them and reads its fields. Readers make records from text.
"""

from lanewise.records.forest import Forest
from lanewise.records.pack import pack
from lanewise.records.readers import Phrase, Sentence, Word, bracketed, conllu, nested
from lanewise.records.reference import Reference
from lanewise.records.schema import record

__all__ = [
    "Forest",
    "Phrase",
    "Reference",
    "Sentence",
    "Word",
    "bracketed",
    "conllu",
    "nested",
    "pack",
    "record",
]
