// SPDX-License-Identifier: MIT
#include "compat/server/judge.hpp"

int main(int argc, char** argv) { return heddle::compat_judge(argc, argv); }
