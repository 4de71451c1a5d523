// SPDX-License-Identifier: MIT
//
// fs-ship on a real Slurm of four nodes (tests/support/cluster). The engine of most cases is a
// script around sbcast that does harm on the way.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file_stamp.hpp"
#include "ship/bundle/bundle_writer.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;

void write_script(const std::string& path, const std::string& text) {
  write_text_file(path, "#!/bin/bash\n" + text + "\n", 0755);
}

/// A directory with a bundle of 12 MB, two blocks of sbcast's, which says nothing to a loader.
class Bundle : public ::testing::Test {
 protected:
  void SetUp() override {
    if (staged_program("fs-ship").empty()) HEDDLE_SKIP("fs-ship is not installed in $HEDDLE_STAGE");
    std::string bytes(12'000'000, '\0');
    std::ifstream("/dev/urandom", std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    std::ofstream(dir_ / "content", std::ios::binary) << bytes;
    struct stat status {};
    ASSERT_EQ(::stat((dir_ / "content").c_str(), &status), 0);
    BundleInput input;
    input.files = {{dir_ / "content", file_stamp(status)}};
    input.map = "fs-ship looks at no map";
    input.objects = {0};
    const auto made = value_or_throw(write_bundle(input, bundle()));
    id_ = made.id.hex();
    size_ = made.file_size;
  }
  std::string bundle() const { return dir_ / "app.bundle"; }

  TestDir dir_;
  std::string id_;
  std::uint64_t size_ = 0;
};

class Ship : public Bundle {
 protected:
  void SetUp() override {
    if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
    Bundle::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    fs::permissions(dir_.path(), fs::perms(01777));  // jobs of another user
    cluster_.emplace(dir_.path(), 4, epilog_);
  }
  void TearDown() override { cluster_.reset(); }

  RunResult sh(const std::string& script) const { return cluster_->sh(script); }
  RunResult on(int node, const std::string& script) const { return cluster_->on(node, script); }

  /// Before a command of `user`.
  static std::string as(unsigned user) {
    const auto id = std::to_string(user);
    return user == 0 ? "" : "setpriv --clear-groups --regid " + id + " --reuid " + id + " ";
  }

  struct Shipped {
    RunResult result;
    Json report;
    Json node(const std::string& name) const {
      for (const auto& each : report.at("nodes"))
        if (each.at("node") == name) return each;
      return {};
    }
  };
  /// fs-ship in an allocation of all nodes, as root or `user`.
  Shipped ship(const std::string& options, unsigned user = 0) const {
    const auto report = dir_ / "report.json";
    fs::remove(report);
    Shipped out;
    out.result = sh(as(user) + "salloc -Q -N4 " + staged_program("fs-ship") + " --json " + report +
                    " " + options + " " + bundle());
    if (fs::exists(report)) out.report = Json::parse(value_or_throw(read_file(report)));
    return out;
  }
  /// An engine: sbcast, with `before` and `after` it. $n is the number of the call.
  std::string engine(const std::string& before, const std::string& after) const {
    write_script(dir_ / "engine",
                 "dir=" + dir_.path() + " step=$1 src=$2 dst=$3\necho call >>$dir/calls\n" +
                     "n=$(wc -l <$dir/calls)\n" + before +
                     "\nsbcast -f -j $step $src $dst\nstatus=$?\n" + after + "\nexit $status");
    return "--via '" + (dir_ / "engine") + " {step} {src} {dst}'";
  }
  /// From here on the bundle is of /bin/sh and a tree with `content`.
  void pack_a_program() {
    const auto resolve = staged_program("fs-resolve");
    const auto made =
        sh("mkdir data && mv content data && " + resolve +
           " build -o sh.map --tree data /bin/sh && " + resolve + " pack sh.map -o app.bundle");
    ASSERT_EQ(made.status, 0) << made.err;
    size_ = fs::file_size(bundle());
  }
  /// Starts a program from the shipped bundle on each of `nodes`.
  void expect_starts(const Shipped& shipped, const Strings& nodes) const {
    const auto sum = sh("sha256sum <data/content").out;
    for (const auto& node : nodes) {
      const auto started =
          sh("srun -N1 -w " + node + " " + staged_program("fs-gen") + " -q --map " +
             shipped.report.at("path").get<std::string>() +
             " sh -c 'grep -q heddle /proc/self/mountinfo && sha256sum <data/content'");
      EXPECT_EQ(started.status, 0) << node << ": " << started.err;
      EXPECT_EQ(started.out, sum) << node;
    }
  }
  /// Files in the nodes' /tmp of fs-ship's.
  std::string left() const {
    std::string out;
    for (int node = 1; node <= 4; ++node)
      out += on(node, "ls -d /tmp/heddle-job-*/* 2>/dev/null").out;
    return out;
  }

