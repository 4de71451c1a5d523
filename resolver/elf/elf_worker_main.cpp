// SPDX-License-Identifier: MIT
#include "resolver/elf/worker.hpp"

int main(int argc, char** argv) { return heddle::worker_main(argc, argv); }
