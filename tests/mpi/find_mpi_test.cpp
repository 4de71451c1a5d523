// SPDX-License-Identifier: MIT
// fs-resolve mpi on this machine's Open MPI and MPICH, and on fake libraries.

#include <nlohmann/json.hpp>

#include "resolver/mpi/mpi_family.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;

/// A library with the exports and strings that identify an MPI family.
std::string make_mpi(const std::string& path, const std::string& soname, const std::string& more) {
  return build_library(
      {.output = path,
       .source = "int MPI_Init(void){return 0;}int MPI_Comm_rank(void){return 0;}" + more,
       .flags = {"-Wl,-soname," + soname}});
}

class FsResolveMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_resolve_ = staged_program("fs-resolve");
    if (fs_resolve_.empty()) HEDDLE_SKIP("fs-resolve is not installed in $HEDDLE_STAGE");
    options_.env = {"XDG_CACHE_HOME=" + dir_ / "cache", "LD_LIBRARY_PATH"};
  }
  RunResult mpi(std::vector<std::string> words) const {
    words.insert(words.begin(), {fs_resolve_, "mpi"});
    return run(words, options_);
  }
  Json found(std::vector<std::string> words) const {
    words.push_back("--json");
    return Json::parse(mpi(words).out);
  }
  static Json of_family(const Json& list, const std::string& family) {
    for (const auto& one : list)
      if (one["family"] == family) return one;
    return {};
  }

  TestDir dir_;
  std::string fs_resolve_;
  RunOptions options_;
};

TEST_F(FsResolveMpi, finds_both_mpis_of_this_machine) {
  const auto list = found({});
  const auto open_mpi = of_family(list, "openmpi");
  const auto mpich = of_family(list, "mpich");
  if (open_mpi.is_null() || mpich.is_null()) HEDDLE_SKIP("Open MPI or MPICH is not installed");
  // The oracles are programs of the MPIs.
  EXPECT_THAT(run({"mpichversion"}).out, HasSubstr(mpich["version"].get<std::string>()));
  EXPECT_THAT(run({"mpiexec.openmpi", "--version"}).out,
              HasSubstr(open_mpi["version"].get<std::string>()));
  EXPECT_EQ(open_mpi["abi"], "openmpi-40");
  EXPECT_EQ(mpich["abi"], "mpich-12");
  EXPECT_THAT(mpich["aliases"].get<std::vector<std::string>>(), Contains("libmpi.so.12"));
  std::vector<std::string> directories;
  for (const auto& directory : open_mpi["plugin_directories"])
    directories.push_back(directory["view_name"]);
  EXPECT_THAT(directories, Contains("ompi"));
  EXPECT_THAT(directories, Contains("share/openmpi"));
  EXPECT_TRUE(mpich["missing"].empty());
}

TEST_F(FsResolveMpi, identifies_libraries_of_a_prefix_by_content) {
  make_mpi(dir_ / "b/lib/libmpi.so.40", "libmpi.so.40",
           "int ompi_mpi_comm_world;const char t[]=\"v5.0.3\";");
  // Named as MPI libraries, without MPI.
  build_library({.output = dir_ / "b/lib/libmpi_extra.so.1", .source = "int x(void){return 1;}"});
  std::ofstream(dir_ / "b/lib/libmpi.so.99") << "no ELF file";
  const auto open_mpi = found({"--prefix", dir_ / "b"});
  ASSERT_EQ(open_mpi.size(), 1U);
  EXPECT_EQ(open_mpi[0]["family"], "openmpi");
  EXPECT_EQ(open_mpi[0]["version"], "5.0.3");
  // Of two the one that is named.
  make_mpi(dir_ / "b/lib/libmpi.so.12", "libmpi.so.12", "int MPIR_Err(void){return 0;}");
  EXPECT_EQ(found({"--prefix", dir_ / "b"}).size(), 2U);
  const auto named = found({"--prefix", dir_ / "b/lib/libmpi.so.40"});
  ASSERT_EQ(named.size(), 1U);
  EXPECT_EQ(named[0]["family"], "openmpi");
}

/// Views of Spack and Nix consist of links.
TEST_F(FsResolveMpi, uses_links_of_a_prefix_without_files) {
  const auto elsewhere =
      make_mpi(dir_ / "store/lib/libmpi.so.12", "libmpi.so.12", "int MPIR_Err(void){return 0;}");
  std::filesystem::create_directories(dir_ / "view/lib");
  std::filesystem::create_symlink(elsewhere, dir_ / "view/lib/libmpi.so.12");
  ASSERT_EQ(found({"--prefix", dir_ / "view"}).size(), 1U);
  make_mpi(dir_ / "view/lib/libmpi.so.40", "libmpi.so.40",
           "int ompi_mpi_comm_world;const char t[]=\"v5.0.3\";");
  const auto list = found({"--prefix", dir_ / "view"});
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0]["family"], "openmpi");
}

