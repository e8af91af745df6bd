"""What is optimised: synthetic problems, small nets on real images, and nets in shape only."""

from refsgd.problems.problem import Problem, classification, integer_gradients, one_image, quadratic

__all__ = ["Problem", "classification", "integer_gradients", "one_image", "quadratic"]