  std::string epilog_;
  std::optional<Cluster> cluster_;
};

TEST_F(Ship, sbcast_reads_the_source_once_and_each_node_checks_its_copy) {
  // No node can see the source.
  ASSERT_EQ(sh("mkdir own && mount -t tmpfs own own && mv app.bundle own && ln -s own/app.bundle "
               "app.bundle")
                .status,
            0);
  write_script(dir_ / "sbcast", "exec strace -f -o " + (dir_ / "trace") +
                                    " -e trace=openat,read,mmap,pread64 -P " +
                                    (dir_ / "own/app.bundle") + " /usr/bin/sbcast \"$@\"");
  const auto shipped = ship("--via '" + (dir_ / "sbcast") + " -f -j {step} {src} {dst}'");
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_EQ(shipped.report.at("id"), id_);
  for (int node = 1; node <= 4; ++node) {
    const auto said = shipped.node("n" + std::to_string(node));
    EXPECT_EQ(said.at("source"), "copy") << said;
    EXPECT_EQ(said.at("tries"), 1);
    const auto path = lines_of(shipped.result.out).at(0);
    EXPECT_EQ(path, shipped.report.at("path").get<std::string>());
    const auto there =
        on(node, "stat -c \"%a %s\" " + path + " $(dirname " + path + "); sha256sum <" + path);
    EXPECT_THAT(there.out, StartsWith("400 " + std::to_string(size_) + "\n700 "));
    EXPECT_THAT(there.out, HasSubstr(sh("sha256sum <" + bundle()).out));
  }
  std::uint64_t bytes = 0;
  std::size_t opened = 0;
  for (const auto& line : lines_of(value_or_throw(read_file(dir_ / "trace")))) {
    if (line.find("openat(") != line.npos) ++opened;
    if (line.find("mmap(") != line.npos) bytes += size_;
    if (line.find("read(") != line.npos) bytes += std::stoull(line.substr(line.rfind('=') + 1));
  }
  EXPECT_EQ(opened, 1U);
  EXPECT_EQ(bytes, size_);
}

TEST_F(Ship, by_default_by_sbcast_for_an_ordinary_user_and_once_a_job) {
  const auto shipped = ship("", 65534);
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_THAT(shipped.result.err, HasSubstr("4 of 4 nodes have"));
  // Again in one job, which costs no second copy; and of an older job nothing stays.
  const auto twice =
      sh("salloc -Q -N4 sh -c '" + staged_program("fs-ship") + " app.bundle; mv " + bundle() +
         " moved.bundle; " + staged_program("fs-ship") + " -q --via \"false {dst}\" moved.bundle'");
  EXPECT_EQ(twice.status, 0) << twice.err;
  EXPECT_THAT(left(), HasSubstr("heddle-job-65534-"));  // another user's
  const auto paths = lines_of(twice.out);
  ASSERT_EQ(paths.size(), 2U);
  EXPECT_EQ(paths[0], paths[1]);
  fs::rename(dir_ / "moved.bundle", bundle());
  const auto later = ship("");
  EXPECT_EQ(later.result.status, 0) << later.result.err;
  EXPECT_THAT(left(), Not(HasSubstr(paths[0])));
  EXPECT_THAT(left(), HasSubstr(later.report.at("path").get<std::string>()));
}

/// The copies would be root's.
TEST_F(Ship, root_copies_no_bundle_that_others_may_write) {
  for (const auto* how : {"chown 65534 app.bundle", "chmod 666 app.bundle",
                          "mkdir -m 777 open; mv app.bundle open; ln -s open/app.bundle ."}) {
    ASSERT_EQ(sh("cp app.bundle kept.bundle; "s + how).status, 0);
    const auto shipped = ship("");
    EXPECT_NE(shipped.result.status, 0) << how;
    EXPECT_THAT(shipped.result.err, HasSubstr("root does not use this bundle")) << how;
    EXPECT_EQ(left(), "") << how;
    ASSERT_EQ(sh("mv -f kept.bundle app.bundle").status, 0);
  }
}

TEST_F(Ship, a_full_disk_leaves_one_node_with_the_shared_file) {
  pack_a_program();
  on(3, "head -c 58M /dev/zero >/tmp/fill");
  const auto shipped = ship("--min-nodes 3");
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_THAT(shipped.result.err, HasSubstr("n3: /tmp: no room for the bundle"));
  EXPECT_EQ(shipped.node("n3").at("source"), "shared");
  EXPECT_EQ(shipped.node("n3").at("tries"), 3);
  for (const auto* node : {"n1", "n2", "n4"}) EXPECT_EQ(shipped.node(node).at("tries"), 1);
  const auto path = shipped.report.at("path").get<std::string>();
  EXPECT_EQ(on(3, "readlink " + path + "; cmp " + path + " " + bundle()).out, bundle() + "\n");
  const auto source = fs::path(path).replace_extension(".source").string();
  EXPECT_EQ(on(2, "readlink " + source).out, bundle() + "\n");
  expect_starts(shipped, {"n1", "n2", "n3", "n4"});
}

TEST_F(Ship, a_bundle_flipped_or_cut_in_transit_is_sent_again) {
  const auto at_end = std::to_string(size_ - 200);
  const auto shipped = ship(engine(
      "",
      "[ $n -gt 1 ] || srun --overlap -w n2 -N1 -n1 sh -c \"printf '\\377\\376' | dd of=$dst bs=1 "
      "seek=" +
          at_end +
          " conv=notrunc status=none\"\n"
          "[ $n -gt 1 ] || srun --overlap -w n4 -N1 -n1 truncate -s 4000000 $dst"));
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_EQ(shipped.node("n1").at("tries"), 1);
  EXPECT_EQ(shipped.node("n2").at("tries"), 2);
  EXPECT_EQ(shipped.node("n4").at("tries"), 2);
  EXPECT_THAT(left(), Not(HasSubstr(".part")));
}

TEST_F(Ship, a_copy_with_a_damaged_frame_is_sent_again) {
  // On the way, and after it: 5,000,000 is in a frame.
  const std::string damage =
      "printf '\\377\\376' | dd of=$dst bs=1 seek=5000000 conv=notrunc status=none";
  const auto shipped =
      ship(engine("", "[ $n -gt 1 ] || srun --overlap -w n2 -N1 -n1 sh -c \"" + damage + "\""));
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_EQ(shipped.node("n1").at("tries"), 1);
  EXPECT_EQ(shipped.node("n2").at("tries"), 2);
  write_script(dir_ / "twice",
               "dst=$(fs-ship app.bundle)\nexport dst\n"
               "srun -w n3 -N1 -n1 sh -c \"" +
                   damage +
                   "\"\n"
                   "fs-ship app.bundle && srun cmp $dst app.bundle\n");
  const auto twice =
      sh("export PATH=" + fs::path(staged_program("fs-ship")).parent_path().string() +
         ":$PATH; salloc -Q -N4 ./twice");
  EXPECT_EQ(twice.status, 0) << twice.err;
}

TEST_F(Ship, a_bundle_always_flipped_is_never_used) {
  const auto shipped = ship(engine(
      "", "srun --overlap -w n2 -N1 -n1 sh -c \"printf '\\377\\376' | dd of=$dst bs=1 seek=" +
              std::to_string(size_ - 200) + " conv=notrunc status=none\" 2>/dev/null"));
  EXPECT_EQ(shipped.result.status, 1) << "all nodes are wanted by default";
  EXPECT_EQ(shipped.node("n2").at("source"), "shared");
  EXPECT_THAT(shipped.result.err, HasSubstr("n2: " + id_ + ".part"));
  EXPECT_THAT(left(), Not(HasSubstr(".part")));
}

TEST_F(Ship, a_killed_receiver_is_replaced) {
  pack_a_program();
  const auto shipped =
      ship(engine("[ $n -gt 1 ] || srun --overlap -w n2 -N1 -n1 bash -c 'for p in /proc/[0-9]*; do "
                  "tr \"\\0\" \" \" "
                  "<$p/cmdline | grep -q -- \"--[r]eceive\" && kill -9 ${p#/proc/}; done; true'",
                  ""));
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_EQ(shipped.node("n2").at("tries"), 2);
  EXPECT_EQ(shipped.node("n1").at("tries"), 1);
  expect_starts(shipped, {"n1", "n2", "n3", "n4"});
}

TEST_F(Ship, a_node_that_dies_meanwhile_harms_no_other) {
  pack_a_program();
  const auto shipped = ship("--timeout 6 --min-nodes 3 " +
                            engine("[ $n -gt 1 ] || kill -9 $(cat $dir/c/pid.n4)", ""));
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_THAT(shipped.result.err, HasSubstr("n4: does not answer; has no bundle"));
  for (const auto* node : {"n1", "n2", "n3"}) {
    EXPECT_EQ(shipped.node(node).at("source"), "copy");
    EXPECT_EQ(shipped.node(node).at("tries"), 2);
  }
  expect_starts(shipped, {"n1", "n2", "n3"});
}

TEST_F(Ship, an_engine_that_waits_for_a_dead_node_is_ended_and_the_others_have_their_copies) {
  const auto shipped =
      ship("--timeout 6 --copy-timeout 10 --min-nodes 3 " +
           engine("", "[ $n -gt 1 ] || { kill -9 $(cat $dir/c/pid.n4); exec sleep 1000; }"));
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_THAT(shipped.result.err, HasSubstr("engine: stopped: it takes longer than 10.0 s"));
  EXPECT_THAT(shipped.result.err, HasSubstr("n4: does not answer"));
  for (const auto* node : {"n1", "n2", "n3"})
    EXPECT_EQ(shipped.node(node).at("source"), "copy") << shipped.report;
}

TEST_F(Ship, shared_only_checks) {
  const auto shipped = ship("--via shared");
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_EQ(shipped.result.out, bundle() + "\n");
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Ship, a_directory_of_another_user_is_not_used) {
  on(2, "for i in 1 2 3 4; do mkdir /tmp/heddle-job-65534-$i; done");
  on(3, "for i in 1 2 3 4; do ln -s /etc /tmp/heddle-job-65534-$i; done");
  const auto shipped = ship("--min-nodes 2", 65534);
  EXPECT_EQ(shipped.result.status, 0) << shipped.result.err;
  EXPECT_EQ(shipped.node("n2").at("source"), "none");
  EXPECT_EQ(shipped.node("n3").at("source"), "none");
  EXPECT_EQ(shipped.node("n4").at("source"), "copy");
}

TEST_F(Ship, directories_of_jobs_that_have_not_ended_stay) {
  ASSERT_EQ(sh("sbatch -w n1 -N1 --wrap 'sleep 1000'").status, 0);
  ASSERT_TRUE(wait_until(20s, [&] { return sh("squeue -h -t R").out != ""; }));
  ASSERT_EQ(sh("scontrol suspend 1").status, 0);
  on(2, "mkdir -m 700 /tmp/heddle-job-0-1 && touch /tmp/heddle-job-0-1/slurm");
  const auto ship_to_others = [&] {
    return sh("export SQUEUE_PARTITION=none SQUEUE_STATES=PD SQUEUE_FORMAT=%j; salloc -Q -N3 " +
              staged_program("fs-ship") + " app.bundle");
  };
  auto shipped = ship_to_others();
  EXPECT_EQ(shipped.status, 0) << shipped.err;
  EXPECT_THAT(left(), HasSubstr("/tmp/heddle-job-0-1/slurm"));
  EXPECT_THAT(left(), HasSubstr("/tmp/heddle-job-0-2/slurm"));
  // Another number than Slurm's.
  on(2, "mkdir -m 700 /tmp/heddle-job-0-01 && touch /tmp/heddle-job-0-01/file");
  sh("scancel 1");
  ASSERT_TRUE(wait_until(20s, [&] { return sh("squeue -h").out.empty(); }));
  shipped = ship_to_others();
  EXPECT_EQ(shipped.status, 0) << shipped.err;
  EXPECT_THAT(left(), Not(HasSubstr("/tmp/heddle-job-0-1/")));
  EXPECT_THAT(left(), HasSubstr("/tmp/heddle-job-0-01/file"));
}

TEST_F(Ship, each_node_pulls_from_a_registry_and_writes_no_cache) {
  if (::access("/usr/bin/docker-registry", X_OK) != 0)
    HEDDLE_SKIP("docker-registry is not installed");
  const auto resolve = staged_program("fs-resolve");
  // A bundle of a real map.
  std::ofstream(dir_ / "registry.yml")
      << "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: " +
             (dir_ / "storage") + "\nhttp:\n  addr: 10.77.0.254:5000\n";
  std::ofstream(dir_ / "registries.conf")
      << "[[registry]]\nlocation = \"10.77.0.254:5000\"\ninsecure = true\n";
  const auto started = std::chrono::steady_clock::now();
  sh("docker-registry serve registry.yml >registry.log 2>&1 & ");
  const auto with = "export CONTAINERS_REGISTRIES_CONF=" + (dir_ / "registries.conf") + "; ";
  ASSERT_EQ(
      sh(resolve + " build -o sh.map /bin/sh && " + resolve + " pack sh.map -o app.bundle").status,
      0);
  RunResult pushed;
  ASSERT_TRUE(wait_until(20s, [&] {
    pushed = sh(with + resolve + " push app.bundle 10.77.0.254:5000/apps/sh:v1");
    return pushed.status == 0;
  })) << pushed.err;
  EXPECT_LT(std::chrono::steady_clock::now() - started, 20s);
  fs::remove_all(dir_ / "cache");
  const auto shipped =
      sh(with + "salloc -Q -N4 " + staged_program("fs-ship") +
         " --json report.json --via registry:" + "10.77.0.254:5000/apps/sh:v1 app.bundle");
  EXPECT_EQ(shipped.status, 0) << shipped.err;
  const auto report = Json::parse(value_or_throw(read_file(dir_ / "report.json")));
  for (const auto& node : report.at("nodes")) EXPECT_EQ(node.at("source"), "copy") << node;
  EXPECT_EQ(on(3, "cmp " + report.at("path").get<std::string>() + " " + bundle()).status, 0);
  EXPECT_FALSE(fs::exists(dir_ / "cache"));
  EXPECT_THAT(left(), AllOf(Not(HasSubstr(".part")), Not(HasSubstr("oci"))));
  // Another bundle behind the tag is refused on each node.
  ASSERT_EQ(sh(resolve + " build -o ls.map /bin/ls && " + resolve + " pack ls.map -o other.bundle")
                .status,
            0);
  ASSERT_EQ(sh(with + resolve + " push other.bundle 10.77.0.254:5000/apps/sh:v1").status, 0);
  const auto other = sh(with + "salloc -Q -N2 " + staged_program("fs-ship") +
                        " --via registry:10.77.0.254:5000/apps/sh:v1 app.bundle");
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, HasSubstr("; reads " + bundle()));
}