/// Outputs of MPI_Get_library_version as users report them; the libraries are not available here.
TEST_F(FsResolveMpi, identifies_each_vendor_of_the_mpich_abi) {
  struct Row {
    const char *soname, *words, *family, *version;
  };
  int count = 0;
  for (const auto& row : {
           Row{"libmpi.so.12", "Intel(R) MPI Library 2021.10 for Linux* OS\\n", "intel", "2021.10"},
           Row{"libmpi.so.12", "Intel(R) MPI Library 2019 Update 6 for Linux* OS\\n", "intel",
               "2019.6"},
           Row{"libmpi_gnu_123.so.12",
               "MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\\n", "cray",
               "8.1.25.17"},
           Row{"libmpi.so.12", "MVAPICH2 Version      :\\t2.3.7\\n", "mvapich", "2.3.7"},
           Row{"libmpi.so.12", "MVAPICH Version:        3.0\\n", "mvapich", "3.0"},
       }) {
    const auto prefix = dir_ / std::to_string(++count);
    make_mpi(prefix + "/lib/" + row.soname, row.soname,
             std::string("int MPIR_Err(void){return 0;}const char t[]=\"") + row.words + "\";");
    const auto found_there = found({"--prefix", prefix});
    ASSERT_EQ(found_there.size(), 1U) << row.words;
    EXPECT_EQ(found_there[0]["family"], row.family) << row.words;
    EXPECT_EQ(found_there[0]["version"], row.version) << row.words;
    EXPECT_EQ(found_there[0]["abi"], "mpich-12");
  }
}

TEST_F(FsResolveMpi, loads_no_library) {
  const auto mark = dir_ / "loaded";
  make_mpi(dir_ / "p/lib/libmpi.so.12", "libmpi.so.12",
           "int MPIR_x;int creat(const char*,int);"
           "__attribute__((constructor)) static void go(void){creat(\"" +
               mark + "\",0600);}");
  ASSERT_EQ(found({"--prefix", dir_ / "p"}).size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST_F(FsResolveMpi, exits_with_1_without_any_mpi) {
  EXPECT_EQ(mpi({"--prefix", dir_.path()}).status, 1);
}

TEST_F(FsResolveMpi, describes_any_library_named_by_root) {
  const auto list = found({"--root", "libz.so.1"});
  if (list.empty()) HEDDLE_SKIP("no libz here");
  EXPECT_EQ(list[0]["soname"], "libz.so.1");
  EXPECT_EQ(list[0]["family"], "");
  EXPECT_EQ(mpi({"--root", "libnosuch.so.7"}).status, 3);
}

TEST_F(FsResolveMpi, lists_the_files_that_a_traced_run_opens) {
  if (staged_program("fs-record").empty()) HEDDLE_SKIP("fs-record is not installed");
  if (run({"mpicc.mpich", "-show"}).status != 0) HEDDLE_SKIP("MPICH is not installed");
  std::ofstream(dir_ / "ranks.c")
      << "#include <mpi.h>\n#include <fcntl.h>\nint main(int c, char** v)"
         "{MPI_Init(&c, &v);open(\"/etc/passwd\", O_RDONLY);"
         "return MPI_Finalize();}";
  run_checked({"mpicc.mpich", "-o", dir_ / "ranks", dir_ / "ranks.c"});
  const auto list = found({"--trace", dir_ / "ranks"});
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0]["family"], "mpich");
  std::map<std::string, bool> opened;
  for (const auto& file : list[0]["opened"]) opened[file["path"]] = file["known"];
  EXPECT_TRUE(opened.at(list[0]["path"]));
  EXPECT_FALSE(opened.at("/etc/passwd"));
  EXPECT_THAT(opened, Contains(::testing::Key(HasSubstr("/ucx/libuct_cma.so"))));
  EXPECT_EQ(mpi({"--trace", "/bin/true"}).status, 3);
}

TEST(MpiAliases, join_the_sonames_of_one_abi) {
  EXPECT_THAT(mpi_aliases("libmpich.so.12", "mpich-12"), Contains("libmpi.so.12"));
  EXPECT_THAT(mpi_aliases("libmpi_gnu_123.so.12", "mpich-12"), Contains("libmpich.so.12"));
  EXPECT_THAT(mpi_aliases("libmpichfort.so.12", "mpich-12"), Contains("libmpifort.so.12"));
  EXPECT_THAT(mpi_aliases("libmpi_nvidia.so.12", "mpich-12"), Contains("libmpi.so.12"));
  EXPECT_THAT(mpi_aliases("libmpi.so.40", "openmpi-40"), ElementsAre("libmpi.so.40"));
  const auto aliases = mpi_aliases("libmpi.so.12", "mpich-12");
  EXPECT_TRUE(stands_for(aliases, "mpich-12", "libmpich.so.12"));
  EXPECT_TRUE(stands_for(aliases, "mpich-12", "libmpi_gnu_112.so.12"));
  EXPECT_TRUE(stands_for(aliases, "mpich-12", "libmpi_crayclang.so.12"));
  for (const char* other : {"libmpi_gnu_112.so.40", "libmpi_cxx.so.12", "libmpi_gnu_x.so.12",
                            "libmpi_.so.12", "libmpi_gnu_.so.12"})
    EXPECT_FALSE(stands_for(aliases, "mpich-12", other)) << other;
  EXPECT_FALSE(stands_for({"libmpi.so.40"}, "openmpi-40", "libmpi_gnu.so.40"));
}

}  // namespace
}  // namespace heddle::test
