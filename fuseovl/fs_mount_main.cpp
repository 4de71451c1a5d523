// SPDX-License-Identifier: MIT
#include "fuseovl/fs_mount.hpp"

int main(int argc, char** argv) { return heddle::fs_mount_main(argc, argv); }