TEST_F(Ship, each_node_fetches_from_a_web_server_and_goes_on_where_a_transfer_broke) {
  if (::access("/usr/bin/curl", X_OK) != 0) HEDDLE_SKIP("curl is not installed");
  // Closes the first connection of each node after 5 MB.
  std::ofstream(dir_ / "server.py") << R"(
import http.server, re, socketserver
broken = set()
class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    data = open('app.bundle', 'rb').read()
    range = re.match(r'bytes=(\d+)-', self.headers.get('Range', ''))
    begin = int(range[1]) if range else 0
    self.send_response(206 if range else 200)
    self.send_header('Content-Length', str(len(data) - begin))
    if range: self.send_header('Content-Range', f'bytes {begin}-{len(data) - 1}/{len(data)}')
    self.end_headers()
    node = self.client_address[0]
    print(node, begin, flush=True)
    self.wfile.write(data[begin:] if node in broken else data[begin:5000000])
    broken.add(node)
    self.close_connection = True
  def log_message(self, *_): pass
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer): pass
Server(('10.77.0.254', 8000), Handler).serve_forever()
)";
  sh("python3 server.py >served 2>server.err & ");
  const auto script =
      fs::path(staged_program("fs-ship")).parent_path().parent_path() / "share/heddle/ship/by_curl";
  const auto shipped =
      sh("salloc -Q -N4 " + staged_program("fs-ship") + " --json report.json --via '" +
         script.string() + " {dst} {nodes} {count} http://10.77.0.254:8000/app.bundle' app.bundle");
  EXPECT_EQ(shipped.status, 0) << shipped.err;
  const auto report = Json::parse(value_or_throw(read_file(dir_ / "report.json")));
  for (const auto& node : report.at("nodes")) EXPECT_EQ(node.at("source"), "copy") << node;
  int resumed = 0;
  for (const auto& line : lines_of(value_or_throw(read_file(dir_ / "served"))))
    resumed += line.ends_with(" 5000000");
  EXPECT_EQ(resumed, 4);
}

