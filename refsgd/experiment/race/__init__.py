"""Races: every algorithm at its own learning rate, to one target, over several seeds.

`target` has one run that stops at the target; `tune` says which runs find an algorithm's rate; `runs` makes
those of several algorithms; `standing` says what they show; `entries` has the rows, `race` the whole.
"""
