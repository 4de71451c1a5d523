// SPDX-License-Identifier: MIT
#include "record/fs_diff.hpp"

int main(int argc, char** argv) { return heddle::fs_diff(argc, argv); }
