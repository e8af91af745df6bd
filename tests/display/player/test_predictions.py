"""Tutorials lock what follows a *Predict* question until the reader has answered."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
QUESTION, ANSWERED = "> **Predict.**", ("> **Predict.**", "#")


def questions_without_answers(text):
    """Lines of questions that nothing follows which could be locked, or that the script would not recognise."""
    blocks = [b for b in re.split(r"\n{2,}", re.sub(r"(?ms)^```.*?^```$", "CODE", text)) if b.strip()]
    return [block for block, then in zip(blocks, [*blocks[1:], "#"], strict=True) if "**Predict" in block
            and (not block.startswith(QUESTION) or then.startswith(ANSWERED))]


@pytest.mark.parametrize("path", sorted((ROOT / "tutorials").glob("[0-9]*.md")), ids=lambda p: p.stem)
def test_every_question_locks_its_answer(path):
    text = path.read_text()
    assert text.count(QUESTION) >= 2 and questions_without_answers(text) == []


def test_a_question_without_an_answer_is_noticed():
    assert questions_without_answers("> **Predict.** Why?\n\n## Next\n") == ["> **Predict.** Why?"]
    assert questions_without_answers("**Predict:** why?\n\nBecause.\n") == ["**Predict:** why?"]
