// SPDX-License-Identifier: MIT
//
// The static programs, each bound as one file into root file systems of other distributions.

#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

using Words = std::vector<std::string>;

/// podman containers. Their state is in the case's directory, their mounts in a namespace that ends
/// with them.
class RecorderInContainers : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("needs root: podman with --cap-add SYS_ADMIN");
    if (!is_installed("podman") || !is_installed("crun"))
      HEDDLE_SKIP("podman and crun are not installed");
    const auto made = run({HEDDLE_ROOTFS, GetParam()}, {.deadline = std::chrono::minutes(15)});
    if (made.status == 77) HEDDLE_SKIP("no Debian root file system: " + made.err);
    ASSERT_EQ(made.status, 0) << made.err;
    tree_ = made.out.substr(0, made.out.find('\n'));
    run_checked({"mkdir", dir_ / "out"});
    const auto plain = contained({}, {"echo", "it runs"});
    if (plain.out != "it runs\n") HEDDLE_SKIP("podman cannot run a container here: " + plain.err);
  }

  /// Runs `argv` in the tree; an overlay takes the writes.
  RunResult contained(const Words& options, const Words& argv) const {
    // crun 1.8 fails when cgroup v1 and v2 are both mounted. podman's own limits need
    // CAP_SYS_RESOURCE.
    Words all = {"unshare", "-m", "sh", "-c"};
    all.emplace_back("umount /sys/fs/cgroup/unified 2>/dev/null; exec podman \"$@\"");
    for (const auto& word : words_of(
             "podman --root " + (dir_ / "root") + " --runroot " + (dir_ / "runroot") +
             " --tmpdir " + (dir_ / "tmp") +
             " --runtime crun run --rm --cgroups=disabled --network host --ulimit nofile=1024:1024 "
             "--ulimit nproc=4096:4096 --device /dev/fuse --cap-add SYS_ADMIN -v " +
             (dir_ / "out:/out")))
      all.push_back(word);
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), {"--rootfs", tree_ + ":O"});
    all.insert(all.end(), argv.begin(), argv.end());
    return run(all);
  }

  TestDir dir_;
  std::string tree_;
};

TEST_P(RecorderInContainers, records_a_program_of_the_image) {
  HEDDLE_STAGED(program, "fs-record");
  const Words script = {"sh", "-c",
                        "cat /etc/debian_version; curl --version | head -n 1; cat /no/such/file; "
                        "echo new > /root/new && mv /root/new /root/newer && cat /root/newer; "
                        "id -u; exit 7"};
  const auto native = contained({}, script);
  EXPECT_EQ(native.status, 7) << native.err;
  Words argv = {"/fs-record", "--quiet", "--out", "/out/run.txt", "--"};
  argv.insert(argv.end(), script.begin(), script.end());
  const auto recorded = contained({"-v", program + ":/fs-record:ro"}, argv);
  EXPECT_EQ(recorded.out, native.out);
  EXPECT_EQ(recorded.err, native.err);
  EXPECT_EQ(recorded.status, 7);
  const auto seen = read_seen(dir_ / "out/run.txt");
  EXPECT_TRUE(seen.complete());
  const auto opens = seen.places(trace::Op::open);
  EXPECT_TRUE(std::any_of(opens.begin(), opens.end(), [](const std::string& path) {
    return path.find("libcurl.so") != std::string::npos;
  }));
  const auto misses = seen.places(trace::Op::lookup, ENOENT);
  EXPECT_EQ(std::count(misses.begin(), misses.end(), "/no"), 1);
}

TEST_P(RecorderInContainers, static_mount_serves_a_map_in_the_image) {
  HEDDLE_STAGED(program, "fs-mount-static");
  HEDDLE_STAGED(resolve, "fs-resolve");
  const auto library = build_library({.output = dir_ / "host/libx.so.1",
                                      .source = "int f(void) { return 0; }",
                                      .flags = {"-Wl,-soname,libx.so.1"}});
  const auto app = build_program({.output = dir_ / "host/app",
                                  .source = "int f(void); int main() { return f(); }",
                                  .flags = {library, "-Wl,-rpath," + (dir_ / "host")}});
  run_checked({resolve, "build", "-o", dir_ / "host/map", app});
  // The image's libc differs from the one in the map, which is drift.
  const auto served = contained(
      {"-v", program + ":/fs-mount:ro", "-v", dir_ / "host:" + (dir_ / "host")},
      {"sh", "-c",
       "/fs-mount --on-drift warn \"$0/map\" /mnt && cmp /mnt/libx.so.1 \"$0/libx.so.1\" && "
       "/fs-mount -u /mnt && ls /mnt",
       dir_ / "host"});
  EXPECT_EQ(served.status, 0) << served.err;
  EXPECT_EQ(served.out, "");
}

INSTANTIATE_TEST_SUITE_P(Debian, RecorderInContainers,
                         testing::Values("bullseye", "bookworm", "trixie"), kParameterName);

}  // namespace
}  // namespace heddle::test
