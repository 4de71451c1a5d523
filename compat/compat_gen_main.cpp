// SPDX-License-Identifier: MIT
#include "compat/compat_gen.hpp"

int main(int argc, char** argv) { return heddle::compat_gen(argc, argv); }
