"""Races: every algorithm at its own learning rate (`tune`), to one `target`, over several seeds (`runs`)."""
