"""Weights inside a network that ST's Neural-ART compiler has compiled: where every byte of every filter lies.

layouts   how a filter lies in a buffer: the families, exactly
compiled  what the compiler leaves: network_c_info.json or network.c, and the raw memory files
solver    recovers the layouts of a build by comparing its bytes with the .tflite
checks    what else has to hold before weights may be changed in place
section   the map as bytes for a device (NART)
profile   the compiler's input: memory pools, profile, command line
writer    the other direction, for tests: compiled directories in any of these layouts

docs/neural_art.md describes families and section. Nothing here is ST's; the compiler is not needed to run any of it.
"""