/// The cluster runs the shipped epilog, or none.
struct Cancelled : Ship {
  /// Cancels a job of root or `user` that has shipped and runs, or one whose engine is at work.
  void cancel(const std::string& script, unsigned user = 0) {
    write_script(dir_ / "job", script);
    const auto submitted = sh(as(user) + "sbatch -N4 -o job.out job");
    ASSERT_EQ(submitted.status, 0) << submitted.err;
    ASSERT_TRUE(wait_until(40s, [&] { return fs::exists(dir_ / "running"); }))
        << read_file(dir_ / "job.out").value_or("");
    EXPECT_THAT(left(), HasSubstr(id_));
    sh("scancel -s KILL -u " + std::to_string(user));
    const auto cancelled = std::chrono::steady_clock::now();
    EXPECT_TRUE(wait_until(10s, [&] { return sh("squeue -h").out.empty(); }));
    EXPECT_TRUE(wait_until(10s, [&] { return processes().empty(); })) << processes();
    EXPECT_LT(std::chrono::steady_clock::now() - cancelled, 10s);
    EXPECT_EQ(sh("grep -h heddle /proc/[0-9]*/mountinfo | grep fuse").out, "");
  }
  /// Programs of ours in the cluster.
  std::string processes() const {
    return sh("readlink /proc/[0-9]*/exe | grep '^" + std::string(std::getenv("HEDDLE_STAGE")) +
              "'")
        .out;
  }
};

