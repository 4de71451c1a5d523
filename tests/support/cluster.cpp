// SPDX-License-Identifier: MIT
#include "tests/support/cluster.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

using Strings = std::vector<std::string>;

Strings entering(const std::string& pid) {
  return {"nsenter", "-t", pid, "-m", "-n", "-u", "-i", "-p"};
}

}  // namespace

const char* const Cluster::kRanksSayWhere = R"(#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) {
  int rank, size;
  char host[256];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  gethostname(host, sizeof(host));
  printf("%s %d %d\n", host, rank, size);
  fflush(stdout);
  return MPI_Finalize();
}
)";

std::string Cluster::obstacle() {
  if (::geteuid() != 0) return "a cluster of namespaces needs root";
  return run({"sh", "-c",
              "PATH=$PATH:/usr/sbin; for each in slurmctld slurmd munged ip nsenter setpriv; do "
              "command -v $each >/dev/null || { printf '%s is not installed' $each; exit; }; done"})
      .out;
}

Cluster::Cluster(std::string directory, int nodes, const std::string& epilog,
                 const std::string& plugstack, const std::string& scheduler)
    : directory_(std::move(directory)), nodes_(nodes) {
  const auto log = value_or_throw(open_file(directory_ + "/cluster.log", O_WRONLY | O_CREAT));
  SpawnOptions options{{{log.get(), STDOUT_FILENO}, {log.get(), STDERR_FILENO}}};
  process_.emplace(value_or_throw(spawn(
      "/usr/bin/env",
      {"env", "EPILOG=" + epilog, "PLUGSTACK=" + plugstack, "SCHEDULER=" + scheduler, "setpriv",
       "--pdeathsig", "KILL", std::string(std::getenv("HEDDLE_SOURCE")) + "/tests/support/cluster",
       directory_ + "/c", std::to_string(nodes)},
      options)));
  std::optional<int> ended;
  wait_until(std::chrono::seconds(40), [&] {
    if (!ended) ended = value_or_throw(process_->wait_for(std::chrono::milliseconds(0)));
    return ended || std::filesystem::exists(directory_ + "/c/ready");
  });
  const auto own = std::to_string(process_->pid());
  std::ifstream("/proc/" + own + "/task/" + own + "/children") >> init_;
  if (ended || init_ <= 1 || !std::filesystem::exists(directory_ + "/c/ready"))
    throw Error("cluster", "is not ready", read_file(directory_ + "/cluster.log").value_or(""));
}

std::string Cluster::start_sshd() const {
  const std::string sshd = "/usr/sbin/sshd", own = directory_ + "/c/ssh";
  if (!std::filesystem::exists(sshd)) return "";
  const auto check = [](const RunResult& done) {
    if (done.status != 0) throw Error("sshd", "cannot be started", done.err);
  };
  check(sh("mkdir -m 700 c/ssh && ssh-keygen -q -t ed25519 -N '' -f c/ssh/key"));
  std::ofstream(own + "/sshd_config")
      << "HostKey " << own << "/key\nAuthorizedKeysFile " << own
      << "/key.pub\nStrictModes no\nPidFile none\nPermitRootLogin prohibit-password\n";
  std::ofstream(own + "/ssh") << "#!/bin/sh\nexec ssh -F none -i " << own
                              << "/key -o BatchMode=yes -o StrictHostKeyChecking=no -o "
                                 "UserKnownHostsFile=/dev/null -o LogLevel=ERROR \"$@\"\n";
  std::filesystem::permissions(own + "/ssh", std::filesystem::perms(0755));
  const auto start = "mkdir -p /run/sshd && exec " + sshd + " -f " + own + "/sshd_config";
  for (int node = 1; node <= nodes_; ++node) check(on(node, start));
  return own + "/ssh";
}

std::string Cluster::init_of(int node) const {
  std::string pid;
  std::ifstream(directory_ + "/c/pid.n" + std::to_string(node)) >> pid;
  return pid;
}

RunResult Cluster::sh(const std::string& script, RunOptions options) const {
  return shell({}, script, std::move(options));
}

RunResult Cluster::on(int node, const std::string& script, RunOptions options) const {
  return shell(entering(init_of(node)), script, std::move(options));
}

RunResult Cluster::shell(const Strings& prefix, const std::string& script,
                         RunOptions options) const {
  const Strings environment = {"TMPDIR",
                               "SLURM_CONF=" + directory_ + "/c/slurm.conf",
                               "HOME=" + directory_,
                               "XDG_CACHE_HOME=" + directory_ + "/cache",
                               "OMPI_ALLOW_RUN_AS_ROOT=1",
                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
  options.env.insert(options.env.begin(), environment.begin(), environment.end());
  auto argv = entering(std::to_string(init_));
  argv.insert(argv.end(), prefix.begin(), prefix.end());
  argv.insert(argv.end(), {"sh", "-c", "cd " + directory_ + " || exit\n" + script});
  return run(argv, options);
}

}  // namespace heddle::test
