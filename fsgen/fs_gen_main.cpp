// SPDX-License-Identifier: MIT
#include "fsgen/fs_gen.hpp"

int main(int argc, char** argv) { return heddle::fs_gen(argc, argv); }
