"""One file per phenomenon: communication, staleness, stragglers, queueing, gossip."""