struct CancelledWithEpilog : Cancelled {
  void SetUp() override {
    epilog_ = std::string(std::getenv("HEDDLE_STAGE")) + "/share/heddle/epilog-heddle.sh";
    if (!fs::exists(epilog_)) HEDDLE_SKIP("the epilog is not installed in $HEDDLE_STAGE");
    Cancelled::SetUp();
  }
};

TEST_F(CancelledWithEpilog, job_of_a_user_that_runs_from_its_bundle_leaves_nothing) {
  const auto resolve = staged_program("fs-resolve");
  const auto made = sh(resolve + " build -o sh.map /bin/sh /bin/sleep && " + resolve +
                       " pack sh.map -o app.bundle");
  ASSERT_EQ(made.status, 0) << made.err;
  id_ = made.out.substr(made.out.rfind(' ') + 1, 64);
  cancel("map=$(" + staged_program("fs-ship") + " app.bundle) && srun " + staged_program("fs-gen") +
             " -q --map $map sh -c 'grep -q heddle /proc/self/mountinfo && touch running; exec "
             "sleep 100'",
         65534);
  EXPECT_TRUE(wait_until(10s, [&] { return left().empty(); })) << left();
}

TEST_F(CancelledWithEpilog, transfer_leaves_no_file) {
  cancel(staged_program("fs-ship") + " " + engine("", "touch $dir/running; sleep 100") +
         " app.bundle");
  EXPECT_TRUE(wait_until(10s, [&] { return left().empty(); })) << left();
}

