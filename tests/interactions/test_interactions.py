"""Stories: commands and the traces that they give.  `pytest --rewrite` writes the files again; review the
difference."""

from pathlib import Path

import pytest

from tests.interactions.player import play

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_interaction(path, request):
    text = path.read_text()
    played = play(text)
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    else:
        assert played == text


def test_a_story_that_is_no_longer_true_is_caught():
    text = FILES[0].read_text()
    assert play(text.replace("version=0", "version=5")) != text.replace("version=0", "version=5")


def test_an_impossible_command_is_named():
    with pytest.raises(ValueError,
                       match="deliver server0 worker0.*not possible now; expected one of deliver worker0 -> "
                             "server0"):
        play("Prose.\n\ndeploy asp workers=2 steps=1\n\ndeliver server0 worker0\n")
