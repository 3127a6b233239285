"""Check the prose of all pages: sentence length, semicolons, negations, clauses as subjects, private terms.

`python docs/prose.py` checks docs/, results/README.md and the pages at the top of the repository. It exits with 1 if a
page breaks a rule.
`python docs/prose.py --all` shows the numbers of every page. Code and quoted output are left out. Headings and tables
are searched for private terms only.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_SEMICOLONS = 5.0  # per 100 sentences, as are the negations
MAX_NEGATIONS = 5.0
MAX_MEAN_WORDS = 20.0
MAX_SENTENCE_WORDS = 45

NEGATION = re.compile(r"\b(?:is no|are no|was no|were no|nobody|none|whoever|no one)\b(?!\s+longer)", re.IGNORECASE)
CLAUSE = re.compile(r"(?:What|Who|Whoever|Whatever)(?: [^\s?:]+){5,}[.]$")  # as a subject. Shorter ones are titles
PRIVATE_TERMS = {
    r"arms?\b(?! in)": "configuration or variant",
    r"lesion(?:s|ed|ing)?": "ablation, ablated",
    r"diar(?:y|ies)": "metrics log",
    r"(?:plain )?twins?": "backbone only, backbone + replay, A/A repeat or reference implementation",
    r"rings?": "recency buffer",
    r"rehears(?:e|es|ed|al|als|ing)": "trial run (in the literature rehearsal means replay)",
    r"(?:sources? of|all|draws?) chance|chance (?:comes|arrives|is)": "randomness or RNG",
    r"(?:the|a) gate (?:fails|passes|is judged|judges|holds)": "acceptance check",
    r"forgetting area|the area\b": "forgetting (AUFC)",
    r"battery": "checks",
    r"fence": "state check",
    r"siege": "kill test",
    r"wish(?:es)?": "request",
    r"ledgers?": "table of claims",
    r"anew": "again",
    r"learnt": "learned",
}


@dataclass(frozen=True)
class Prose:
    """The sentences of one page, and what is counted in them."""

    sentences: list[str]

    @property
    def mean_words(self) -> float:
        return sum(len(sentence.split()) for sentence in self.sentences) / max(1, len(self.sentences))

    def per_hundred(self, pattern: str | re.Pattern[str]) -> float:
        return 100 * sum(len(re.findall(pattern, one)) for one in self.sentences) / max(1, len(self.sentences))


def read(text: str) -> Prose:
    """The sentences of a page, with inline code as one word."""
    text = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|<[^>\n]+>", "", text, flags=re.DOTALL)
    blocks: list[str] = []
    for line in text.splitlines():
        line = line.strip()
        is_prose = line and not line.startswith(("#", "|", ":::", "--8<--", "!["))
        starts_item = re.match(r"(?:[-*>]|\d+\.)\s+", line)
        if not is_prose:
            blocks.append("")
        elif starts_item or not blocks or not blocks[-1]:
            blocks.append(re.sub(r"^(?:[-*>]|\d+\.)\s+", "", line))
        else:
            blocks[-1] += " " + line
    sentences = []
    for block in blocks:
        block = re.sub(r"`[^`]*`", "CODE", block)
        block = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block).replace("**", "")
        block = re.sub(r"\b(e\.g|i\.e|vs|Fig|Eq)\.", r"\1", block)
        sentences += [part.strip() for part in re.split(r"(?<=[.!?:])[\"”)*_]*\s+(?=[\"“(*_]*[A-ZΑ-Ωλρ0-9])", block)]
    return Prose([sentence for sentence in sentences if len(sentence.split()) > 1])


def without_code(text: str) -> str:
    """The page without code, addresses and comments, as searched for private terms."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->|<[^>\n]+>|`[^`\n]*`|\]\([^)\n]*\)", "", text, flags=re.DOTALL)


def problems(path: str, text: str) -> list[str]:
    prose = read(text)
    semicolons, negations = prose.per_hundred(";"), prose.per_hundred(NEGATION)
    found = []
    if semicolons > MAX_SEMICOLONS:
        found.append(f"{path}: {semicolons:.1f} semicolons per 100 sentences, at most {MAX_SEMICOLONS:g}: split them")
    if negations > MAX_NEGATIONS:
        shown = ", ".join(sorted({hit.lower() for one in prose.sentences for hit in NEGATION.findall(one)}))
        found.append(
            f"{path}: {negations:.1f} of '{shown}' per 100 sentences, at most {MAX_NEGATIONS:g}: write 'is not'"
        )
    if prose.mean_words > MAX_MEAN_WORDS:
        found.append(
            f"{path}: {prose.mean_words:.1f} words in a mean sentence, at most {MAX_MEAN_WORDS:g}: split the longest"
        )
    for sentence in prose.sentences:
        if CLAUSE.match(sentence):
            found.append(f"{path}: begin with the thing itself instead of '{sentence.split()[0]}': {sentence[:80]}")
        if len(sentence.split()) > MAX_SENTENCE_WORDS:
            found.append(f"{path}: {len(sentence.split())} words in one sentence: {sentence[:80]}…")
    for line in without_code(text).splitlines():
        for term, instead in PRIVATE_TERMS.items():
            if hit := re.search(rf"\b(?:{term})\b", line, re.IGNORECASE):
                around = line[max(0, hit.start() - 40) : hit.end() + 40].strip()
                found.append(f"{path}: write {instead} instead of '{hit.group()}': {around}")
    return found


def pages() -> list[str]:
    """Every page, as a path from the top of the repository."""
    paths = [*sorted(ROOT.glob("*.md")), ROOT / "results" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def main(arguments: list[str]) -> int:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    if arguments == ["--all"]:
        for page, text in texts.items():
            prose = read(text)
            print(
                f"{prose.mean_words:5.1f} words, {prose.per_hundred(';'):5.1f} semicolons, "
                f"{prose.per_hundred(NEGATION):5.1f} negations, {len(problems(page, text)):3d} problems  "
                f"{page}"
            )
        return 0
    wanted = arguments or pages()
    missing = [page for page in wanted if page not in texts]
    found = [f"{page}: there is no such page" for page in missing]
    found += [problem for page in wanted if page in texts for problem in problems(page, texts[page])]
    print("\n".join(found) or f"prose: {len(wanted)} pages pass")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
