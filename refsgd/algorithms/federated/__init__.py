"""Federated algorithms: a server hands out its model, and clients take several steps before they answer."""
