#!/usr/bin/env python3
"""A neighbour: takes BYTES of memory in pieces, keeps them for SECONDS, ends. Usage: hog.py BYTES SECONDS"""
import sys
import time

PIECE = 64 << 20
kept = []
for _ in range(int(sys.argv[1]) // PIECE):
    kept.append(bytearray(b"x") * PIECE)  # written, so that it is there
    time.sleep(0.02)
time.sleep(float(sys.argv[2]))
