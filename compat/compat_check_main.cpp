// SPDX-License-Identifier: MIT
#include "compat/compat_check.hpp"

int main(int argc, char** argv) { return heddle::compat_check(argc, argv); }
