// SPDX-License-Identifier: MIT
#include "compat/server/compat_server.hpp"

int main(int argc, char** argv) { return heddle::compat_server(argc, argv); }
