"""Small convolutional networks: readable definitions, fast kernels, one flat vector of parameters."""
