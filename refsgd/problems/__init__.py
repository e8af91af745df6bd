"""Objective functions: synthetic problems, small nets on real images, and shape-only nets."""

from refsgd.problems.problem import Problem, classification, integer_gradients, quadratic

__all__ = ["Problem", "classification", "integer_gradients", "quadratic"]
