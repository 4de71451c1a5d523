// SPDX-License-Identifier: MIT
#include "ship/registry/oci_client.hpp"

int main(int argc, char** argv) { return heddle::oci_client(argc, argv); }
