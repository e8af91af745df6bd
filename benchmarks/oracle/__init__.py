"""A second implementation of the catalogue's timing, which shares no line with the simulator's
event loop; the paths of messages and the plans of parts are the library's.

It was the theory's numerical evaluation: workers, servers and peers as recursions on an agenda of messages.
`benchmarks.oracle.evaluated` gives it the very times that a simulated run drew, so that both must end at the
same moment, to the last digits, whatever the times are.
"""
