"""Gradients computed layer by layer, as the tests run them."""
import numpy as np

from refsgd.problems.layers import LayerByLayer


def layered(net, images, labels, key=None):
    """A gradient of a net layer by layer."""
    return LayerByLayer(len(net.parts), net.layer_by_layer(images, labels, key))


def forward(gradient, x, slices):
    for k, part in enumerate(slices):
        gradient.forward(k, x[part])


def backward(gradient, x, slices):
    """The whole gradient, from the copies of its parts as they were handed out."""
    found = [gradient.backward(k, x[slices[k]]).copy() for k in reversed(range(len(slices)))]
    return np.concatenate(found[::-1])


def run(gradient, x, slices):
    forward(gradient, x, slices)
    return backward(gradient, x, slices)


class OneLayerBehind:
    """A wrong one: a layer computes with the parameters that it had in the step before."""

    def __init__(self, gradient, layer, old):
        self.gradient, self.layer, self.old = gradient, layer, old

    def forward(self, layer, x):
        self.gradient.forward(layer, self.old if layer == self.layer else x)

    def backward(self, layer, x):
        return self.gradient.backward(layer, self.old if layer == self.layer else x)
