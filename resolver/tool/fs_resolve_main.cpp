// SPDX-License-Identifier: MIT
#include "resolver/tool/fs_resolve.hpp"

int main(int argc, char** argv) { return heddle::fs_resolve(argc, argv); }
