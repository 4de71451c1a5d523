// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::test {

enum class FarmShape : std::uint8_t {
  star,    ///< the program needs every library, they need nothing
  chain,   ///< the program needs the first, each needs the next
  tree,    ///< the program needs two, each needs two more
  random,  ///< a connected graph without loops, one to four dependencies each
  /// As in Pynamic (LLNL): the program needs two thirds of them, its modules, and each of these ten
  /// of the rest, the utilities.
  modules,
};

enum class FarmTag : std::uint8_t {
  rpath,     ///< DT_RPATH on the program alone; it is inherited
  runpath,   ///< DT_RUNPATH with every directory on each file that needs a library
  none,      ///< none: the program needs LD_LIBRARY_PATH=ElfFarm::library_path
  absolute,  ///< DT_NEEDED holds absolute paths: what a search-free start costs
};

struct FarmOptions {
  std::size_t libraries = 10;
  FarmShape shape = FarmShape::star;
  FarmTag tag = FarmTag::rpath;
  /// Library i's number is this plus i, so that two farms print different sums.
  std::uint64_t first_number = 1;
  bool odd_names = false;     ///< directories hold spaces, tabs, newlines and UTF-8
  bool dlopen_roots = false;  ///< the program dlopens its libraries by soname instead
  /// Each library's bytes of text, and relative relocations (32 bytes of the file each).
  std::size_t text = 0, relocations = 0;
  std::size_t thread_local_bytes = 0;  ///< each library's
};

/// A program and N libraries in N directories, so that ld.so probes about N*N/2 paths. Each
/// library's function adds its number and the results of its dependencies once, so the sum that the
/// program prints shows that each library is loaded and is the right one.
struct ElfFarm {
  std::string program;                   ///< `<directory>/app`
  std::vector<std::string> directories;  ///< `<directory>/lib/0001`, in search order
  std::vector<std::string> libraries;    ///< paths, by index
  std::vector<std::string> sonames;
  std::string library_path;  ///< the directories joined with ':'
  std::string output;        ///< what the program prints, newline included

  /// Makes the farm in `directory` (made when missing): 500 libraries take about two seconds on two
  /// cores. Needs cc, as and ld. Throws heddle::Error.
  static ElfFarm build(const std::string& directory, const FarmOptions& options = {});
};

}  // namespace heddle::test