TEST_F(Cancelled, transfer_s_directory_is_removed_by_the_next_start) {
  cancel(staged_program("fs-ship") + " " + engine("", "touch $dir/running; sleep 100") +
         " app.bundle");
  const auto before = left();
  EXPECT_THAT(before, HasSubstr("heddle-job-0-1/"));
  EXPECT_EQ(ship("").result.status, 0);
  EXPECT_THAT(left(), AllOf(Not(HasSubstr("heddle-job-0-1/")), HasSubstr("heddle-job-0-2/")));
}

TEST_F(Bundle, is_copied_by_any_command_without_slurm) {
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const auto ship = [&](const Strings& more) {
    return run(Strings{staged_program("fs-ship"), "--launch", "env --", "--nodes", host, "--job",
                       "a-7", "--to", dir_.path()} +
                   more + Strings{bundle()},
               {.env = {"SLURM_JOB_ID"}});
  };
  const auto directory = dir_ / ("heddle-job-" + std::to_string(::geteuid()) + "-a-7");
  const auto copied = ship({"--via", "cp {src} {dst}"});
  EXPECT_EQ(copied.status, 0) << copied.err;
  EXPECT_EQ(copied.out, directory + "/" + id_ + ".bundle\n");
  EXPECT_EQ(run({"cmp", bundle(), directory + "/" + id_ + ".bundle"}).status, 0);
  EXPECT_EQ(ship({"--min-nodes", "2", "--via", "cp {src} {dst}"}).status, 2);
  if (::geteuid() == 0) {  // a copy that is there counts, also where nothing can be written
    const auto again =
        run({"unshare", "-m", "sh", "-c",
             "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"",
             directory, staged_program("fs-ship"), "--launch", "env --", "--nodes", host, "--job",
             "a-7", "--to", dir_.path(), "--via", "false {dst}", bundle()},
            {.env = {"SLURM_JOB_ID"}});
    EXPECT_EQ(again.status, 0) << again.err;
  }
  fs::remove_all(directory);
  // A link in the place of the copy is not followed, and the command's status says nothing.
  const auto linked = ship({"--via", "ln -s {src} {dst}"});
  EXPECT_EQ(linked.status, 1);
  EXPECT_THAT(linked.err, HasSubstr("Too many levels of symbolic links"));
  EXPECT_EQ(ship({"--via", "sbcast"}).status, 2);
}

