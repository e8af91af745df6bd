"""Sizes have bounds, counts check something, numbers are numbers, lists name each thing once."""

import pytest

from refsgd.cli import main
from refsgd.display.player.stepper import Stepper
from refsgd.experiment.prepare import Usage, prepare
from refsgd.experiment.sweep import parse_range

QUADRATIC = "--data quadratic"


@pytest.mark.parametrize(("command", "reason"), [
    (f"run bsp {QUADRATIC} --workers 1000000000", "workers 1000000000; expected at most 10000"),
    (f"run bsp {QUADRATIC} --servers 1000000000", "servers 1000000000; expected at most 10000"),
    (f"run bsp {QUADRATIC} --steps 99999999999999999999", "steps 99999999999999999999; expected at most 1000000000"),
    (f"run bsp {QUADRATIC} --epochs 99999999999999999999", "epochs 1e+20 of 100 steps; expected at most 1000000000 steps"),
    (f"run bsp {QUADRATIC} --epochs 1e300", "epochs 1e+300 of 100 steps"),
    ("run bsp --batch 99999999999999999999", "batch 99999999999999999999; expected at most"),
    ("run bsp --net shapes:99999999999999999999", "at most 10**12"),
    ("run bsp --net mlp:999999999", "expected at most 2,147,483,648"),
    ("run bsp --data lasso:1e12,10,0", "10**8 numbers"),
    ("run bsp --layout chunks:1 --net shapes:100000000", "at most 100000 parts"),
    (f"run allreduce {QUADRATIC} --collective rings --rings 1000000000", "rings 1000000000; expected at most"),
    (f"run hogwild {QUADRATIC} --parts 1000000000", "parts 1000000000; expected at most"),
    ("explore bsp --steps 1000000000", "expected at most 1000 of each"),
    ("explore bsp --workers 100000000", "workers 100000000; expected at most"),
    ("explore bsp --walks 1000000000000", "walks 1000000000000; expected at most"),
    ("explore bsp --walks 0", "walks 0; expected at least 1"), ("explore bsp --walks -3", "walks -3; expected at least 1"),
    ("explore bsp --max-runs 0", "max_runs 0; expected at least 1"),
    ("predict bsp --sweep workers=1:1e9", "expected at most 10000"),
    ("predict bsp --sweep workers=1:1e9:1", "more than 1000 values"),
    ("predict bsp --sweep batch=1:1e15", "expected at most 1000000000"),
    ("machine laptop --workers 1000000000", "workers 1000000000; expected at most"),
    ("advise --parameters 1 --flops 1 --rate 1 --workers 1000000000", "workers 1000000000; expected at most"),
    (f"run bsp {QUADRATIC} --slow 0=0.5,0=0.6", "worker 0 has two speeds"),
    (f"run bsp {QUADRATIC} --slow 0=0.5 --slow worker0=0.6", "worker 0 has two speeds"),
    (f"run bsp {QUADRATIC} --load worker0:2@0;worker0:3@1", "worker0 is named twice"),
    (f"run bsp {QUADRATIC} --validation nan", "validation nan; expected a share in [0, 1)"),
    ("advise --net resnet50 --compute 1s --image nan", "--image nan; expected height, width and channels"),
    ("advise --net resnet50 --compute 1s --image 224,inf,3", "--image 224,inf,3; expected height"),
    ("advise --parameters 9 --flops 9 --rate 9 --image 8,8,1", "--image 8,8,1 without --net")])
def test_what_has_no_end_checks_nothing_or_is_no_number_is_refused(command, reason, capsys):
    code, err = main(command.split()), capsys.readouterr().err
    assert code == 2 and reason in err and err.count("\n") == 1, err


def test_python_has_the_same_bounds():
    with pytest.raises(Usage, match="at most 10000"):
        Stepper("bsp", workers=10**8)
    with pytest.raises(Usage, match="random 1000000000 seed 1"):
        from refsgd.experiment.run import run
        run("bsp", data="quadratic", steps=2, faults=["random 1000000000 seed 1"])
    with pytest.raises(Usage, match="lr appears twice"):
        from refsgd.experiment.compare import compare
        compare("bsp lr=0.1 lr=0.2", data="quadratic")


@pytest.mark.parametrize("flag", ["--lr", "--momentum", "--weight-decay", "--epochs", "--slow-motion", "--latency",
                                  "--compute", "--update", "--reduction", "--codec", "--speeds", "--checkpoint-every"])
def test_nan_is_no_number(flag, capsys):
    assert main(["run", "bsp", "--data", "quadratic", f"{flag}=nan"]) == 2
    err = capsys.readouterr().err
    assert "nan" in err and "expected" in err and err.count("\n") == 1


def test_the_largest_sizes_are_accepted():
    assert len(parse_range("workers=1:1000:1")[1]) == 1000
    assert prepare("downpour", data="quadratic", steps=10**9, push_every=7).steps == 10**9
