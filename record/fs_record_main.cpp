// SPDX-License-Identifier: MIT
#include "record/fs_record.hpp"

int main(int argc, char** argv) { return heddle::fs_record(argc, argv); }
