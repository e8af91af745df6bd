"""Layers by hand: read, merged where they have no parameters, refused in one line where damaged."""

import json

import pytest

import refsgd
from refsgd.cli import main
from refsgd.cluster.machine import Machine

LAYERS = [{"name": "in", "parameters": 0, "operations": 100, "activations": 20},
          {"name": "first", "parameters": 30, "operations": 200, "activations": 5},
          {"name": "relu", "parameters": 0, "operations": 50.5, "activations": 5},
          {"name": "last", "parameters": 12, "operations": 649.5, "activations": 7, "output": 2}]


@pytest.fixture
def file(tmp_path):
    def written(value):
        path = tmp_path / "my net.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)
    return written


def test_a_file_gives_parameters_work_activations_and_what_leaves_a_layer(file):
    net = file({"name": "mine", "layers": LAYERS})
    e = refsgd.experiment.prepare.prepare("gpipe", net=net, data="none", workers=2, batch=3,
                                          machine=Machine(compute="device(1kFLOPS)"))
    p = e.problem
    assert (p.x0.size, p.work(0, 0), p.chain.held(3)) == (42, 3 * 3 * 1000, 3 * 4 * 37)
    assert p.layers.names == ("first", "last")
    assert p.layers.forward == pytest.approx((350.5 / 3000, 649.5 / 3000))
    assert [(b.name, b.nbytes, b.part.stop - b.part.start) for b in p.chain.blocks] == [
        ("in", 80, 0), ("first", 20, 30), ("relu", 20, 0), ("last", 8, 12)]
    assert p.describe["image"] == "a sample of mine"


@pytest.mark.parametrize("command", ["run bsp --steps 2 --layout layers", "predict allreduce", "predict gpipe",
                                     "predict zero", "run pipedream --steps 2 --workers 2"])
def test_commands_take_a_file(command, file, capsys):
    net = file({"name": "mine", "layers": LAYERS})
    assert main([*command.split(), "--net", net, "--compute", "device(1MFLOPS)"]) == 0
    assert "; an image is a sample of mine" in " ".join(capsys.readouterr().out.split())


def test_advice_takes_a_file_and_its_commands_run(file, capsys):
    import shlex

    net = file({"name": "mine", "layers": LAYERS})
    assert main(["advise", "--net", net, "--rate", "1MFLOPS", "--bandwidth", "1MB/s", "--workers", "2",
                 "--images", "256", "--budget", "20000", "--json", "-"]) == 0
    found = [s for s in json.loads(capsys.readouterr().out)["strategies"] if not s["rejected"]]
    assert {"ring overlap" in s["name"] for s in found} == {True, False}
    assert found[0]["memory"]["activations"] == 32 * 4 * 37
    _, *command = shlex.split(found[0]["command"])
    assert main([*command, "--quiet"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("net", ["shapes:transformer:2,64,4,32,100", "shapes:llama:2,64,4,32,100"])
def test_advice_takes_a_transformer(net, capsys):
    assert main(["advise", "--net", net, "--rate", "1GFLOPS", "--bandwidth", "1MB/s", "--workers", "2",
                 "--images", "256", "--budget", "20000", "--memory", "100MB"]) == 0
    out = capsys.readouterr().out
    assert "an image is a sequence of 32 tokens" in " ".join(out.split()) and f"--net {net}" in out
    assert "tokens/s" in out and "images/s" not in out


@pytest.mark.parametrize(("value", "said"), [
    ("{", "is not JSON: Expecting property name"), ("[]", "it is []; expected an object with name, layers"),
    ({"layers": LAYERS}, "name is missing"), ({"name": "mine"}, "layers is missing"),
    ({"name": "mine", "layers": []}, "has no layers; expected one or more"),
    ({"name": "mine", "layers": [{"name": "in", "parameters": 3, "operations": 1}]},
     "layers[0].activations is missing"),
    ({"name": "mine", "layers": [LAYERS[0], {**LAYERS[1], "parameters": -3}]},
     "layers[1].parameters is -3; expected a whole number, at least 0"),
    ({"name": "mine", "layers": [{**LAYERS[1], "operations": -1}]}, "layers[0].operations is -1; expected a number"),
    ({"name": "mine", "layers": [{**LAYERS[1], "activations": "many"}]}, "layers[0].activations is 'many'"),
    ({"name": "mine", "layers": [{**LAYERS[1], "operations": float("nan")}]}, "layers[0].operations is nan"),
    ({"name": "mine", "layers": [{**LAYERS[1], "output": -1}]}, "output of layers[0] is -1"),
    ({"name": "mine", "layers": [LAYERS[0], {**LAYERS[1], "ouput": 4}]},
     "ouput is unknown; expected name, parameters, operations, activations, output; did you mean output?"),
    ({"name": "mine", "layers": LAYERS, "batch": 8}, "batch is unknown; expected name, layers"),
    ({"name": "mine", "layers": LAYERS[:1]}, "0 parameters and 100 operations in all layers together"),
    ({"name": "mine", "layers": [{**LAYERS[1], "operations": 0}]}, "30 parameters and 0 operations")])
def test_damaged_files_are_refused_in_one_line(value, said, file, capsys):
    net = file(value)
    assert main(["run", "bsp", "--net", net, "--steps", "2", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert f"net {net}" in err and said in err and err.count("\n") == 1, err


def test_a_missing_file_and_sizes_that_advice_cannot_take_are_refused(capsys, file):
    mine = file({"name": "mine", "layers": LAYERS})
    for command, said in (
            (["run", "bsp", "--net", "absent.json"], "net absent.json: No such file"),
            (["run", "bsp", "--net", mine, "--data", "mnist"], "which cannot learn"),
            (["advise", "--net", mine, "--rate", "1GFLOPS", "--image", "8,8,1"], "which has its own sizes"),
            (["advise", "--net", "shapes:resnet50@224", "--rate", "1GFLOPS"], "expected --net NAME --image")):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1, err
