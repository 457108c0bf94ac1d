"""The site's search, nearly: which page it shows first.

The browser searches `search_index.json` with lunr. This ranks the same sections by the same rule, without its small
print. A word of the query matches each word that begins with it, both without English endings. BM25 is summed over the
title and the text, and a title counts 1,000 times the text. A page with more of the words goes before others, and so
does one with a boost of the site.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FIELDS = (("title", 1000.0), ("text", 1.0))
K1, B = 1.2, 0.75
"""lunr's."""
ENDINGS = ("ing", "ies", "ed", "es", "s", "e")
STOP_WORDS = set(
    "a about also am among an and any are as at be been but by can did do does either for from get has have how i if"
    " in into is it its just may me most must my no not of off on only or other our own say since so some than that the"
    " their them then there these they this to us was we were what when where which while who why will with would"
    " you your".split()
)


def stem(word: str) -> str:
    """A word without its ending."""
    ending = next((each for each in ENDINGS if word.endswith(each) and len(word) - len(each) >= 3), "")
    return word.removesuffix(ending)


@dataclass(frozen=True)
class Section:
    """A section of a page, or the page itself before its first one."""

    location: str
    boost: float
    words: dict[str, Counter[str]]


class SiteSearch:
    """The search over the index that MkDocs wrote."""

    def __init__(self, index: dict[str, Any]) -> None:
        self._separator = re.compile(index["config"]["separator"])
        self._sections = [
            Section(
                each["location"], each.get("boost", 1), {name: Counter(self._words(each[name])) for name, _ in FIELDS}
            )
            for each in index["docs"]
        ]
        self._mean = {
            name: sum(each.words[name].total() for each in self._sections) / len(self._sections) for name, _ in FIELDS
        }
        self._having = Counter(word for each in self._sections for word in set().union(*each.words.values()))

    def pages(self, query: str) -> list[str]:
        """Pages by their best section, the first first."""
        terms = list(self._words(query))
        best: dict[str, float] = {}
        for section in self._sections:
            page, hash_, _ = section.location.partition("#")
            scores = [self._score(section, term) for term in terms]
            has = sum(score > 0 for score in scores) / len(terms) + (not hash_)
            best[page] = max(best.get(page, 0.0), sum(scores) * section.boost * (1 + has**2))
        return sorted((page for page in best if best[page]), key=lambda page: -best[page])

    def _words(self, text: str) -> Iterator[str]:
        plain = html.unescape(re.sub(r"<[^>]+>", " ", text))
        words = (word.lower() for word in self._separator.split(plain) if word)
        return (stem(word) for word in words if word not in STOP_WORDS)

    def _score(self, section: Section, term: str) -> float:
        score = 0.0
        for name, boost in FIELDS:
            counts = section.words[name]
            length = 1 - B + B * counts.total() / self._mean[name]
            for word, count in counts.items():
                if word.startswith(term):
                    rare = math.log(1 + (len(self._sections) - self._having[word] + 0.5) / (self._having[word] + 0.5))
                    score += boost * rare * count * (K1 + 1) / (count + K1 * length)
        return score
