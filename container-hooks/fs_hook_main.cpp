// SPDX-License-Identifier: MIT
#include "container-hooks/fs_hook.hpp"

int main(int argc, char** argv) { return heddle::fs_hook(argc, argv); }
