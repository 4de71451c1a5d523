// SPDX-License-Identifier: MIT
#include "record/trace/normalise.hpp"

#include <gtest/gtest.h>

namespace heddle::trace {
namespace {

std::string normal(std::string_view path, NormaliseOptions options = {}) {
  return Normaliser(std::move(options))(path, {4711, 12});
}

using Pairs = std::initializer_list<std::pair<const char*, const char*>>;
using Paths = std::initializer_list<const char*>;

/// `changed`: path and normalised path; `left_alone`: similar paths that stay.
void expect_normal(Pairs changed, Paths left_alone) {
  for (const auto& [path, expected] : changed) EXPECT_EQ(normal(path), expected);
  for (const char* path : left_alone) EXPECT_EQ(normal(path), path);
}

}  // namespace

TEST(Normalise, keeps_the_first_number_of_a_soname) {
  expect_normal({{"/usr/lib/libx.so.1.2", "/usr/lib/libx.so.1"},
                 {"libmpich.so.12.2.0", "libmpich.so.12"},
                 {"/l/libmpich.so.13.1", "/l/libmpich.so.13"},
                 {"/l/libcrypto.so.1.0.2k", "/l/libcrypto.so.1"}},
                {"/usr/lib/libx.so.1",
                 "/etc/ld.so.cache",
                 "/etc/ld.so.conf.d/x.conf",
                 "/etc/ld.so.preload",
                 "/opt/a.so.bak/data",
                 "/opt/liba.so.1.2/data",
                 "/l/libx.so",
                 "/l/libx.so.",
                 "/l/libx.so.1.",
                 "/l/libx.so.1.2.gz",
                 "/l/libx.so.1..2",
                 "/l/libx.so.a.1",
                 "/l/.so.1.2",
                 "/l/libx.so.1.2~",
                 "/l/libx.so.6.0-gdb.py",
                 "/l/libx.so.1.2 copy",
                 "/",
                 "",
                 "//",
                 "a"});
}

TEST(Normalise, replaces_pids_below_proc_and_the_own_pid_in_volatile_directories) {
  expect_normal({{"/proc/123/maps", "/proc/<pid>/maps"},
                 {"/proc/123/task/124/comm", "/proc/<pid>/task/<tid>/comm"},
                 {"/tmp/job.4711/run4711now", "/tmp/job.<pid>/run<pid>now"},
                 {"/run/user/4711.sock", "/run/user/<pid>.sock"}},
                {"/proc/self/maps", "/proc/sys/kernel/12", "/data/4711/x", "/tmp/job.4712",
                 "/tmp/job.12", "/tmp/04711", "/tmp/47110", "/home/proc/123/maps"});
}

TEST(Normalise, replaces_generated_temporary_names_only) {
  expect_normal(
      {{"/tmp/ccA8x2Qz.o", "/tmp/cc<temp>.o"},
       {"/tmp/tmp.aB3dE6gH9j/f", "/tmp/tmp.<temp>/f"},
       {"/tmp/tmpab12_z9q", "/tmp/tmp<temp>"},
       {"/var/tmp/app-A8x2Qz", "/var/tmp/app-<temp>"},
       {"/dev/shm/seg.A8x2Qz.lock", "/dev/shm/seg.<temp>.lock"},
       {"/r/.git/objects/ab/tmp_obj_Ab12Cd", "/r/.git/objects/ab/tmp_obj_<temp>"},
       {"/r/.nfs00000000123456780000abcd", "/r/.nfs<temp>"},
       {"/p/x.cpython-311.pyc.140234567890", "/p/x.cpython-311.pyc.<temp>"}},
      {"/tmp/run-input1", "/tmp/run-Report", "/tmp/run-202401", "/home/ccA8x2Qz.o", "/tmp/ccache",
       "/home/x/app-A8x2Qz", "/tmp/tmpfile", "/tmp", "/tmp/results.tar.gz", "/p/x.pyc.1"});
}

TEST(Normalise, replaces_numbers_of_open_mpi_and_pmix) {
  expect_normal({{"/tmp/ompi.vm.0/pid.232/pmix_dstor_ds21_233/smlockseg-232390657",
                  "/tmp/ompi.vm.0/pid.<temp>/pmix_dstor_ds21_<temp>/smlockseg-<temp>"},
                 {"/dev/shm/smseg-232390657-0", "/dev/shm/smseg-<temp>-0"},
                 {"/var/tmp/pmix_dstor_ds12_7/smdataseg-9-12",
                  "/var/tmp/pmix_dstor_ds12_<temp>/smdataseg-<temp>-12"},
                 {"/tmp/ompi.n.1/jf.0/17", "/tmp/ompi.n.1/jf.<temp>/17"}},
                {"/data/smseg-232390657-0", "/tmp/smseg-", "/tmp/smseg-12x", "/tmp/pid.x",
                 "/tmp/initial-pmix_shared-segment-0"});
}

TEST(Normalise, replaces_hashes_of_spack_and_nix) {
  expect_normal(
      {{"/opt/spack/gcc-12/zlib-1.3-abcdefghijklmnopqrstuvwxyz234567/lib/libz.so.1.3",
        "/opt/spack/gcc-12/zlib-1.3-<hash>/lib/libz.so.1"},
       {"/nix/store/0c5b8vw40dy178xlpddw65q9gf1h2186-zlib-1.3/lib/libz.so",
        "/nix/store/<hash>-zlib-1.3/lib/libz.so"}},
      {"/data/abcdefghijklmnopqrstuvwxyz234567", "/opt/x/0c5b8vw40dy178xlpddw65q9gf1h2186-zlib-1.3",
       "/nix/store/.links/eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee-x",
       "/opt/zlib-1.3-ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"});
}

TEST(Normalise, maps_one_directory_to_another) {
  NormaliseOptions options;
  ASSERT_TRUE(options.add_map("/opt/app-1/=/opt/app").has_value());
  ASSERT_TRUE(options.add_map("/opt=/o").has_value());
  EXPECT_EQ(normal("/opt/app-1/lib/x", options), "/opt/app/lib/x");
  EXPECT_EQ(normal("/opt/app-1", options), "/opt/app");
  EXPECT_EQ(normal("/opt/app-12/x", options), "/o/app-12/x");
  EXPECT_FALSE(options.add_map("nothing").has_value());
  EXPECT_FALSE(options.add_map("=x").has_value());
  EXPECT_EQ(options.names(), (std::vector<std::string>{"soname", "pid", "temp", "hash",
                                                       "map:/opt/app-1=/opt/app", "map:/opt=/o"}));
}

TEST(Normalise, switches_each_rule_off) {
  EXPECT_EQ(normal("/tmp/cc123456.so.1.2", {false, false, false, false, {}}),
            "/tmp/cc123456.so.1.2");
  EXPECT_EQ(normal("/proc/12/libx.so.1.2", {.pid = false}), "/proc/12/libx.so.1");
  EXPECT_TRUE((NormaliseOptions{false, false, false, false, {}}).names().empty());
}

}  // namespace heddle::trace