TEST_F(Bundle, is_given_up_when_its_engine_never_ends) {
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const auto shipped =
      run({staged_program("fs-ship"), "--launch", "env --", "--nodes", host, "--job", "a", "--to",
           dir_.path(), "--copy-timeout", "1", "--via",
           "sh -c 'sleep 1000 & echo $! >>" + (dir_ / "pids") + "; wait' {dst}", bundle()},
          {.env = {"SLURM_JOB_ID"}});
  EXPECT_EQ(shipped.status, 1);
  EXPECT_THAT(shipped.err, HasSubstr("sh: stopped: it takes longer than 1.0 s"));
  EXPECT_THAT(shipped.err, HasSubstr("; reads " + bundle()));
  // Nor does what it has started go on.
  const auto pids = lines_of(value_or_throw(read_file(dir_ / "pids")));
  EXPECT_EQ(pids.size(), 3U);
  for (const auto& pid : pids)
    EXPECT_THAT(read_file("/proc/" + pid + "/cmdline").value_or(""), Not(HasSubstr("sleep")));
}

TEST_F(Bundle, a_signal_reaches_its_engine) {
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  auto shipper = value_or_throw(
      spawn(staged_program("fs-ship"),
            {"fs-ship", "--launch", "env --", "--nodes", host, "--job", "a", "--to", dir_.path(),
             "--via", "sh -c 'echo $$ >" + (dir_ / "pid") + "; exec sleep 1000' {dst}", bundle()}));
  std::string pid;
  EXPECT_TRUE(wait_until(std::chrono::seconds(20), [&] {
    pid = read_file(dir_ / "pid").value_or("");
    return pid.ends_with('\n');
  }));
  pid.pop_back();
  ::kill(shipper.pid(), SIGINT);
  EXPECT_EQ(value_or_throw(shipper.wait()), 128 + SIGINT);
  EXPECT_TRUE(wait_until(std::chrono::seconds(20), [&] {
    return read_file("/proc/" + pid + "/cmdline").value_or("").empty();
  }));
}

