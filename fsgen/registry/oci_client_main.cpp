// SPDX-License-Identifier: MIT
#include "fsgen/registry/oci_client.hpp"

int main(int argc, char** argv) { return heddle::oci_client(argc, argv); }
