// SPDX-License-Identifier: MIT
#pragma once

// What an application does to the files of its folder, each result printed.

#include <sys/stat.h>

#include <string>

namespace probe {

/// `WHAT: RESULT ERRNO`.
void say(const char* what, long result);
/// A file's content, or `!` and an errno.
std::string content(const char* path);
/// Writes a file anew.
void put(const char* path, const char* text);
void show(const char* what, const std::string& text);
void show_stat(const char* what, const struct stat& st);

// fs_probe_names.cpp
void names();
void attributes();
void special();
void folders();

// fs_probe_contents.cpp
void open_files();
void appending();
void nameless();
void sizes();
void mapping();
void locking();

}  // namespace probe