TEST_F(Bundle, with_a_damaged_frame_is_not_shared) {
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const auto ship = [&](const std::string& via) {
    return run({staged_program("fs-ship"), "--launch", "env --", "--nodes", host, "--job", "a",
                "--to", dir_.path(), "--via", via, bundle()},
               {.env = {"SLURM_JOB_ID"}});
  };
  EXPECT_EQ(ship("shared").status, 0);
  const auto file = value_or_throw(open_file(bundle(), O_RDWR));
  ASSERT_EQ(::pwrite(file.get(), "damage", 6, 5'000'000), 6);
  const auto refused = ship("shared");
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err,
              HasSubstr("app.bundle: damaged bundle: 1 of 12 frames have other bytes"));
  EXPECT_EQ(ship("registry:").status, 2);
}

TEST_F(Bundle, is_not_sent_where_a_limit_forbids_a_file_of_its_size) {
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const fs::path here = fs::exists("/var/tmp") ? "/var/tmp" : dir_.path();
  const auto to = here / fs::path(dir_.path()).filename();
  fs::create_directory(to);
  const auto shipped = run({staged_program("fs-ship"), "--launch", "prlimit --fsize=1000000 --",
                            "--nodes", host, "--job", "a", "--to", to, "--via",
                            "sh -c 'echo sent >" + (dir_ / "sent") + "' {dst}", bundle()},
                           {.env = {"SLURM_JOB_ID"}});
  EXPECT_EQ(shipped.status, 1);
  EXPECT_THAT(shipped.err, HasSubstr("no room for the bundle: File too large; reads " + bundle()));
  EXPECT_FALSE(fs::exists(dir_ / "sent"));
  EXPECT_EQ(run({"sh", "-c", "ls -A " + (to / "*").string() + " | grep part"}).out, "");
  fs::remove_all(to);
}

TEST_F(Bundle, directory_of_any_place_is_removed_by_the_epilog) {
  if (::geteuid() != 0) HEDDLE_SKIP("an epilog is root's");
  const auto epilog = std::string(std::getenv("HEDDLE_STAGE")) + "/share/heddle/epilog-heddle.sh";
  if (!fs::exists(epilog)) HEDDLE_SKIP("the epilog is not installed in $HEDDLE_STAGE");
  fs::permissions(dir_.path(), fs::perms(0755));
  for (const char* to : {"local", "scratch"}) {
    fs::create_directory(dir_ / to);
    fs::permissions(dir_ / to, fs::perms(01777));
    for (const char* job : {"7", "8"}) {
      const auto path = dir_ / (to + "/heddle-job-65534-"s + job);
      fs::create_directory(path);
      std::ofstream(path + "/x.bundle") << "text";
      ASSERT_EQ(run({"chown", "-R", "65534", path}).status, 0);
    }
  }
  const auto done =
      run({"sh", epilog}, {.env = {"SLURM_JOB_UID=65534", "SLURM_JOB_ID=7", "SLURM_JOB_GID=65534",
                                   "HEDDLE_TO=" + (dir_ / "local") + " " + (dir_ / "scratch")}});
  EXPECT_EQ(done.status, 0) << done.err;
  for (const char* to : {"local", "scratch"}) {
    EXPECT_FALSE(fs::exists(dir_ / (to + "/heddle-job-65534-7"s)));
    EXPECT_TRUE(fs::exists(dir_ / (to + "/heddle-job-65534-8"s)));
  }
}

TEST_F(Ship, damaged_bundles_and_wrong_words_are_refused) {
  const auto refused = [&](const std::string& words) {
    return sh("salloc -Q -N4 " + staged_program("fs-ship") + " " + words);
  };
  EXPECT_EQ(refused("none.bundle").status, 3);
  sh("head -c 5000000 app.bundle >cut.bundle");
  EXPECT_EQ(refused("cut.bundle").status, 3);
  EXPECT_EQ(refused("--via tar app.bundle").status, 2);
  EXPECT_EQ(refused("--to tmp app.bundle").status, 2);
  EXPECT_EQ(refused("--job ../x app.bundle").status, 2);
  EXPECT_EQ(refused("--min-nodes 5 app.bundle").status, 2);
  EXPECT_THAT(refused("--nodes n1,n1.b app.bundle").err, HasSubstr("n1.b: named twice"));
  EXPECT_EQ(sh(staged_program("fs-ship") + " app.bundle").status, 3) << "outside an allocation";
  EXPECT_THAT(left(), IsEmpty());
}

}  // namespace
}  // namespace heddle::test
