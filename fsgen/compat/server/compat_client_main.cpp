// SPDX-License-Identifier: MIT
#include "fsgen/compat/server/compat_client.hpp"

int main(int argc, char** argv) { return heddle::compat_client(argc, argv); }
