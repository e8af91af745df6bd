"""Validation: training images that no gradient sees; and an evaluation takes batch norm's statistics once."""

import json

import numpy as np
import pytest

import refsgd
from refsgd.experiment.prepare import prepare
from refsgd.experiment.result import Result
from refsgd.problems.data import DataError, load
from refsgd.problems.nn import nets
from refsgd.problems.nn.net import Net


def test_training_and_validation_are_all_training_images_once():
    whole, cut = load("digits"), load("digits").hold_back(0.1)
    images, labels = cut.validation
    assert (len(cut.train_labels), len(labels)) == (1293, 144)
    assert sorted(map(bytes, [*cut.train_images, *images])) == sorted(map(bytes, whole.train_images))
    assert cut.test_images is whole.test_images and whole.hold_back(0) is whole
    assert sorted([*cut.train_labels, *labels]) == sorted(whole.train_labels)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1e-6, float("nan")])
def test_a_share_without_images_is_refused(share):
    with pytest.raises(DataError, match="expected a share that leaves images on both sides"):
        load("digits").hold_back(share)


@pytest.mark.parametrize("data", ["quadratic", "none"])
def test_data_without_images_have_none_to_hold_back(data):
    with pytest.raises(ValueError, match="no training images to hold back"):
        prepare("bsp", data=data, validation=0.1, **({"net": "shapes:9"} if data == "none" else {}))


def test_no_gradient_sees_an_image_that_is_held_back(monkeypatch):
    seen, gradient = set(), Net.gradient
    monkeypatch.setattr(Net, "gradient", lambda self, x, images, labels, key=None: (
        seen.update(map(bytes, images)), gradient(self, x, images, labels, key))[1])
    result = refsgd.run("bsp", net="softmax", validation=0.2, epochs=1, workers=2)
    images, _ = load("digits").hold_back(0.2).validation
    assert len(seen) > 1100 and not seen.intersection(map(bytes, images))
    assert result.accuracy.keys() == {"train", "test", "validation"} and "validation 0" not in result.summary()
    assert Result.from_json(result.to_json()).accuracy == json.loads(result.to_json())["accuracy"]


def test_an_evaluation_takes_statistics_once_and_final_parameters_are_not_evaluated_again(monkeypatch):
    calls, evaluations = [], Net.evaluations
    monkeypatch.setattr(Net, "evaluations", lambda self, x, sets, sample=None: (
        calls.append(len(sets)), evaluations(self, x, sets, sample))[1])
    refsgd.run("bsp", data="synthetic:8x8x3", net="resnet18:2", workers=1, steps=2, batch=4)
    assert calls == [2, 2], "train and test together, after each of two steps"


def test_sets_evaluated_together_are_those_evaluated_alone():
    net = nets.build("resnet18:2", (8, 8, 3))
    data, x = load("synthetic:8x8x3"), net.init(0)
    sets = [(data.train_images[:70], data.train_labels[:70]), (data.test_images[:9], data.test_labels[:9]),
            (data.test_images[:0], data.test_labels[:0])]
    sample = data.train_images[:30]
    assert net.evaluations(x, sets, sample) == [net.loss_and_accuracy(x, *each, sample) for each in sets]
    other = np.roll(sample, 1, axis=3)
    assert net.evaluations(x, sets, other)[0] != net.evaluations(x, sets, sample)[0]
