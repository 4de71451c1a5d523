// SPDX-License-Identifier: MIT
#pragma once

namespace heddle::jobs::store {

// show.cpp
int show_command(int argc, char** argv);
int diff_command(int argc, char** argv);
// jobs/outliers
int outliers_command(int argc, char** argv);
int rca_command(int argc, char** argv);
int report_command(int argc, char** argv);
int model_command(int argc, char** argv);

}  // namespace heddle::jobs::store
