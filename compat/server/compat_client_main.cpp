// SPDX-License-Identifier: MIT
#include "compat/server/compat_client.hpp"

int main(int argc, char** argv) { return heddle::compat_client(argc, argv); }
