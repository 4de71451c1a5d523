// SPDX-License-Identifier: MIT
#include "record/diff/fs_diff.hpp"

int main(int argc, char** argv) { return heddle::fs_diff(argc, argv); }
