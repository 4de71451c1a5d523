// SPDX-License-Identifier: MIT
#include "fsgen/compat/server/compat_server.hpp"

int main(int argc, char** argv) { return heddle::compat_server(argc, argv); }
