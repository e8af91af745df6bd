"""Transformers by their sizes: published counts, operations and activations by hand, times of runs."""

from itertools import pairwise

import pytest

import refsgd
from refsgd.cluster.machine import Machine
from refsgd.experiment.options.problems import of_sizes
from refsgd.problems import transformer

GPT2 = "transformer:12,768,12,1024,50257"
LLAMA = "llama:22,2048,32,2048,32000,4,5632"


def totals(name):
    layers, _, _ = transformer.layers(name)
    return [sum(getattr(layer, key) for layer in layers) for key in ("parameters", "operations", "activations")]


@pytest.mark.parametrize(("name", "published"), [
    (GPT2, 124_439_808), ("transformer:48,1600,25,1024,50257", 1_557_611_200),  # GPT-2 small and XL
    ("llama:32,4096,32,4096,32000", 6_738_415_616), ("llama:40,5120,40,4096,32000", 13_015_864_320),  # Llama 2
    ("llama:80,8192,64,4096,32000,8,28672", 68_976_648_192),
    ("llama:32,4096,32,8192,128256,8,14336", 8_030_261_248),  # Llama 3
    (LLAMA, 1_100_048_384)])  # TinyLlama
def test_parameters_are_those_that_were_published(name, published):
    assert totals(name)[0] == published == of_sizes(f"shapes:{name}", 1).x0.size


def test_operations_are_those_of_megatron():
    layers, width, tokens, words = 96, 12288, 2048, 51200
    _, operations, _ = totals(f"transformer:{layers},{width},96,{tokens},{words}")
    # Narayanan et al. 2021, appendix, without computing activations again: 3/4 of 96 B s l h^2 (...)
    assert 3 * operations == pytest.approx(
        72 * tokens * layers * width**2 * (1 + tokens / (6 * width) + words / (12 * layers * width)), rel=1e-12)


@pytest.mark.parametrize("name", ["transformer:96,12288,96,1024,50257", "llama:80,8192,64,512,128,8,28672"])
def test_a_wide_net_has_six_operations_a_parameter_and_token(name):
    parameters, operations, _ = totals(name)
    assert 3 * operations / int(name.split(",")[3]) == pytest.approx(6 * parameters, rel=0.02)


def test_layers_by_hand():
    # width 4, 2 heads, 3 tokens, 10 words
    first, block, head = transformer.layers("transformer:1,4,2,3,10")[0]
    assert (first.parameters, first.operations, first.activations) == (4 * 10 + 4 * 3, 0, 0)
    assert block.parameters == 2 * 8 + 4 * (16 + 4) + (4 * 16 + 16) + (16 * 4 + 4)
    assert block.operations == 3 * 2 * (4 * 16 + 2 * 64) + 2 * (2 * 9 * 4)  # scores and sums of values
    assert block.activations == 16 * 3 * 4 + 2 * 9  # Korthikanti et al.: 34 s h bytes with two masks of one byte
    assert (head.parameters, head.operations, head.activations) == (8, 2 * 3 * 4 * 10, 2 * 12 + 30)
    assert [first.output, block.output, head.output] == [12, 12, 30]
    # one head of keys and values for two of queries: width 2; hidden 5
    _, block, head = transformer.layers("llama:1,4,2,3,10,1,5")[0]
    assert block.parameters == 2 * 4 + 2 * 16 + 2 * 8 + 3 * 20
    assert block.operations == 3 * 2 * (2 * 16 + 2 * 8 + 3 * 20) + 2 * (2 * 9 * 4)
    assert block.activations == 3 * (6 * 4 + 2 * 2 + 4 * 5)  # a fused attention keeps no scores
    assert head.parameters == 4 + 40


@pytest.mark.parametrize("name", [GPT2, LLAMA])
def test_the_problem_has_its_layers_arrays_and_blocks(name):
    layers, sample, _ = transformer.layers(name)
    problem = of_sizes(f"shapes:{name}", 4)
    parts = problem.layers.parts
    assert [part.stop - part.start for part in parts] == [layer.parameters for layer in layers]
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert problem.layers.tensors == tuple(shape for layer in layers for shape in layer.shapes)
    assert problem.work(0, 0) == 3 * 4 * sum(layer.operations for layer in layers)
    assert problem.chain.held(4) == 16 * sum(layer.activations for layer in layers)
    assert problem.describe["image"] == sample


@pytest.mark.slow
def test_a_device_prices_a_sequence_and_stages_send_the_residual_stream():
    found = refsgd.predict("allreduce", net=f"shapes:{GPT2}", data="none", workers=8, batch=2,
                           machine=Machine(compute="device(100TFLOPS,2ms)"))
    assert found["seconds_per_iteration"].value == pytest.approx(0.002 + 2 * 3 * totals(GPT2)[1] / 100e12)
    found = refsgd.predict("gpipe", net=f"shapes:{GPT2}", data="none", workers=7, batch=2,
                           machine=Machine(compute="device(100TFLOPS,2ms)"))
    assert found["bytes_per_iteration"].value == 6 * 2 * 2 * 4 * 1024 * 768  # cuts, directions, sequences
    found = refsgd.predict("zero", net=f"shapes:{GPT2}", data="none", workers=8, stage=3, batch=2,
                           machine=Machine(compute="device(100TFLOPS,2ms)"))
    terms = found["memory_worker"].terms
    assert terms["parameters"] == 4 * 124_439_808 / 8 and terms["largest layer"] == 2 * 4 * (50257 + 1024) * 768


def test_it_runs_in_the_simulator_and_says_what_an_image_is():
    result = refsgd.run("bsp", net="shapes:transformer:2,64,4,32,100", steps=2, layout="layers", overlap="both",
                        machine=Machine(compute="device(1TFLOPS)", bandwidth=1e9))
    assert "an image is a sequence of 32 tokens" in result.summary()
    assert "an image" not in refsgd.run("bsp", net="shapes:100", steps=1).summary()


@pytest.mark.parametrize(("name", "said"), [
    ("transformer", "expected shapes:transformer:LAYERS,WIDTH"), ("llama:12,768,12,1024", "shapes:llama:LAYERS,"),
    ("transformer:12,768,12,0,50257", "expected"), ("transformer:12,768,12,1024,50257,4,9,9", "expected"),
    ("transformer:12,768,7,1024,50257", "width 768, 7 heads"), ("llama:1,8,4,1,1,3", "4 heads, 3 of keys and values"),
    ("transformer:1001,8,4,1,1", "at most 1000 layers"), ("transformer@224", "expected shapes:transformer:")])
def test_other_numbers_are_refused_in_one_line(name, said):
    with pytest.raises(refsgd.experiment.prepare.Usage) as error:
        refsgd.run("bsp", net=f"shapes:{name}", steps=1)
    assert said in str(error.value) and "\n" not in str(error.value)
