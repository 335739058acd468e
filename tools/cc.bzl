"""Compiler flags of all C++ code here; the same as CMake's, see cmake/EpgcCompiler.cmake."""

load("@local_tf//:defs.bzl", "COMPILE_FLAGS")

EPGC_COPTS = COMPILE_FLAGS + [
    "-O3",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
]

CXX17 = ["-std=c++17"]
